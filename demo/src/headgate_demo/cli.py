"""Adds ``headgate demo`` to the command line, which starts a local Kafka broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from headgate.cli.answer import EXIT_CODES, Debug, answer
from headgate.cli.gate import GatedTyper
from headgate.scenario.run import interrupts
from headgate.scenario.spark import engine_module

demo = GatedTyper(
    help="What a try needs beside headgate.", no_args_is_help=True, rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.add_typer(demo, name="demo")


@demo.callback()
def only_its_commands() -> None:
    """Have `headgate demo` ask for one of its commands, though there is one only."""


@demo.command(epilog=EXIT_CODES)
def kafka(
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic to make; repeatable; default: clicks, counts.")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Partitions of each.")] = 3,
    debug: Debug = False,
) -> None:
    """Run a Kafka broker of one process on this machine until Ctrl-C; its data go with it."""
    topics = topic or ["clicks", "counts"]

    def say(servers: str) -> None:
        sys.stdout.write(
            f"kafka.bootstrap.servers  {servers}\n"
            f"topics                   {', '.join(topics)}\n"
            "Ctrl-C ends the broker and removes its data.\n"
        )
        sys.stdout.flush()

    def work() -> dict[str, Any]:
        return run_broker(topics, partitions, say)

    answer(work, lambda _: ["the broker has ended"], as_json=False, debug=debug)


def run_broker(
    topics: Sequence[str], partitions: int, on_start: Callable[[str], None]
) -> dict[str, Any]:
    """Run a broker on loopback with some topics until SIGINT, then delete its data.

    Parameters
    ----------
    partitions : int
        Partitions of each topic.
    on_start : callable
        Called with the value for ``kafka.bootstrap.servers`` when the broker answers.
    """
    broker = engine_module("headgate_demo.spark.broker").Broker
    made = engine_module("headgate_demo.spark.topics")
    with interrupts() as interrupted, broker() as running:
        for topic in topics:
            made.make_topic(running.servers, topic, partitions)
        on_start(running.servers)
        while running.runs and not interrupted.wait(0.2):
            pass
        return {"servers": running.servers, "topics": list(topics)}
