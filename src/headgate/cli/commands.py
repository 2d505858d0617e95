"""Defines the commands that run a workload, show a query, and compare results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headgate import __version__
from headgate import scenario as scenarios
from headgate.cli.answer import EXIT_CODES, Checkpoint, Debug, Json, RequireSlo, answer
from headgate.cli.gate import GatedTyper
from headgate.cli.input import (
    checkpoint_place,
    directory,
    number_or_text,
    parse_conf,
    parse_options,
    parse_scale_at,
)
from headgate.core.duration import parse_duration_s
from headgate.journal.writer import wall_clock_ms
from headgate.report.display import Display
from headgate.report.finish import finish_lines, inspection_lines, verification_lines
from headgate.report.live import frame, told_at
from headgate.report.plot import write_picture
from headgate.report.run import Run
from headgate.report.summary import summary
from headgate.report.svg import WIDTH, render_svg

app = GatedTyper(
    help=f"Elastic stateful streaming queries on Apache Spark.\n\n{EXIT_CODES}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Workload = Annotated[str, typer.Argument(help="A built-in workload, or module:function.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Argument of the workload; repeatable."),
]

OutputMode = Annotated[
    str | None, typer.Option(help="append, update or complete; default: the workload's own.")
]
MemoryMax = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Most memory for state on a host, such as '500 MB'."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Setting of the Spark session; repeatable."),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--packages", metavar="GROUP:NAME:VERSION", help="Spark package from Maven; repeatable."
    ),
]


@app.command(epilog=EXIT_CODES)
def run(  # noqa: PLR0913, PLR0917 - a command line has many options
    workload: Workload,
    rate: Annotated[
        str | None,
        typer.Option(help="Rate of generated records: a number per second, or 'sine(...)'."),
    ] = None,
    speed: Annotated[float | None, typer.Option(help="Speed-up of a trace (sdsc).")] = None,
    duration: Annotated[
        str, typer.Option(help="Length of the run from the first committed batch, such as 60s.")
    ] = "60s",
    slots: Annotated[int, typer.Option(help="Slots at the start.")] = 2,
    scale_at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIME=SLOTS",
            help="Slots at a time after the first committed batch, such as 20s=4; repeatable.",
        ),
    ] = None,
    key_groups: Annotated[int, typer.Option(help="Key groups per operator.")] = 128,
    budget: Annotated[
        str | None, typer.Option(help="Time budget of a slot per batch, such as '800 ms'.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(help="Objective to meet, such as 'mean < 1 s over 1 s'; repeatable."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Policy for slots, such as 'streamswitch(0.2, cooldown_s=30)'."),
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="Record the policy's decisions, and change no slots.")
    ] = False,
    slots_max: Annotated[int | None, typer.Option(help="Most slots a policy may use.")] = None,
    slot_rate: Annotated[
        float | None, typer.Option(help="Experiment: records a slot serves per second.")
    ] = None,
    migration: Annotated[
        str | None,
        typer.Option(help="Migration strategy, such as 'subscale(per_host=4)' or 'fluid'."),
    ] = None,
    floor: Annotated[
        str | None,
        typer.Option(help="Experiment: latency floor in place of the measured one, such as '0 s'."),
    ] = None,
    memory_max: MemoryMax = None,
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Run in real time, and not in micro-batches.")
    ] = False,
    require_slo: RequireSlo = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the load generator.")] = 1,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with Spark's batch answer afterwards.")
    ] = False,
    as_json: Json = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint; default: a new temporary directory.",
            parser=checkpoint_place,
            metavar="PATH",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output; default: beside the checkpoint.", parser=directory, metavar="PATH"
        ),
    ] = None,
    sink_format: Annotated[
        str | None, typer.Option("--format", help="Format of the output.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Table for the output, instead of a directory."),
    ] = None,
    option: Options = None,
    output_mode: OutputMode = None,
    arrival: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the time a record became available (an SLO needs it).",
        ),
    ] = None,
    conf: Conf = None,
    packages: Packages = None,
    debug: Debug = False,
) -> None:
    """Run a workload for a while, change its slots on the way, and print what happened.

    Ctrl-C ends the run early and cleanly.
    """

    def work() -> dict[str, Any]:
        scenario = scenarios.Scenario(
            workload=workload,
            rate=number_or_text(rate),
            speed=speed,
            duration_s=parse_duration_s(duration),
            slots=slots,
            scale_at=parse_scale_at(scale_at or ()),
            key_groups=key_groups,
            budget=budget,
            slo=tuple(slo or ()),
            policy=policy,
            advise=advise,
            slots_max=slots_max,
            slot_rate=slot_rate,
            migration=migration,
            floor=floor,
            memory_max=memory_max,
            real_time=real_time,
            require_slo=require_slo,
            seed=seed,
            verify=verify,
            options=parse_options(option or ()),
            checkpoint=checkpoint,
            output=out,
            sink_format=sink_format,
            table=table,
            output_mode=output_mode,
            arrival=arrival,
            conf=parse_conf(conf or (), packages or ()),
        )
        with Display(Console(stderr=as_json), planned_s=scenario.duration_s) as display:
            return scenarios.run_scenario(scenario, display.update)

    answer(work, finish_lines, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def explain(  # noqa: PLR0913, PLR0917 - a command line has many options
    workload: Workload,
    option: Options = None,
    conf: Conf = None,
    packages: Packages = None,
    output_mode: OutputMode = None,
    memory_max: MemoryMax = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Location of the query's checkpoint; explain adds the costs of a store.",
            parser=checkpoint_place,
            metavar="PATH",
        ),
    ] = None,
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Also say whether the query can run in real time.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Say which parts of a query can run elastically; exit with 2 if headgate cannot run the query."""

    def work() -> dict[str, Any]:
        settings = parse_conf(conf or (), packages or ())
        options = parse_options(option or ())
        text = scenarios.explain_workload(
            workload,
            options,
            settings,
            output_mode,
            memory_max,
            checkpoint,
            real_time=real_time,
        )
        return {"text": text, "refused": text.startswith("not elastic")}

    answer(work, lambda result: result["text"].splitlines(), as_json=False, debug=debug)


@app.command(epilog=EXIT_CODES)
def status(
    checkpoint: Checkpoint,
    as_json: Json = False,
    svg: Annotated[Path | None, typer.Option(help="Write the view as a picture.")] = None,
    require_slo: RequireSlo = False,
    debug: Debug = False,
) -> None:
    """Show a query, running or dead, from its journal alone."""

    def work() -> dict[str, Any]:
        journal = scenarios.journal_at(checkpoint)
        if svg is not None:
            write_picture(svg, render_svg(journal))
        result = {**summary(journal), "checkpoint": scenarios.written(checkpoint)}
        if require_slo:
            result["slo_met"] = bool(result["slo"] and result["slo"]["met"])
        return result

    def show(result: dict[str, Any]) -> list[str]:
        run_read, console = Run.read(result["journal"]), Console()
        width = console.width
        if not sys.stdout.isatty():  # as wide as the picture, and no line is cut
            width, console = WIDTH, Console(width=10 * WIDTH)
        console.print(frame(run_read, now_ms=wall_clock_ms(), width=width))
        return [
            *told_at(run_read, scenarios.written(checkpoint)),
            *([] if svg is None else [f"picture written to {svg}"]),
        ]

    answer(work, show, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def inspect(
    checkpoint: Checkpoint,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and check its checksum.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what a checkpoint holds and what a restart would read; damage exits with 1."""

    def work() -> dict[str, Any]:
        return scenarios.inspect(checkpoint, verify=verify)

    answer(work, inspection_lines, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def verify(  # noqa: PLR0913, PLR0917 - a command line has many options
    checkpoint: Checkpoint,
    workload: Annotated[
        str | None,
        typer.Argument(
            help="Workload; default: the built-in one that the checkpoint records. A function is "
            "called only where it is named here."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output; default: NAME-output beside the checkpoint.",
            parser=directory,
            metavar="PATH",
        ),
    ] = None,
    sink_format: Annotated[
        str | None, typer.Option("--format", help="Format of the output; default: parquet.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="Table with the output, not a directory.")
    ] = None,
    option: Options = None,
    output_mode: OutputMode = None,
    conf: Conf = None,
    packages: Packages = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare a finished run's output with Spark's batch answer on the same input."""

    def work() -> dict[str, Any]:
        scenario = scenarios.to_verify(
            checkpoint,
            workload=workload,
            output=out,
            options=parse_options(option or ()),
            conf=parse_conf(conf or (), packages or ()),
            sink_format=sink_format,
            table=table,
            output_mode=output_mode,
        )
        left = scenarios.settings_not_taken(scenario)
        result = scenarios.verify_scenario(scenario)
        return {**result, "checkpoint": str(checkpoint), "settings_not_taken": left}

    answer(work, verification_lines, as_json=as_json, debug=debug)


@app.command()
def version() -> None:
    """Print the version of headgate."""
    typer.echo(__version__)


def main() -> None:
    """Run the command line."""
    app()
