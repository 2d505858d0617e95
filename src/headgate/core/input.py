"""Checks the words that people type and the content of files; refuses bad input in one sentence.

A text may be too long, not finite, too deep or not printable. Command lines, journals, traces,
descriptions of fleets, scenarios and control files all come through these functions, so that each limit
is in one place. See docs/design/0070.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from headgate.core.errors import ConfigError

DEPTH_MAX = 64
"""Most levels of brackets. Chosen: no file of headgate has ten, and Python's stack has a thousand."""

FLOAT_MAX = 1e18
"""Largest number in a file: sums and products of many such numbers stay finite."""

PORT_MAX = 2**16 - 1
WHOLE_MAX = 2**63 - 1
"""Largest whole number: the largest of 64 bits."""

KEY_GROUPS_MAX = 2**15 - 1
"""Most key groups of an operator; a checkpoint numbers them with 16 bits."""

RATE_MAX = 1e9
"""Largest rate, in records per second: a thousand records then have the same microsecond."""

BYTES_MAX = 16 << 20
"""Most bytes of a file that is read as a whole. Chosen: a fleet of a thousand jobs has 0.3 MB."""

TEXT_MAX = 10_000
"""Most characters of one word of a command line."""

_SHOWN = 300
"""Most characters of a user's text that a message quotes."""

_NAME_BYTES_MAX, _PATH_BYTES_MAX = 255, 4095
"""Most bytes of a name and of a path in a POSIX file system."""

_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control characters, invisible characters, those that reverse text, and those without an encoding."""

_MANY_PARTS = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEPTH_MAX}}}"""
)
"""A TOML key of many names with dots. Every part is possessive, so the search takes linear time."""


def escaped(text: str) -> str:
    r"""Return a text safe for a terminal: one line, unprintable characters as ``\x1b``."""
    return _OBEYED.sub(lambda at: at[0].encode("unicode_escape").decode("ascii"), text)


def shown(text: object, most: int = _SHOWN) -> str:
    """Return a user's text as a message may quote it: `escaped`, and not too long.

    `text`: a text, or an object, which ``str`` turns into a text. `most`: most characters; the middle
    of a longer text is left out.
    """
    value = str(text)
    if len(value) > most:
        value = f"{value[: most * 2 // 3]} [...] {value[-(most // 3) :]}"
    return escaped(value)


def checked_text(text: str, what: str, most: int = TEXT_MAX) -> str:
    """Return a text of bounded length without NUL.

    Raises `ConfigError`: `text` has more than `most` characters, or a NUL.
    """
    if len(text) > most:
        msg = f"{what} has {len(text):,} characters; use {most:,} at most."
        raise ConfigError(msg)
    if "\0" in text:
        msg = f'{what} "{shown(text)}" holds a NUL character; leave it out.'
        raise ConfigError(msg)
    return text


def whole(text: str, what: str, low: int = 0, high: int = WHOLE_MAX) -> int:
    """Return the whole number in `text`, from `low` to `high`.

    Raises `ConfigError`: `text` is no whole number, or the number is out of range.
    """
    stripped = text.strip()
    number = int(stripped) if re.fullmatch(r"[+-]?[0-9]{1,30}", stripped) else None
    if number is None or not low <= number <= high:
        msg = (
            f'{what} "{shown(text, 60)}" is out of range; use a whole number from {low} to {high}.'
        )
        raise ConfigError(msg)
    return number


def host_and_port(text: str, what: str) -> tuple[str, int]:
    """Return the host and the port in `text`, such as ``127.0.0.1:9095``.

    Raises `ConfigError`: `text` is no such address.
    """
    host, _, port = text.strip().rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > PORT_MAX:
        msg = f'{what} "{shown(text, 60)}" is no address; give host and port, as 127.0.0.1:9095.'
        raise ConfigError(msg)
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, which only this machine can reach."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def finite(number: float, what: str, low: float = -FLOAT_MAX, high: float = FLOAT_MAX) -> float:
    """Return a number if it is finite and from `low` to `high`; else raise `ConfigError`."""
    if not low <= number <= high:  # no comparison holds for NaN
        msg = f"{what}={shown(number, 60)} is out of range; use a number from {low:g} to {high:g}."
        raise ConfigError(msg)
    return number


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that a file system can have: not too long, and without NUL.

    Raises `ConfigError`: the path is too long, or has a NUL.
    """
    raw = os.fsencode(path)
    names = raw.split(b"/")
    if b"\0" in raw or len(raw) > _PATH_BYTES_MAX or max(map(len, names)) > _NAME_BYTES_MAX:
        why = "holds a NUL character" if b"\0" in raw else "is longer than a path can be"
        msg = f'"{shown(os.fspath(path), 80)}" {why}; name another.'
        raise ConfigError(msg)
    return Path(path)


def is_file(path: Path) -> bool:
    """Return whether a user's path is a regular file; never raises."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_directory(path: Path) -> bool:
    """Return whether a user's path is a directory; never raises."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """Return a descriptor of a regular file, without waiting; a new file has mode 0600.

    `flags`: as `os.open` takes them. `follow`: whether the path may be a symbolic link; use False in a
    directory that other users can write to. Raises `OSError`: the path is a link, no regular file, or
    cannot be opened.
    """
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(error.errno, "it is a symbolic link", str(path)) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def regular_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file that is no symbolic link; raises as `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def open_file(path: str | os.PathLike[str], what: str, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading; refuse a FIFO or a device without waiting for it.

    `path`, `what`: the file, and its name in messages. `follow`: whether the path may be a symbolic
    link, as a path that the user typed may. Raises `ConfigError`: there is no such file, it is no
    regular file, or it cannot be read.
    """
    checked = checked_path(path)
    try:
        return os.fdopen(open_regular(checked, follow=follow), "rb")
    except OSError as error:
        why = error.strerror or str(error)
    msg = f'{what} "{shown(checked)}" cannot be read: {why}; name a file that can.'
    raise ConfigError(msg)


def read_file(
    path: str | os.PathLike[str], what: str, most: int = BYTES_MAX, *, follow: bool = True
) -> bytes:
    """Return the bytes of a regular file of at most `most` bytes.

    Raises `ConfigError`: the cases of `open_file`, or the file is larger.
    """
    try:
        with open_file(path, what, follow=follow) as file:
            raw = file.read(most + 1)
    except OSError as error:
        msg = f'{what} "{shown(path)}" cannot be read: {error.strerror}; name a file that can.'
        raise ConfigError(msg) from error
    if len(raw) > most:
        msg = f'{what} "{shown(path)}" is larger than {most:,} bytes; name another file.'
        raise ConfigError(msg)
    return raw


def read_json(raw: bytes, what: str) -> Any:
    """Return the value of a JSON text whose numbers are finite and whose depth is bounded.

    Raises `ConfigError`: `raw` is not UTF-8 or JSON, is nested too deeply, or has a number out of
    range.
    """
    try:
        return bounded(json.loads(raw, parse_constant=_not_finite), what)
    except RecursionError:
        why = f"it is nested more than {DEPTH_MAX} deep"
    except ValueError as error:
        why = _why(error)
    msg = f"{what} is not JSON: {why}."
    raise ConfigError(msg)


def read_toml(raw: bytes, what: str) -> dict[str, Any]:
    """Return the tables of a TOML text, with the limits of `read_json`.

    Raises `ConfigError`: `raw` is not UTF-8 or TOML, is nested too deeply, or has a number out of
    range.
    """
    try:
        text = raw.decode()
        _check_names(text, what)
        tables: dict[str, Any] = bounded(tomllib.loads(text), what)
        return tables
    except RecursionError:
        why = f"it is nested more than {DEPTH_MAX} deep"
    except ValueError as error:
        why = _why(error)
    msg = f"{what} is not TOML: {why}."
    raise ConfigError(msg)


def bounded(value: Any, what: str) -> Any:
    """Return a value of JSON or TOML if its depth and its numbers are within limits.

    Raises `ConfigError`: `value` is nested too deeply, or has a number that is not finite or too large.
    """
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
            elif isinstance(item, int | float) and not _in_range(item):
                msg = (
                    f"{what} holds the number {shown(item, 60)}, which is out of range; repair it."
                )
                raise ConfigError(msg)
        if not below:
            return value
        level = below
    msg = f"{what} is nested more than {DEPTH_MAX} deep; make it flatter."
    raise ConfigError(msg)


def _why(error: ValueError) -> str:
    # Python's own message about its limit of 4,300 digits proposes to raise that limit.
    many = str(error).startswith("Exceeds the limit")
    return "a number has too many digits" if many else shown(str(error).removesuffix("."))


def _in_range(number: float) -> bool:
    if isinstance(number, int):
        return abs(number) <= WHOLE_MAX
    return math.isfinite(number) and abs(number) <= FLOAT_MAX


def _check_names(text: str, what: str) -> None:
    """Refuse keys of many parts: the time of Python's TOML reader grows with their number squared."""
    if _MANY_PARTS.search(text):
        msg = f"{what} has a key of more than {DEPTH_MAX} parts; make it flatter."
        raise ConfigError(msg)


def _not_finite(name: str) -> NoReturn:
    msg = f"{name} is not a finite number"
    raise ValueError(msg)
