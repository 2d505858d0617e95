"""What every command does with its result, and the exit codes commands end with."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.input import directory
from headgate.cli.output import json_only, quiet_stderr
from headgate.core.errors import EngineError, HeadgateError, NotReady, ProtocolError, StateError

OK = 0
FAILED = 1
BAD_INPUT = 2
DIFFERS = 3
SLO_MISSED = 4
INTERRUPTED = 130
"""What a shell reports for a program ended by SIGINT."""

EXIT_CODES = """Exit codes: 0 ok, and verified where that was asked for; 1 the run failed;
2 bad input; 3 the answers differ; 4 the SLO was missed; 130 interrupted twice."""

Checkpoint = Annotated[
    Path,
    typer.Argument(
        help="The query's checkpoint.", show_default=False, parser=directory, metavar="CHECKPOINT"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks of errors, and all that Spark prints.")
]


def exit_code(result: Mapping[str, Any]) -> int:
    """Return the exit code of a result: what differs outweighs what failed, and that what is late.

    Keys: `verified` (runs, verify, benchmarks), `sound` (inspect), `failed` (benchmarks: what did
    not run to its end), `slo_met`.
    """
    if result.get("verified") is False:
        return DIFFERS
    if result.get("sound") is False or result.get("failed"):
        return FAILED
    return SLO_MISSED if result.get("slo_met") is False else OK


def error_code(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    # A benchmark's own error; benchmarks are imported late, so it is known by name only.
    if type(error).__name__ == "WrongAnswer":
        return DIFFERS
    ran = isinstance(error, EngineError | StateError | ProtocolError | NotReady)
    return BAD_INPUT if isinstance(error, HeadgateError) and not ran else FAILED


def answer(
    work: Callable[[], dict[str, Any]],
    show: Callable[[dict[str, Any]], list[str]],
    *,
    as_json: bool,
    debug: bool,
) -> None:
    """Do a command's work, print its result, and exit with its code.

    An error is one sentence on stderr; with --json an object with "error" on stdout as well, so
    that a program reading it always finds exactly one.
    """
    try:
        with _noise_elsewhere(as_json=as_json, debug=debug):
            result = work()
        code = exit_code(result)
        lines = [json.dumps(result, default=str, allow_nan=False)] if as_json else show(result)
    except (Exception, KeyboardInterrupt) as error:  # the border to the shell
        if debug:
            traceback.print_exc()
        code = error_code(error)
        expected = isinstance(error, HeadgateError | KeyboardInterrupt)
        text = str(error) or ("interrupted" if expected else type(error).__name__)
        unexpected = "" if expected else f"{type(error).__name__}: "
        sys.stderr.write(f"headgate: {unexpected}{text}\n")
        kind = {"kind": type(error).__name__, "message": text}
        lines = [json.dumps({"error": kind})] if as_json else []
    for line in lines:
        typer.echo(line)
    raise typer.Exit(code)


@contextmanager
def _noise_elsewhere(*, as_json: bool, debug: bool) -> Iterator[None]:
    """Keep all but a program's result off stdout, and Spark's chatter off stderr."""
    with ExitStack() as stack:
        if not debug:
            stack.enter_context(quiet_stderr())
        if as_json:
            # After the line above, so that what is sent to stderr is filtered as well.
            stack.enter_context(json_only())
        yield
