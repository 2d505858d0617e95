"""Defines the commands for the person on call: they read the journal, or ask a query through a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate import scenario as scenarios
from headgate.cli.answer import EXIT_CODES, Checkpoint, Debug, Json, RequireSlo, answer
from headgate.cli.commands import app
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError
from headgate.core.input import KEY_GROUPS_MAX
from headgate.journal import read
from headgate.journal.writer import wall_clock_ms
from headgate.report.diagnose import diagnose as diagnosed
from headgate.report.diagnose import diagnose_lines
from headgate.report.run import Run
from headgate.report.top import top as hottest
from headgate.report.top import top_lines
from headgate.report.why import why as explained
from headgate.report.why import why_lines

Reason = Annotated[str, typer.Option(help="Why, for the journal: a ticket, a sentence.")]
Wait = Annotated[str, typer.Option(help="How long to wait for the query's answer.")]

_WAIT = "10 s"


@app.command(epilog=EXIT_CODES)
def why(
    checkpoint: Checkpoint,
    at: Annotated[
        str | None,
        typer.Option(help="A time of day such as 03:12, or since the start as +01:30 or '90 s'."),
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The last decision; the default.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say why the policy changed slots: rule, inputs, and what came of it."""

    def work() -> dict[str, Any]:
        if last and at is not None:
            msg = f'--last and --at "{at}" exclude each other; give one.'
            raise ConfigError(msg)
        return explained(read(scenarios.journal_at(checkpoint)), at)

    answer(work, why_lines, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def diagnose(
    checkpoint: Checkpoint,
    as_json: Json = False,
    require_slo: RequireSlo = False,
    debug: Debug = False,
) -> None:
    """Say whether the SLO is met and since when, what is hot, what limits, and what to do."""

    def work() -> dict[str, Any]:
        result = diagnosed(
            read(scenarios.journal_at(checkpoint)),
            scenarios.written(checkpoint),
            now_ms=wall_clock_ms(),
            driver=scenarios.driver_of(checkpoint),
        )
        if require_slo:
            result["slo_met"] = bool(result["slo"]["met"])
        return result

    answer(work, diagnose_lines, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def top(checkpoint: Checkpoint, as_json: Json = False, debug: Debug = False) -> None:
    """Show the hottest key groups and the busiest slots, and whether moving can help."""

    def work() -> dict[str, Any]:
        return hottest(Run.read(scenarios.journal_at(checkpoint)))

    answer(work, top_lines, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def freeze(
    checkpoint: Checkpoint,
    reason: Reason,
    for_: Annotated[
        str | None, typer.Option("--for", help="How long, such as 2h; default: until thawed.")
    ] = None,
    wait: Wait = _WAIT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Forbid changes of slots, by policies and by hand, also over a restart."""

    def arguments() -> dict[str, Any]:
        return scenarios.freeze_arguments(for_)

    _ask(checkpoint, "freeze", reason, arguments, wait, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def thaw(
    checkpoint: Checkpoint,
    reason: Reason = "",
    wait: Wait = _WAIT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Allow changes of slots again."""
    _ask(checkpoint, "thaw", reason, dict, wait, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def rollback(
    checkpoint: Checkpoint,
    to_epoch: Annotated[
        int, typer.Option(min=0, help="The epoch whose assignment shall hold again.")
    ],
    reason: Reason = "",
    wait: Wait = _WAIT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Go back to the assignment of an earlier epoch; state never goes back."""
    arguments = {"epoch": to_epoch}
    _ask(checkpoint, "rollback", reason, lambda: arguments, wait, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def scale(
    checkpoint: Checkpoint,
    slots: Annotated[int, typer.Argument(help="How many slots.", min=1, max=KEY_GROUPS_MAX)],
    operator: Annotated[str | None, typer.Option(help="One operator; default: all.")] = None,
    hold: Annotated[
        str | None,
        typer.Option(help="How long the policy leaves that number alone, such as 10min."),
    ] = None,
    reason: Reason = "",
    wait: Wait = _WAIT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Change the number of slots of a running query."""

    def arguments() -> dict[str, Any]:
        return scenarios.scale_arguments(slots, operator, hold)

    _ask(checkpoint, "scale", reason, arguments, wait, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def stop(
    checkpoint: Checkpoint,
    reason: Reason = "",
    wait: Annotated[str, typer.Option(help="How long to wait for the query's end.")] = "60 s",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Stop the query that runs on a checkpoint, at its next batch boundary, and wait for its end."""

    def work() -> dict[str, Any]:
        return scenarios.stop(checkpoint, reason=reason, wait_s=parse_duration_s(wait))

    answer(
        work,
        lambda result: [f"the query has ended, as {result['by']} asked"],
        as_json=as_json,
        debug=debug,
    )


def _ask(
    checkpoint: Path,
    act: str,
    reason: str,
    arguments: Callable[[], dict[str, Any]],
    wait: str,
    *,
    as_json: bool,
    debug: bool,
) -> None:
    def work() -> dict[str, Any]:
        wait_s = parse_duration_s(wait)
        return scenarios.ask(checkpoint, act, reason=reason, arguments=arguments(), wait_s=wait_s)

    answer(work, _asked_lines, as_json=as_json, debug=debug)


def _asked_lines(result: dict[str, Any]) -> list[str]:
    detail = f": {result['detail']}" if result["detail"] else ""
    return [f"{result['act']} done, asked for by {result['by']}{detail}"]
