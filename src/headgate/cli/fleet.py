"""Defines the commands about many jobs under one budget."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate import scenario as scenarios
from headgate.cli.answer import EXIT_CODES, Debug, Json, answer
from headgate.cli.commands import app
from headgate.cli.gate import GatedTyper
from headgate.cli.input import directory
from headgate.cli.simulate import table
from headgate.core.duration import parse_duration_s
from headgate.core.input import shown
from headgate.report.fleet import fleet_status

fleet = GatedTyper(
    help="Many jobs under one budget of slots.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(fleet, name="fleet")

_LINE = 1000
"""Longest line on stderr, in characters; a failure may quote a record."""

Description = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The fleet's description.")]


@fleet.command(epilog=EXIT_CODES)
def check(file: Description, as_json: Json = False, debug: Debug = False) -> None:
    """Check a fleet's description without a cluster, and say what it would run."""
    answer(lambda: scenarios.check_fleet(file), _lines, as_json=as_json, debug=debug)


@fleet.command(epilog=EXIT_CODES)
def run(
    file: Description,
    duration: Annotated[
        str,
        typer.Option(
            help="How long to run after the last job has started, with a unit, such as 5min."
        ),
    ] = "5min",
    advise: Annotated[
        bool, typer.Option("--advise", help="Decide, write down why, and change nothing.")
    ] = False,
    only_check: Annotated[
        bool, typer.Option("--check", help="Check the description, and run nothing.")
    ] = False,
    kill_host_at: Annotated[
        str | None,
        typer.Option(
            help="Experiment: kill an executor this long after the last job has started; needs a cluster."
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Directory of journal, outputs and checkpoints.", parser=directory, metavar="PATH"
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the jobs of a description in one Spark application, and print what happened."""

    def work_on() -> dict[str, Any]:
        if only_check:
            return scenarios.check_fleet(file)
        return scenarios.run_fleet_file(
            file,
            duration_s=parse_duration_s(duration),
            advise=advise,
            work=work,
            kill_host_at_s=None if kill_host_at is None else parse_duration_s(kill_host_at),
            on_progress=FleetProgress(),
        )

    answer(work_on, _lines, as_json=as_json, debug=debug)


@fleet.command(epilog=EXIT_CODES)
def status(
    journal: Annotated[Path, typer.Argument(help="The fleet's journal, or its directory.")],
    since: Annotated[
        str | None, typer.Option(help="Show only this last span of time, such as 1h.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say who took slots from whom, with the utility before and after.

    This works for a fleet that no longer runs, too.
    """

    def work() -> dict[str, Any]:
        return fleet_status(journal, None if since is None else parse_duration_s(since))

    answer(work, _lines, as_json=as_json, debug=debug)


class FleetProgress:
    """Shows a fleet's progress on stderr: each change of a job's state, and the newest round."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}
        self._rounds = 0

    def __call__(self, running: Any) -> None:
        """Show the changes since the last call."""
        failures = running.failures
        for name, state in running.jobs.items():
            if self._jobs.get(name) != state:
                self._jobs[name] = state
                why = f": {failures[name]}" if name in failures else ""
                sys.stderr.write(shown(f"job {name} {state}{why}", _LINE) + "\n")
        rounds = running.rounds
        if len(rounds) > self._rounds:
            self._rounds, last = len(rounds), rounds[-1]
            sys.stderr.write(
                f"{last.time_s:7.1f} s  utility {last.utility:g} of {last.utility_max:g}  "
                f"slots {last.slots} of {last.slots_max}  actions {len(running.actions)}\n"
            )
        sys.stderr.flush()


def _lines(result: Mapping[str, Any]) -> list[str]:
    """Return a result's plain values, then its jobs and its actions as tables."""
    plain = {k: v for k, v in result.items() if isinstance(v, str | int | float) or k == "touched"}
    width = max(map(len, plain))
    lines = [
        f"{k:<{width}}  {v if isinstance(v, str) else json.dumps(v)}" for k, v in plain.items()
    ]
    return [*lines, *_jobs(result.get("jobs", [])), *_spaced(table(result.get("rows", [])))]


def _jobs(jobs: Any) -> list[str]:
    """Return a table of jobs.

    `jobs`: rows of the table; or jobs by name, whose rows have their last utility.
    """
    if not isinstance(jobs, Mapping):
        return _spaced(table(jobs))
    rows = [
        {
            "job": name,
            "state": job["state"],
            "utility": job["utility"][-1][1] if job["utility"] else None,
            "of": job.get("utility_max"),
            "met": job.get("met"),
            "slots": sum(job.get("slots", {}).values()),
        }
        for name, job in jobs.items()
    ]
    return _spaced(table(rows))


def _spaced(lines: list[str]) -> list[str]:
    return ["", *lines] if lines else []
