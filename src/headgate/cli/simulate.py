"""Defines the commands that simulate a user's trace or a recorded run."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.answer import EXIT_CODES, Checkpoint, Debug, Json, answer
from headgate.cli.commands import app
from headgate.core.duration import parse_duration_s
from headgate.core.slo import parse_slo
from headgate.report import plot

Out = Annotated[
    Path | None, typer.Option(metavar="FILE.svg", help="Write the picture (needs matplotlib).")
]

_OUTSIDE_BRACKETS = re.compile(r",(?![^(]*\))")

_SHOWN = frozenset({"paper", "reaches", "correlation", "seeds", "rate_factors"})
"""Keys of a figure's lists and dicts that are shown nevertheless."""


def policies_of(text: str) -> list[str]:
    """Return the policies of a list such as ``drs-lb(0.1, 2),static(8)``."""
    return [name.strip() for name in _OUTSIDE_BRACKETS.split(text)]


@app.command(epilog=EXIT_CODES)
def simulate(  # noqa: PLR0913, PLR0917 - a command line has many options
    trace: Annotated[Path, typer.Argument(help="A CSV file with a header; may be gzipped.")],
    slo: Annotated[str, typer.Option(help="Such as 'mean < 1 s over 1 s'.")],
    service_rate: Annotated[
        float, typer.Option(help="Records per second that one slot completes.")
    ],
    policy: Annotated[
        str, typer.Option(help="Policies to compare, such as 'streamswitch(0.2),static(8)'.")
    ] = "unified,streamswitch",
    slots_max: Annotated[int, typer.Option(help="Most slots there may be.")] = 64,
    key_groups: Annotated[int, typer.Option(help="Key groups.")] = 128,
    mode: Annotated[str, typer.Option(help="continuous or micro-batch.")] = "continuous",
    speed: Annotated[float, typer.Option(help="How much faster to play the trace.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 1,
    time_column: Annotated[str, typer.Option(help="Column of the time.")] = "time",
    time_unit: Annotated[
        str | None,
        typer.Option(help="s, ms, us or ns; default: what such numbers are since 1970, else s."),
    ] = None,
    key_column: Annotated[
        str | None,
        typer.Option(help="Column of the key; default: key, if there is one, else no keys."),
    ] = None,
    count_column: Annotated[
        str | None,
        typer.Option(help="Column of a row's records; default: count, if there is one, else 1."),
    ] = None,
    cost_column: Annotated[
        str | None,
        typer.Option(help="Column of what a record costs, on any scale; default: cost, if any."),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option("--slice", help="For how long a row counts; default: the file's interval."),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, help="micro-batch: cores; default: of this machine.")
    ] = None,
    budget: Annotated[
        str, typer.Option(help="micro-batch: a slot's time per batch: auto, none, or a time.")
    ] = "auto",
    slot_rate: Annotated[
        float | None, typer.Option(help="micro-batch: the records per second a slot may serve.")
    ] = None,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Compare with the fewest slots, the future known.")
    ] = False,
    as_json: Json = False,
    out: Out = None,
    debug: Debug = False,
) -> None:
    """Say what an SLO would cost on your own trace: success and slots, policy by policy."""

    def work() -> dict[str, Any]:
        # Imported late: the kernels are slow to load, and no other command needs them.
        simulation = importlib.import_module("headgate.whatif.simulate")
        file = importlib.import_module("headgate.whatif.trace_file")
        if out is not None:
            plot.check_target(out)
        columns = file.TraceColumns(
            time_column,
            key_column,
            count_column,
            cost_column,
            None if interval is None else parse_duration_s(interval),
            speed,
            time_unit,
        )
        wanted = parse_slo(slo)
        read, records, notes = file.read_log(trace, key_groups, columns, seed=seed)
        what_if = simulation.WhatIf(
            read,
            wanted,
            service_rate,
            slots_max=slots_max,
            seed=seed,
            mode=simulation.mode(mode),
            engine=simulation.engine(wanted, cores, budget, slot_rate),
            records=records,
            oracle=oracle or out is not None,
        )
        result = simulation.simulate(what_if, policies_of(policy), timelines=out is not None)
        if out is not None:
            plot.save(simulation.draw(result), out)
        return {"trace": str(trace), "read_as": "; ".join(notes), **result}

    answer(work, _simulate_lines, as_json=as_json, debug=debug)


def _simulate_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the result with its advice last."""
    plain = {key: value for key, value in result.items() if key != "advice"}
    return [*result_lines(plain), str(result["advice"])]


@app.command(epilog=EXIT_CODES)
def replay(  # noqa: PLR0913, PLR0917 - a command line has many options
    checkpoint: Checkpoint,
    since: Annotated[
        str | None, typer.Option(help="Only what ended within this time before the end.")
    ] = None,
    slots_max: Annotated[int | None, typer.Option(help="What if: most slots.")] = None,
    policy: Annotated[str | None, typer.Option(help="What if: another policy.")] = None,
    slo: Annotated[str | None, typer.Option(help="What if: another SLO.")] = None,
    like: Annotated[
        Path | None, typer.Option(help="Take what batches cost from this checkpoint's run.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 1,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Compare with the fewest slots, the future known.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what a recorded run would have been with fewer slots, another policy or SLO.

    Also simulates the run as it was, and prints by how much the model is wrong about it.
    """

    def work() -> dict[str, Any]:
        recorded = importlib.import_module("headgate.whatif.replay")
        return dict(
            recorded.replay(
                checkpoint,
                since_s=None if since is None else parse_duration_s(since),
                slots_max=slots_max,
                policy_text=policy,
                slo_text=slo,
                like=like,
                seed=seed,
                oracle=oracle,
            )
        )

    answer(work, _replay_lines, as_json=as_json, debug=debug)


def _replay_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the runs side by side, and the error of the model."""
    runs = [{"run": name, **result[name]} for name in ("real", "model", "what_if") if result[name]]
    for run in runs:
        changes = run.pop("changes")
        run["changes"] = ", ".join(f"{n} {kind}" for kind, n in changes.items()) or "none"
    error = result["error"]
    points = error["success_points"]
    about = "unknown" if points is None else f"{points:+.2f} points of success"
    lines = [*table(runs), f"model's error: {about}, {error['slots_percent']:+.1f} % of slots"]
    known = result.get("oracle")
    if known is not None:
        fixed = known["constant_slots"]
        lines.append(
            f"an oracle would need {known['oracle_slots']:.2f} slots, "
            + ("no fixed number is enough" if fixed is None else f"a fixed number {fixed}")
        )
    return lines


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the plain values of a result, and its rows as a table; --json prints all of it."""
    plain = {
        key: value
        for key, value in result.items()
        if isinstance(value, str | int | float) or key in _SHOWN
    }
    width = max(map(len, plain), default=0)
    lines = [
        f"{key:<{width}}  {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in plain.items()
    ]
    return [*lines, *table(result.get("rows", []))]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return flat dicts with the same keys as the lines of a table, numbers to the right."""
    if not rows:
        return []
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = [isinstance(value, str) for value in rows[0].values()]
    return [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, text, strict=True)
        ).rstrip()
        for line in cells
    ]


def _cell(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "-" if value is None else str(value)
