"""Defines the command that checks a cluster before a job runs there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.answer import EXIT_CODES, Debug, Json, answer
from headgate.cli.commands import Conf, Packages, app
from headgate.cli.input import MASTER, checkpoint_text, parse_conf
from headgate.core.errors import ConfigError
from headgate.core.input import shown
from headgate.core.size import format_bytes
from headgate.scenario.description import check_place
from headgate.scenario.spark import engine_module


@app.command(epilog=EXIT_CODES)
def doctor(
    master: Annotated[
        str | None, typer.Option(help="Spark master; default: $SPARK_MASTER, else local[*].")
    ] = None,
    state: Annotated[
        str, typer.Option(help="State that a host must be able to hold, with its unit.")
    ] = "1 GB",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Directory that driver and executors must see alike, and that is there, or a store.",
            parser=checkpoint_text,
            metavar="PATH",
        ),
    ] = None,
    contract: Annotated[
        bool,
        typer.Option(
            "--contract",
            help="Only compare the private members of Spark that headgate calls, without a session.",
        ),
    ] = False,
    conf: Conf = None,
    packages: Packages = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check every executor of a cluster, and say what is wrong; exits with 1 if anything is."""

    def work() -> dict[str, Any]:
        if contract:
            return dict(engine_module("headgate.spark.cluster.doctor").check_contract())
        if master is not None and not MASTER.fullmatch(master):
            msg = f'--master "{shown(master, 60)}" is no Spark master; write local[2] or spark://host:7077.'
            raise ConfigError(msg)
        if checkpoint is not None:
            check_place(Path(checkpoint), or_store=True)
        settings = parse_conf(conf or (), packages or ())
        module = engine_module("headgate.spark.cluster.doctor")
        return dict(module.run(master, state=state, checkpoint=checkpoint, conf=settings))

    answer(work, doctor_lines, as_json=as_json, debug=debug)


def doctor_lines(result: dict[str, Any]) -> list[str]:
    """Return the findings of `doctor` as lines of text."""
    if "contract" in result:
        members, minor = result["contract"]["members"], result["contract"]["minor"]
        there = members - len(result["problems"])
        lines = [f"contract  {there} of the {members} members that headgate calls in Spark {minor}"]
        return [*lines, *(f"problem   {text}" for text in result["problems"]), _sound(result)]
    lines = [
        f"executor  {executor['executor']} on {executor['host']}: "
        f"{format_bytes(executor['arena_free_bytes'])} free in {executor['arena'] or 'no directory'}, "
        f"{format_bytes(executor['disk_free_bytes'])} in {executor['disk']}"
        for executor in result["executors"]
    ]
    lines += [f"problem   {text}" for text in result["problems"]]
    lines += [f"advice    {text}" for text in result["advice"]]
    lines += [f"unchecked {text}" for text in result["unchecked"]]
    return [*lines, _sound(result)]


def _sound(result: dict[str, Any]) -> str:
    return "sound     yes" if result["sound"] else "sound     no"
