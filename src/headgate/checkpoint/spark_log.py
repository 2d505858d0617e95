"""Records length and checksum of the files of Spark's log that a restart reads, and checks them.

Below a query of headgate's, Spark writes its log without checksums (`headgate.spark.jvm.logfiles`), and
never changes a file of the log. So a *note* has the length and the CRC-32 of each file that Spark reads
when it restarts from a batch: the query's id, the offsets and commits of this batch and the one before,
and files of sources. Notes are in each manifest, in each intent, and in a file of their own, which the
driver writes between steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.files import read_regular
from headgate.checkpoint.manifest import SOURCES, Manifest, file_name
from headgate.core.errors import CheckpointError
from headgate.core.input import shown

FIELD = "log"
"""Key of a note in an intent, and in `Manifest.engine`."""

STEP = "step"
"""Key of the newest committed step, in the note that has a file of its own."""

_LOGGED = re.compile(
    rf"metadata|(offsets|commits)/[0-9]{{1,19}}|{SOURCES}(/(?!\.\.?(/|$))[^/\0]+)+"
)
"""Files that a note may name: only files of Spark's log."""

_VERSION = "v1"
_WITHOUT = "-"
"""Spark's line for a source that has no offset yet."""


def needed_files(log: Path, batch: int) -> list[str]:
    """Return the files that a restart from a batch may read, as paths below the log's directory."""
    batches = [number for number in (batch - 1, batch) if number >= 0]
    files = ["metadata", *(f"{kind}/{n}" for kind in ("offsets", "commits") for n in batches)]
    for directory, _, names in os.walk(log / SOURCES):
        below = Path(directory).relative_to(log).as_posix()
        files += [f"{below}/{name}" for name in _since_compacted(names)]
    return files


def _since_compacted(names: list[str]) -> list[str]:
    """Return the files of a source's log that Spark reads: the last compacted one, and later ones."""
    plain = [name for name in names if not name.startswith(".") and not name.endswith(".tmp")]
    compacted = [int(n.partition(".")[0]) for n in plain if re.fullmatch(r"\d+\.compact", n)]
    since = max(compacted, default=0)
    return sorted(
        name
        for name in plain
        if not (number := name.partition(".")[0]).isdecimal() or int(number) >= since
    )


def newest_batch(log: Path) -> int:
    """Return the newest batch that Spark has planned, -1 for none."""
    return max(_numbers(log / "offsets"), default=-1)


def newest_commit(log: Path) -> int:
    """Return the newest batch that Spark has committed, -1 for none."""
    return max(_numbers(log / "commits"), default=-1)


class LogNotes:
    """Makes notes of Spark's log in a directory of the driver's."""

    def __init__(self, log: Path) -> None:
        self._log = log.resolve()  # the directory itself may be a link that a user chose
        self._files: dict[str, list[int]] = {}

    def note(self, batch: int) -> dict[str, Any]:
        """Return a note of the files up to a batch that Spark has begun; for one thread at a time."""
        files = {}
        needed = needed_files(self._log, batch)
        # checksum files of Hadoop in a source's log, which Spark reads too
        needed += [_crc_of(path) for path in needed if path.startswith(SOURCES)]
        for path in needed:
            known = self._files.get(path)
            content = read_regular(self._log, path) if known is None else None
            if content is not None:
                known = [len(content), zlib.crc32(content)]
            if known is not None:
                files[path] = known
        self._files = files
        return {"batch": batch, "files": files}


def _crc_of(path: str) -> str:
    below, _, name = path.rpartition("/")
    return f"{below}/.{name}.crc"


def newest_note(checkpoint: Checkpoint, latest: Manifest | None) -> Mapping[str, Any] | None:
    """Return the newest note; None in a checkpoint of an older headgate.

    A note outside the manifests is not forced to disk, so an unreadable one is skipped.
    """
    notes = [latest.engine.get(FIELD)] if latest is not None else []
    with contextlib.suppress(CheckpointError):
        notes.append(checkpoint.read_note())
    with contextlib.suppress(CheckpointError):
        intent = checkpoint.read_intent(0 if latest is None else latest.step + 1) or {}
        notes.append(intent.get(FIELD))
    valid = [note for note in notes if note is not None and _is_note(note)]
    return max(valid, key=lambda note: (note["batch"], len(note["files"])), default=None)


def _is_note(note: Any) -> bool:
    files = note.get("files") if isinstance(note, dict) else None
    return (
        isinstance(files, dict)
        and isinstance(note.get("batch"), int)
        and all(_LOGGED.fullmatch(path) for path in files)
        and all(isinstance(f, list) and [type(n) for n in f] == [int, int] for f in files.values())
    )


def check_log(checkpoint: Checkpoint, latest: Manifest | None) -> None:
    """Refuse to start if Spark's log is not as Spark wrote it.

    A commit may be missing: a driver may die between its sink and Spark's commit. Raises
    `CheckpointError`.
    """
    for problem in problems_in_log(checkpoint, latest, commits=False):
        raise CheckpointError(problem)


def problems_in_log(
    checkpoint: Checkpoint, latest: Manifest | None, *, commits: bool = True
) -> Iterator[str]:
    """Yield one sentence for each problem in the files of Spark's log that a restart reads.

    `checkpoint`: in a directory. `commits`: whether a missing commit is a problem, too.
    """
    log = checkpoint.path.resolve()
    yield from _lost_steps(checkpoint, latest)
    irregular = list(_irregular(log))
    yield from irregular
    offsets, done = _numbers(log / "offsets"), _numbers(log / "commits")
    note = newest_note(checkpoint, latest)
    noted: Mapping[str, Any] = note["files"] if note is not None else {}
    bad = set()
    for path, (length, crc32) in noted.items():
        try:
            content = read_regular(log, path)
        except CheckpointError as error:
            bad.add(path)
            yield str(error)
            continue
        if content is None:
            needless = path.endswith(".crc") or (path.startswith("commits/") and not commits)
            if not needless and _is_read(path, offsets):
                bad.add(path)
                yield _missing(log / path)
        elif len(content) != length or zlib.crc32(content) != crc32:
            bad.add(path)
            yield _damaged(log / path, "it is not as Spark wrote it")
    if not bad and not irregular:
        yield from _problems_unnoted(log, offsets, done, noted, latest)


def _lost_steps(checkpoint: Checkpoint, latest: Manifest | None) -> Iterator[str]:
    """Yield a problem if the newest manifest is not the last one that was committed."""
    if latest is None:
        return  # see `headgate.spark.step.recovery`
    with contextlib.suppress(CheckpointError):
        step = (checkpoint.read_note() or {}).get(STEP)
        if isinstance(step, int) and step > latest.step:
            yield _missing(Path(checkpoint.files.at(f"manifests/{file_name(step)}")))


def _irregular(log: Path) -> Iterator[str]:
    """Yield the first entry that is no regular file or directory: Spark would follow it, or wait."""
    directories = [
        "offsets",
        "commits",
        SOURCES,
        *(f"{SOURCES}/{n}" for n in _entries(log / SOURCES)),
    ]
    files = ["metadata", *needed_files(log, newest_batch(log))]
    for path, right in [
        *((d, stat.S_ISDIR) for d in directories),
        *((f, stat.S_ISREG) for f in files),
    ]:
        try:
            mode = os.lstat(log / path).st_mode
        except OSError:
            continue
        if not right(mode):
            what = "directory" if right is stat.S_ISDIR else "regular file"
            yield _damaged(log / path, f"it is no {what}")
            return


def _is_read(path: str, offsets: list[int]) -> bool:
    """Return whether Spark still reads a file; Spark removes the files of old batches."""
    kind, _, name = path.partition("/")
    return kind not in ("offsets", "commits") or int(name) >= max(offsets, default=0) - 1


def _problems_unnoted(
    log: Path,
    offsets: list[int],
    done: list[int],
    noted: Mapping[str, Any],
    latest: Manifest | None,
) -> Iterator[str]:
    """Yield problems of files without a note: of an older headgate, or newer than the note."""
    newest = max(offsets, default=-1)
    if done and done[-1] > newest:
        yield _missing(log / f"offsets/{done[-1]}")
        return
    if not offsets:
        return
    for path in ["metadata", *(f"offsets/{n}" for n in range(max(newest - 1, 0), newest + 1))]:
        if not os.path.lexists(log / path):
            yield _missing(log / path)
            return
    begun: dict[int, Mapping[str, Any]] = {}
    ended: dict[int, Mapping[str, Any]] = {}
    for kind, notes in (("offsets", begun), ("commits", ended)):
        for number in (newest - 1, newest):
            if number not in (offsets if kind == "offsets" else done):
                continue
            try:
                notes[number] = _notes_in(log, f"{kind}/{number}")
            except CheckpointError as error:
                yield str(error)
                return
    try:
        json.loads(read_regular(log, "metadata") or b"")["id"]
    except (CheckpointError, ValueError, TypeError, KeyError, RecursionError):
        yield _damaged(log / "metadata", "it has no id of a query")
        return
    follows = ended.get(newest - 1, {}).get("nextBatchWatermarkMs")
    planned = f"offsets/{newest}"
    watermark = begun[newest].get("batchWatermarkMs")
    if planned not in noted and None not in (follows, watermark) and follows != watermark:
        yield (
            f"{log / planned} begins at the watermark {watermark} where batch {newest - 1} ended at "
            f"{follows}: one of the two is damaged; restore the checkpoint from a copy."
        )
    if latest is not None and f"offsets/{latest.spark_batch}" not in noted:
        yield from _unlike(log, latest)
    if latest is not None:
        yield from _uncovered(log, done, latest)


def _unlike(log: Path, latest: Manifest) -> Iterator[str]:
    """Yield differences between the log and the newest manifest, for the manifest's batch."""
    path = f"offsets/{latest.spark_batch}"
    sources = _offsets_in(log, path)
    if sources is None:
        return  # Spark has not written the batch, or has removed it: see `headgate.spark.step.recovery`
    wanted = latest.engine.get("sources")
    if wanted is not None and sources != wanted:
        yield _damaged(log / path, "it has other offsets than headgate's manifest of that batch")
    evict_us = latest.watermarks.get("evict_us")
    at_ms = _notes_in(log, path).get("batchWatermarkMs", 0)
    if evict_us is not None and at_ms * 1000 > evict_us:
        yield _damaged(log / path, "it has a later watermark than headgate's manifest")


def _uncovered(log: Path, done: list[int], latest: Manifest) -> Iterator[str]:
    """Yield the first batch with new data that Spark has committed after the newest manifest."""
    for number in done:
        path = f"offsets/{number}"
        sources = _offsets_in(log, path) if number > latest.spark_batch else None
        if sources is not None and sources != latest.engine.get("sources", sources):
            yield (
                f"{shown(log / path)} has data that no manifest of headgate covers, the newest being of "
                f"batch {latest.spark_batch}: restore the whole checkpoint from one copy."
            )
            return


def _offsets_in(log: Path, path: str) -> list[str] | None:
    """Return the offsets of each source in a file of Spark's log, "" for none; None without the file."""
    content = read_regular(log, path)
    if content is None:
        return None
    lines = content.decode(errors="replace").split("\n")
    return ["" if line == _WITHOUT else line for line in lines[2:-1]]


def _notes_in(log: Path, path: str) -> Mapping[str, Any]:
    """Return the JSON in the second line of a file of Spark's log."""
    content = read_regular(log, path) or b""
    version, *lines = content.split(b"\n")
    if version != _VERSION.encode() or not lines:
        if re.fullmatch(rb"v[0-9]{1,3}", version):
            return {}  # the format of a newer Spark, which reads it itself
        raise _error(log / path, f'it does not begin with "{_VERSION}"')
    try:
        notes = json.loads(lines[0])
    except (ValueError, RecursionError):
        notes = None
    if not isinstance(notes, dict) or (path.startswith("offsets/") and len(lines) < 2):  # noqa: PLR2004
        raise _error(log / path, "it is cut or no JSON")
    for key in ("batchWatermarkMs", "nextBatchWatermarkMs"):
        if not isinstance(notes.get(key, 0), int):
            raise _error(log / path, f"{key} is no number")
    return notes


def _numbers(directory: Path) -> list[int]:
    return sorted(int(name) for name in _entries(directory) if name.isdecimal())


def _entries(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _missing(file: Path) -> str:
    return (
        f"{shown(file)} is missing, which a restart reads: restore the checkpoint from a copy, or begin "
        "with a new checkpointLocation."
    )


def _damaged(file: Path, why: str) -> str:
    return (
        f"{shown(file)} is damaged ({why}): restore the checkpoint from a copy, or begin with a new "
        "checkpointLocation."
    )


def _error(file: Path, why: str) -> CheckpointError:
    return CheckpointError(_damaged(file, why))
