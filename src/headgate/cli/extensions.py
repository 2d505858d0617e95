"""Loads the commands that other distributions add by the entry point group ``headgate.commands``."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

from headgate.cli.answer import EXIT_CODES, answer
from headgate.core.errors import ConfigError
from headgate.core.input import shown

GROUP = "headgate.commands"
_ELSEWHERE = {
    "figure": ("Run a paper's figure on the simulator", "the laboratory", "./demo ./lab"),
    "bench": ("Measure headgate on this machine", "the laboratory", "./demo ./lab"),
    "demo": ("Start what a try needs beside headgate", "headgate-demo", "./demo"),
}
"""Commands of this project's other distributions: purpose, distribution, directories of a checkout."""


def load(app: typer.Typer) -> None:
    """Let each installed extension add its commands; stand in for missing ones of this project."""
    for extension in entry_points(group=GROUP):
        try:
            extension.load()(app)
        except Exception as error:  # code of another distribution: the other commands still work
            why = shown(f"{type(error).__name__}: {error}")
            typer.echo(f"headgate: commands of {extension.value} cannot be loaded: {why}", err=True)
    there = {
        command.name or getattr(command.callback, "__name__", "")
        for command in app.registered_commands
    } | {group.name for group in app.registered_groups}
    for name, (purpose, place, package) in _ELSEWHERE.items():
        if name not in there:
            install = f"in a checkout of headgate, pip install {package}"
            _stand_in(app, name, f"{purpose} ({install}).", f"{place}: {install}")


def _stand_in(app: typer.Typer, name: str, what: str, where: str) -> None:
    """Add a command that names the package to install, whatever its arguments."""

    def missing(
        given: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    ) -> None:
        def work() -> dict[str, str]:
            msg = f"headgate {name} is in {where}"
            raise ConfigError(msg)

        answer(work, lambda _: [], as_json="--json" in (given or ()), debug=False)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=what, epilog=EXIT_CODES, context_settings=settings)(missing)
