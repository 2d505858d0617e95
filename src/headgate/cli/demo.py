"""The commands that start what a try needs beside headgate."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from headgate import scenario as scenarios
from headgate.cli.answer import EXIT_CODES, Debug, answer
from headgate.cli.commands import app
from headgate.cli.gate import GatedTyper

demo = GatedTyper(
    help="What a try needs beside headgate.", no_args_is_help=True, rich_markup_mode=None
)
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
        return scenarios.run_broker(topics, partitions, say)

    answer(work, lambda _: ["the broker has ended"], as_json=False, debug=debug)
