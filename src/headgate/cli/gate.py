"""Checks every word and every value of the command line before a command sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from headgate.cli.answer import BAD_INPUT, error_code, report_error
from headgate.core.input import checked_path, checked_text, finite


class GatedCommand(TyperCommand):
    """Checks that a command's numbers are finite and its paths are possible."""

    def invoke(self, ctx: Any) -> Any:
        """Check the values of the command's parameters, then run the command."""
        for name, value in ctx.params.items():
            option = f"--{name.rstrip('_').replace('_', '-')}"
            for typed in value if isinstance(value, list | tuple) else (value,):
                if isinstance(typed, Path):
                    checked_path(typed)
                elif isinstance(typed, int | float):
                    finite(typed, option)
        return super().invoke(ctx)


class GatedGroup(TyperGroup):
    """Runs commands so that each ends with a documented exit code and one sentence, whatever happens."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that `args` name, and exit; the last resort for unforeseen errors."""
        words = sys.argv[1:] if args is None else list(args)
        try:
            for word in words:
                checked_text(word, "a word of the command line")
            code = super().main(words, prog_name, complete_var, False, windows_expand_args, **extra)
        except SystemExit:
            raise
        except BaseException as error:  # a panic of a native library is no Exception
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(str(error))
                sys.exit(BAD_INPUT)
            report_error(error)
            code = error_code(error)
        sys.exit(code if isinstance(code, int) else 0)


class GatedTyper(typer.Typer):
    """Checks the words and values of all commands of an application."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=GatedGroup, **settings)

    def command(  # type: ignore[override]  # takes what Typer's takes, and chooses the class
        self, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a command."""
        return super().command(name, cls=GatedCommand, **settings)
