"""What people write on the command line, as values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from headgate.core.duration import parse_duration_s
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.location import local_path


def directory(text: str) -> Path:
    """Return a directory written as a path or as a ``file:`` URI.

    Raises
    ------
    typer.BadParameter
        It is on another file system.
    """
    try:
        return local_path(text, "path")
    except CheckpointError as error:
        raise typer.BadParameter(str(error)) from error


def local_text(text: str) -> str:
    """Return the text of a directory for Spark to read; refused where `directory` refuses it."""
    directory(text)
    return text


def parse_scale_at(texts: Iterable[str]) -> tuple[tuple[float, int], ...]:
    """Return changes written as ``20s=4`` as pairs of (s, slots), by time.

    Raises
    ------
    ConfigError
        A text is not TIME=SLOTS, or its time has no unit.
    """
    changes = []
    for text in texts:
        time_text, sign, slots_text = text.partition("=")
        if not sign or not slots_text.strip().isdecimal():
            msg = f'--scale-at "{text}" is not TIME=SLOTS; write it as 20s=4.'
            raise ConfigError(msg)
        changes.append((parse_duration_s(time_text), int(slots_text)))
    return tuple(sorted(changes))


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Return options written as ``name=value``; numbers, true and false become what they look like.

    Raises
    ------
    ConfigError
        A text is not NAME=VALUE, or a name comes twice.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip().isidentifier():
            msg = f'--option "{text}" is not NAME=VALUE; write it as hot=100.'
            raise ConfigError(msg)
        if name.strip() in options:
            msg = f'--option "{name.strip()}" is given twice; give it once.'
            raise ConfigError(msg)
        options[name.strip()] = _literal(value)
    return options


def _literal(text: str) -> int | float | bool | str:
    """Return a JSON number or boolean as itself, any other text unchanged."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text


def number_or_text(text: str | None) -> float | str | None:
    """Return a number where `text` is one, else the text."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text
