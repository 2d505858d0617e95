"""Parses the texts of the command line into values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import typer

from headgate.core.duration import parse_duration_s
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.input import KEY_GROUPS_MAX, RATE_MAX, finite, read_json, shown, whole
from headgate.core.location import local_path
from headgate.core.stores import store_url


def directory(text: str) -> Path:
    """Return a directory written as a path or as a ``file:`` URI.

    Raises `typer.BadParameter`: the directory is on another file system.
    """
    try:
        return local_path(text, "path")
    except CheckpointError as error:
        raise typer.BadParameter(str(error)) from error


def checkpoint_place(text: str) -> Path:
    """Return a checkpoint's place: a `directory`, or a URL of an object store.

    Raises `typer.BadParameter`: the place is on another file system, or names no key of a store.
    """
    try:
        return directory(text) if store_url(text) is None else Path(text)
    except CheckpointError as error:
        raise typer.BadParameter(str(error)) from error


def checkpoint_text(text: str) -> str:
    """Return the text unchanged; raises what `checkpoint_place` raises."""
    checkpoint_place(text)
    return text


def parse_scale_at(texts: Iterable[str]) -> tuple[tuple[float, int], ...]:
    """Return changes written as ``20s=4`` as pairs of (s, slots), by time.

    Raises `ConfigError`: a text is not TIME=SLOTS, or its time has no unit.
    """
    changes = []
    for text in texts:
        time_text, sign, slots_text = text.partition("=")
        if not sign or not slots_text.strip().isdecimal():
            msg = f'--scale-at "{shown(text, 60)}" is not TIME=SLOTS; write it as 20s=4.'
            raise ConfigError(msg)
        slots = whole(slots_text, "the slots of --scale-at", 1, KEY_GROUPS_MAX)
        changes.append((parse_duration_s(time_text), slots))
    return tuple(sorted(changes))


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Return options written as ``name=value``; numbers, true and false become values of their type.

    Raises `ConfigError`: a text is not NAME=VALUE, a name comes twice, or a number is not finite or
    too large.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip().isidentifier() or len(name) > _NAME_MAX:
            msg = (
                f'--option "{shown(text, 60)}" is not NAME=VALUE, such as hot=100, with a name of '
                "letters, digits and _ (no digit first)."
            )
            raise ConfigError(msg)
        if name.strip() in options:
            msg = f'--option "{name.strip()}" is given twice; give it once.'
            raise ConfigError(msg)
        options[name.strip()] = _literal(value, f"--option {name.strip()}")
    return options


_NAME_MAX = 100

_NUMBER = re.compile(r"\s*(true|false|-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|-?Infinity|NaN)\s*")
"""JSON's numbers and booleans, and what Python writes for numbers that are not finite."""


def _literal(text: str, what: str) -> int | float | bool | str:
    """Return a JSON number or boolean as itself, any other text unchanged."""
    if not _NUMBER.fullmatch(text):
        return text
    value = read_json(text.encode(), what)
    return value if isinstance(value, int | float) else text


def parse_conf(texts: Iterable[str], packages: Iterable[str] = ()) -> dict[str, str]:
    """Return Spark settings written as ``key=value``, and Maven packages as ``spark.jars.packages``.

    Raises `ConfigError`: a text is not KEY=VALUE, a key comes twice, or packages are given as a
    setting as well.
    """
    conf: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not _KEY.fullmatch(key):
            msg = (
                f'--conf "{shown(text, 60)}" is not KEY=VALUE with a key of Spark, such as '
                "spark.sql.shuffle.partitions=8."
            )
            raise ConfigError(msg)
        if key in conf:
            msg = f'--conf "{key}" is given twice; give it once.'
            raise ConfigError(msg)
        _check_setting(key, value)
        conf[key] = value
    wanted = [name.strip() for text in packages for name in text.split(",")]
    for name in wanted:
        if not _PACKAGE.fullmatch(name):
            msg = f'--packages "{shown(name, 60)}" is not of the form GROUP:NAME:VERSION.'
            raise ConfigError(msg)
    if wanted and _PACKAGES in conf:
        msg = f"--packages and --conf {_PACKAGES} are both given; give one."
        raise ConfigError(msg)
    return conf | ({_PACKAGES: ",".join(wanted)} if wanted else {})


def _check_setting(key: str, value: str) -> None:
    """Refuse a value that Spark, or its JVM, would refuse once it starts."""
    for name, form, wanted in _FORMS:
        if name.fullmatch(key) and not form.fullmatch(value.strip()):
            msg = f'--conf {key}="{shown(value, 60)}" is not {wanted}; correct it.'
            raise ConfigError(msg)
    zone = value.strip()
    if key != "spark.sql.session.timeZone" or _OFFSET.fullmatch(zone):
        return
    known = available_timezones()
    if known and zone not in known:  # empty where the system has no time zone database
        msg = (
            f'--conf {key}="{shown(value, 60)}" is not a time zone; name one such as Europe/Paris.'
        )
        raise ConfigError(msg)


MASTER = re.compile(
    r"local(\[([1-9][0-9]{0,3}|\*)(,\s*[1-9][0-9]{0,3})?\])?|local-cluster\[[0-9, ]{5,40}\]|yarn"
    r"|(spark|k8s|mesos)://\S{1,1000}"
)
"""Texts that Spark accepts as a master."""

_OFFSET = re.compile(
    r"(UTC|GMT|UT|Z)?([+-]\d{1,2}(:\d{2}(:\d{2})?)?)?|[A-Z]{3}|System/.+|SystemV/.+"
)
"""Time zones outside the system's database that Java knows: offsets and short names."""

_FORMS = (
    (re.compile(r"spark\.master"), MASTER, "a Spark master such as local[2] or spark://host:7077"),
    (
        re.compile(r"spark\.(driver|executor)\.(memory|memoryOverhead|pyspark\.memory)"),
        re.compile(r"[1-9][0-9]{0,12}([kmgtp]b?|b)?", re.IGNORECASE),
        "a size such as 2g",
    ),
    (
        re.compile(
            r"spark\.(sql\.shuffle\.partitions|default\.parallelism|task\.cpus|task\.maxFailures"
            r"|(driver|executor|cores)\.(cores|max))"
        ),
        re.compile(r"[1-9][0-9]{0,9}"),
        "a whole number of 1 or more",
    ),
    (
        re.compile(r"spark\.executor\.instances|spark\.([a-z]+\.)+port"),
        re.compile(r"[0-9]{1,9}"),
        "a whole number",
    ),
    (
        re.compile(r"spark\.([A-Za-z]+\.)+enabled"),
        re.compile("true|false|auto", re.I),
        "true or false",
    ),
)
"""Well-known settings that Spark reads when it starts: patterns of key and value, and the wanted form."""

_KEY = re.compile(r"spark\.[A-Za-z0-9_.-]{1,200}")
_PACKAGE = re.compile(r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+){2}")
_PACKAGES = "spark.jars.packages"


def number_or_text(text: str | None) -> float | str | None:
    """Return a number where `text` is one, else the text."""
    if text is None:
        return None
    try:
        return finite(float(text), "--rate", 0.0, RATE_MAX)
    except ValueError:
        return text
