"""Defines the commands that move a query from plain Spark to headgate, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headgate import scenario as scenarios
from headgate.cli.answer import EXIT_CODES, Debug, Json, answer
from headgate.cli.commands import Conf, Options, OutputMode, Packages, app
from headgate.cli.input import directory, parse_conf, parse_options

Query = Annotated[
    str,
    typer.Option(
        help="module:function of a function(spark, ...) that gives hg.writeStream(...) of the query, "
        "not started, or its DataFrame; or a built-in workload."
    ),
]


def _place(what: str) -> Any:
    return typer.Argument(help=what, show_default=False, parser=directory, metavar="PATH")


@app.command(epilog=EXIT_CODES)
def adopt(  # noqa: PLR0913, PLR0917 - a command line has many options
    plain: Annotated[Path, _place("The checkpoint of the plain query, stopped; only read.")],
    checkpoint: Annotated[Path, _place("Where headgate's goes; not there yet.")],
    query: Query,
    option: Options = None,
    output_mode: OutputMode = None,
    conf: Conf = None,
    packages: Packages = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Take over a plain Structured Streaming query: offsets, watermark and state."""

    def work() -> dict[str, Any]:
        settings = parse_conf(conf or (), packages or ())
        options = parse_options(option or ())
        return scenarios.carry_checkpoint(
            "adopt", plain, checkpoint, query, options, settings, output_mode
        )

    answer(work, carried_lines, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def export(  # noqa: PLR0913, PLR0917 - a command line has many options
    checkpoint: Annotated[Path, _place("headgate's checkpoint, its query stopped; only read.")],
    plain: Annotated[Path, _place("Where the plain query's goes; not there yet.")],
    query: Query,
    option: Options = None,
    output_mode: OutputMode = None,
    conf: Conf = None,
    packages: Packages = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a checkpoint from which plain Spark goes on: offsets, watermark and state."""

    def work() -> dict[str, Any]:
        settings = parse_conf(conf or (), packages or ())
        options = parse_options(option or ())
        return scenarios.carry_checkpoint(
            "export", checkpoint, plain, query, options, settings, output_mode
        )

    answer(work, carried_lines, as_json=as_json, debug=debug)


def carried_lines(result: dict[str, Any]) -> list[str]:
    """Return the result of `adopt` or `export` as lines of text."""
    lines = [
        f"{operator['id']:12} {operator['entries']:,} entries of state"
        for operator in result["operators"]
    ]
    lines.append(f"batch        {result['batch']}, watermark {result['watermark_ms']} ms")
    return [*lines, f"checkpoint   {result['checkpoint']}; start the query there"]
