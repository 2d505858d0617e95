"""Reads the files of Spark's own log of a streaming query, and writes such files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headgate.checkpoint.files import unwritable
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.input import read_file, read_json, regular_bytes, shown
from headgate.core.stores import store_url

_VERSION = "v1"
_NOTHING = "-"
"""Spark's entry for a source without an offset so far."""

_TICK = "0"
"""First offset of headgate's own source, the tick."""

_WATERMARK = "nextBatchWatermarkMs"


@dataclass(frozen=True)
class LogEntry:
    """Holds a batch of Spark's log."""

    batch: int
    """Number of the batch."""
    notes: dict[str, Any]
    """Spark's metadata at the beginning of the batch: ``batchWatermarkMs``, ``batchTimestampMs``,
    ``conf``."""
    offsets: list[str]
    """End offset of each source, as Spark's JSON; ``-`` for a source without an offset."""
    next_watermark_ms: int
    """The watermark that Spark computed after the batch."""

    @property
    def watermark_us(self) -> int:
        """The watermark of the batch."""
        return int(self.notes["batchWatermarkMs"]) * 1000

    @property
    def sources(self) -> list[str]:
        """The offsets in the form of manifests."""
        return ["" if offset == _NOTHING else offset for offset in self.offsets]


def newest(path: Path) -> LogEntry:
    """Return the newest batch of a plain checkpoint, which Spark has committed.

    Raises `CheckpointError`: there is no checkpoint, it is headgate's, its newest batch is not
    committed, or its log has an unknown form.
    """
    if not (path / "metadata").is_file():
        msg = (
            f'{path} is no checkpoint of a Spark query: it has no file "metadata"; check the path.'
        )
        raise CheckpointError(msg)
    if (path / "headgate").exists():
        msg = f"{path} is a checkpoint of headgate's already; start its query."
        raise CheckpointError(msg)
    begun, committed = _numbers(path / "offsets"), _numbers(path / "commits")
    if not committed:
        msg = f"{path} has no committed batch, so there is nothing to take over; start anew."
        raise CheckpointError(msg)
    if begun[-1:] != committed[-1:]:
        msg = (
            f"{path} ends within batch {begun[-1] if begun else committed[-1]}; start the plain query "
            "once more, so that it commits that batch, stop it and try again."
        )
        raise CheckpointError(msg)
    return entry(path, committed[-1])


def newest_of_ours(path: Path) -> LogEntry:
    """Return the newest committed batch of headgate's checkpoint, without headgate's own source.

    Raises `CheckpointError`: there is no committed batch.
    """
    committed = _numbers(path / "commits")
    if not committed:
        msg = f"{path} has no batch that Spark has committed; stop the query once it has one."
        raise CheckpointError(msg)
    newest = entry(path, committed[-1])
    return replace(newest, offsets=newest.offsets[:-1])


def entry(path: Path, batch: int) -> LogEntry:
    """Return a batch of Spark's log.

    Raises `CheckpointError`: the entry is missing, damaged, or has an unknown form.
    """
    _, notes, *offsets = _lines(path / "offsets" / str(batch))
    commit = _lines(path / "commits" / str(batch))
    fields, done = _json(path, notes), _json(path, commit[1])
    if "batchWatermarkMs" not in fields:
        msg = (
            f'{path} has no "batchWatermarkMs" in its log: a Spark before 2.2 wrote it, or it is '
            "damaged; restore it from a copy, or start anew."
        )
        raise CheckpointError(msg)
    _check_settings(path, fields)
    return LogEntry(batch, fields, offsets, int(done.get(_WATERMARK, 0)))


_STATE = "org.apache.spark.sql.execution.streaming.state"
_CLASSES = {
    "spark.sql.streaming.stateStore.providerClass": (
        f"{_STATE}.HDFSBackedStateStoreProvider",
        f"{_STATE}.RocksDBStateStoreProvider",
    ),
    "spark.sql.streaming.stateStore.compression.codec": ("lz4", "lzf", "snappy", "zstd"),
}
"""Settings in the log for which Spark loads a class, with their allowed values."""


def _check_settings(path: Path, notes: dict[str, Any]) -> None:
    """Refuse a log whose settings name a class that is not Spark's own."""
    conf = notes.get("conf", {})
    for key, allowed in _CLASSES.items():
        value = conf.get(key, allowed[0]) if isinstance(conf, dict) else ""
        if value not in allowed:
            msg = (
                f'{path} says {key}="{shown(value, 80)}" in its log, and headgate loads no class that '
                f"only a checkpoint names; use one written with {' or '.join(allowed)}."
            )
            raise CheckpointError(msg)


_USERS_TYPE = re.compile(rb'"(?:..)?u(?:..)?d(?:..)?t(?:..)?"|\\u[0-9a-fA-F]{4}', re.DOTALL)
"""Matches a user-defined type in a schema of Spark's state, also with two bytes between the letters, and
any escaped character, behind which its name could hide; Spark escapes none itself."""


def check_types(path: Path) -> None:
    """Refuse state whose schema names a class: Spark would load it, and PySpark import its module.

    Raises `CheckpointError`.
    """
    for directory, _, names in os.walk(path / "state"):
        if not any(part.startswith("_") for part in Path(directory).relative_to(path).parts):
            continue
        for name in names:
            raw = read_file(Path(directory) / name, "a schema of the state")
            if _USERS_TYPE.search(raw):
                msg = (
                    f"{Path(directory) / name} has a user-defined type, and headgate loads no class that "
                    "only a checkpoint names; adopt a query whose state has Spark's own types."
                )
                raise CheckpointError(msg)


def check_sources(path: Path, newest: LogEntry, wanted: range) -> None:
    """Refuse a checkpoint whose number of sources differs from the query's.

    Raises `CheckpointError`.
    """
    if len(newest.offsets) not in wanted:
        msg = (
            f"{path} has offsets of {len(newest.offsets)} sources where the query has "
            f"{wanted[-1]}; give the query that wrote it."
        )
        raise CheckpointError(msg)


def begin(path: Path, newest: LogEntry, *, ticks: bool) -> None:
    """Write Spark's log entries of the beginning of a batch and of the batch before it.

    `ticks`: whether headgate's own source is the last source.
    """
    lines = [_VERSION, json.dumps(newest.notes, separators=(",", ":")), *newest.offsets]
    # a start also reads the offsets of the previous batch, even if the last batch is committed
    for number in range(max(newest.batch - 1, 0), newest.batch + 1):
        _put(path / "offsets" / str(number), [*lines, _TICK] if ticks else lines)


def commit(path: Path, newest: LogEntry) -> None:
    """Write Spark's log entry of a batch's commit."""
    done = json.dumps({_WATERMARK: newest.next_watermark_ms}, separators=(",", ":"))
    _put(path / "commits" / str(newest.batch), [_VERSION, done])


def copy_beside(origin: Path, target: Path) -> None:
    """Copy a log without offsets and commits: the query's id, and the files of sources.

    Raises `CheckpointError`: a file is a symbolic link, which Spark never writes, and which would copy
    another file.
    """
    for file in (origin / "metadata", origin / "sources", *(origin / "sources").rglob("*")):
        if file.is_symlink():
            msg = f"{file} is a symbolic link, which no checkpoint has; copy what it should hold."
            raise CheckpointError(msg)
    shutil.copyfile(origin / "metadata", target / "metadata")
    if (origin / "sources").is_dir():
        shutil.copytree(origin / "sources", target / "sources")


def refuse_store(location: str) -> None:
    """Refuse a store as the location of plain Spark's checkpoint.

    Raises `CheckpointError`.
    """
    if store_url(location) is not None:
        msg = f"{location} lies on a store, and only a directory can be converted; name one."
        raise CheckpointError(msg)


def refuse_within(path: Path, origin: Path) -> None:
    """Refuse a target directory inside the checkpoint `origin`, which is only read.

    Raises `CheckpointError`.
    """
    if origin.resolve() in path.resolve().parents:
        msg = f"{path} lies in the checkpoint {origin}, which is only read; name a directory elsewhere."
        raise CheckpointError(msg)


def refuse_used(path: Path) -> None:
    """Refuse a target directory that is not empty; raises `CheckpointError`."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        msg = f"{path} is there already and not empty; name a new directory."
        raise CheckpointError(msg)


@contextmanager
def fresh(path: Path) -> Iterator[None]:
    """Create a directory within the context; remove it if the context fails.

    Raises `CheckpointError`: the directory exists and is not empty.
    """
    refuse_used(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise unwritable(path, error.strerror or str(error)) from error
        raise


def _numbers(directory: Path) -> list[int]:
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def _lines(file: Path) -> list[str]:
    try:
        lines = regular_bytes(file).decode().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{file} cannot be read ({error}); restore the checkpoint from a copy."
        raise CheckpointError(msg) from error
    if lines == [_VERSION]:
        msg = f"{file} ends behind its first line; restore the checkpoint from a copy."
        raise CheckpointError(msg)
    if lines[0] != _VERSION:
        version = shown(lines[0], 20)
        msg = f'{file} has the form "{version}" of Spark\'s log, and only {_VERSION} is read.'
        raise CheckpointError(msg)
    return lines


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        value = read_json(text.encode(), "its log")
    except ConfigError as error:
        why = str(error).removesuffix(".")
        msg = f"{path} has a damaged log ({why}); restore the checkpoint from a copy."
        raise CheckpointError(msg) from error
    return value if isinstance(value, dict) else {}


def _put(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    file.write_text("\n".join(lines), encoding="utf-8")
