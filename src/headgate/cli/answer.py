"""Prints the result of a command, and defines the exit codes of all commands."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.input import checkpoint_place
from headgate.cli.output import json_only
from headgate.core.errors import EngineError, HeadgateError, NotReady, ProtocolError, StateError
from headgate.core.input import escaped, shown
from headgate.core.quiet import quiet_stderr

OK = 0
FAILED = 1
BAD_INPUT = 2
DIFFERS = 3
SLO_MISSED = 4
INTERRUPTED = 130
"""Exit code that a shell reports for a program that SIGINT has ended."""

_LAST_LINES_S = 0.2
"""Longest wait for stderr's last lines, in s; a JVM may hold the pipe for longer. Not tuned."""

_SENTENCE = 1000
"""Longest sentence on stderr, in characters."""

_UsageError = typer.BadParameter.__bases__[0]
"""Class of Typer's errors about a command line; from Typer's own copy of click, or from click."""

EXIT_CODES = """Exit codes: 0 ok, and verified where that was asked for; 1 the run failed;
2 bad input; 3 the answers differ; 4 the SLO was missed; 130 interrupted twice."""

Checkpoint = Annotated[
    Path,
    typer.Argument(
        help="The query's checkpoint.",
        show_default=False,
        parser=checkpoint_place,
        metavar="CHECKPOINT",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
RequireSlo = Annotated[
    bool, typer.Option("--require-slo", help="Exit with 4 if the SLO is missed.")
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks of errors, and all that Spark prints.")
]


def exit_code(result: Mapping[str, Any]) -> int:
    """Return the exit code of a result: a difference outweighs a failure, and a failure a missed SLO.

    Keys: `verified` (runs, verify, benchmarks), `sound` (inspect, doctor), `failed` (benchmarks that
    did not run to their end), `slo_met`, `refused` (explain).
    """
    if result.get("refused"):
        return BAD_INPUT
    if result.get("verified") is False:
        return DIFFERS
    if result.get("sound") is False or result.get("failed"):
        return FAILED
    return SLO_MISSED if result.get("slo_met") is False else OK


def error_code(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    # A benchmark's error; benchmarks are imported late, so only the class's name is known here.
    if type(error).__name__ == "WrongAnswer":
        return DIFFERS
    if _of_the_command_line(error):
        return BAD_INPUT
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

    An error prints one sentence on stderr. With --json it also prints an object with "error" on
    stdout, so that a program always reads exactly one object.
    """
    try:
        with _noise_elsewhere(as_json=as_json, debug=debug):
            result = work()
        code = exit_code(result)
        lines = [_json(result)] if as_json else [escaped(line) for line in show(result)]
    # A workload may raise SystemExit: it is the user's own function; a native library may panic.
    except BaseException as error:  # the border to the shell
        if debug:
            traceback.print_exc()
        code = error_code(error)
        text = report_error(error)
        failure = {"error": {"kind": type(error).__name__, "message": text}}
        lines = [_json(failure)] if as_json else []
    for line in lines:
        typer.echo(line)
    raise typer.Exit(code)


def report_error(error: BaseException) -> str:
    """Write on stderr one sentence about the error that ended a command; return the sentence.

    Names an unforeseen error by its class, with the first line of its text; the JVM writes many.
    """
    if isinstance(error, HeadgateError | KeyboardInterrupt):
        text = shown(str(error) or "interrupted", _SENTENCE)
        sys.stderr.write(f"headgate: {text}\n")
    elif _of_the_command_line(error):
        text = _usage(error)
        sys.stderr.write(f"headgate: {text}\n")
    else:
        text = shown(str(error).strip().partition("\n")[0] or type(error).__name__, _SENTENCE)
        sys.stderr.write(f"headgate: {type(error).__name__}: {text}\n")
    return text


def _of_the_command_line(error: BaseException) -> bool:
    """Return whether an error is Typer's, about the typed words."""
    return isinstance(error, _UsageError)


def _usage(error: Any) -> str:
    """Return Typer's message about a command line, of several lines, as one sentence."""
    text = " ".join(str(error.format_message()).split()).removesuffix(".")
    command = error.ctx.command_path if error.ctx is not None else "headgate"
    _, _, names = command.partition(" ")  # the first word is the program
    where = f"headgate {names} --help" if names else "headgate --help"
    return shown(f"{text}; {where} lists what there is.", _SENTENCE)


def _json(value: Mapping[str, Any]) -> str:
    """Return JSON of printable ASCII: `json` escapes every control character but DEL."""
    return json.dumps(value, default=str, allow_nan=False).replace("\x7f", "\\u007f")


@contextmanager
def _noise_elsewhere(*, as_json: bool, debug: bool) -> Iterator[None]:
    """Keep stdout for the result with --json, and Spark's messages off stderr without --debug."""
    with ExitStack() as stack:
        if debug:
            os.environ["HEADGATE_QUIET"] = "0"  # which `hg.session` reads
        stack.enter_context(quiet_stderr(_LAST_LINES_S))
        if as_json:
            stack.enter_context(json_only())
        yield
