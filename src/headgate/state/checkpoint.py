"""A checkpoint: the files from which a job starts again, and the chains of sections in them.

::

    <path>/headgate/identity.json     whose checkpoint this is
                    intents/          what a step is about to do
                    manifests/        what a step did: the commit point
                    changelog/ output/ backlog/ late/    files that manifests name

Nothing is found by listing but the newest manifest; what no manifest names is garbage.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from headgate.core.errors import CheckpointError
from headgate.core.input import shown
from headgate.core.location import local_path
from headgate.state.changelog import Blob, decode, open_blob
from headgate.state.files import (
    checked_file_name,
    make_directory,
    map_bytes,
    names_in,
    read_bytes,
    unwritable,
    write_bytes,
)
from headgate.state.garbage import Garbage
from headgate.state.manifest import (
    FORMAT,
    KINDS,
    NO_STEP,
    READABLE,
    BlobEntry,
    Manifest,
    damaged,
    file_name,
    json_line,
    sealed,
    unsealed,
)
from headgate.state.manifest import decode as decode_manifest
from headgate.state.manifest import encode as encode_manifest
from headgate.state.ports import Chain, Section

Value = TypeVar("Value")

_DIRECTORIES = ("intents", "manifests", *KINDS)
_STEP_DIGITS = 12
_CACHE_BYTES = 64 << 20
"""Bytes of manifests and of blobs kept after reading. Walking the chains of a slot's key groups meets
each of the last 33 manifests once per group: with room for all of them 94 in 100 reads are of what is
kept, with room for fewer almost none (measured; docs/design/0072). This holds 33 files of 1 MB."""

_OBJECTS_PER_BYTE = 2
"""What a manifest takes once it is read, for each byte of its file; as measured there."""

_KEPT_S = 60.0
"""How long it is kept when nobody reads any more. Chosen: a migration's errands follow each other within
a second or two."""

_MAPPED_FOR_ONE = 32
"""So many mapped bytes count as one that is kept: addresses, and pages that the system may take. A slot
that is rebuilt walks the chains of its key groups one after the other, and each goes through every
large file of the past."""


def due_for_snapshot(group: int, step: int, every: int) -> bool:
    """Return whether `group` writes a full section in `step`, if it writes one at all.

    Each group is due once in `every` steps, and about as many groups in each step. A group that is
    due should write even if the step left it alone, unless its newest section is full already: else
    one that is touched at the wrong moments only never gets a snapshot.
    """
    return (step + group) % every == 0


class Checkpoint:
    """The checkpoint at a path. Making one reads and writes nothing: executors make their own.

    Parameters
    ----------
    path : str or path    Spark's ``checkpointLocation``; a POSIX path or a ``file:`` URI.

    Raises
    ------
    CheckpointError    It names another file system.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = local_path(path)
        self.root = self.path / "headgate"
        self._job: str | None = None
        self._manifests: _Recent[Manifest] = _Recent(_CACHE_BYTES)
        self._blobs: _Recent[Blob] = _Recent(_CACHE_BYTES)
        self._read_s = time.monotonic()
        self._garbage = Garbage(self.root, self.read)

    # Opening.

    def open(self, identity: Mapping[str, Any]) -> str:
        """Create the checkpoint, or check that it belongs to this query; return the job's uuid.

        Called by the driver, before anything else.

        Parameters
        ----------
        identity : mapping    What must never change, as JSON; for instance ``keys``, ``groups``.

        Raises
        ------
        CheckpointError    It belongs to another query, to plain Spark, or cannot be written.
        """
        if not self.root.exists():
            self._refuse_plain_spark()
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise unwritable(self.path, error.strerror) from error
        for directory in (self.root, *(self.root / name for name in _DIRECTORIES)):
            make_directory(directory)
        if not (self.root / "identity.json").exists():
            self._create_identity(identity)
        found = self.identity()
        _compare(found["query"], json.loads(json_line(identity)), "")
        self._job = str(found["job"])
        return self._job

    def identity(self) -> dict[str, Any]:
        """Return what ``identity.json`` holds: ``format``, ``job``, ``query``."""
        name = str(self.root / "identity.json")
        content, _ = unsealed(read_bytes(self.root, "identity.json"), name)
        try:
            found: dict[str, Any] = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise damaged(name, shown(repr(error), 80)) from error
        if not isinstance(found, dict) or "format" not in found:
            raise damaged(name, "it lacks format")
        if found["format"] not in READABLE:
            written = shown(found["format"], 40)
            msg = f"{name} has format {written}, this headgate reads {FORMAT}: upgrade it"
            raise CheckpointError(msg)
        if not {"job", "query"} <= found.keys():
            raise damaged(name, "it lacks job or query")
        return found

    def _create_identity(self, identity: Mapping[str, Any]) -> None:
        if names_in(self.root / "manifests"):
            msg = f"{self.root} has manifests but no identity.json: restore it from a copy"
            raise CheckpointError(msg)
        content = {"format": FORMAT, "job": str(uuid.uuid4()), "query": identity}
        try:
            write_bytes(self.root, "identity.json", sealed(json_line(content))[0])
        except FileExistsError as error:
            raise CheckpointError(_two_drivers(self.path, "its identity")) from error

    def _refuse_plain_spark(self) -> None:
        if (self.path / "offsets").exists() or (self.path / "metadata").exists():
            msg = (
                f"checkpoint {self.path} belongs to a plain Spark query: "
                "use a new checkpointLocation for headgate"
            )
            raise CheckpointError(msg)

    # Manifests and intents.

    def latest(self) -> Manifest | None:
        """Return the newest manifest, verified together with its link to the one before it.

        Raises
        ------
        CheckpointError    It is damaged, or of another job or history.
        """
        steps = self.steps()
        if not steps:
            return None
        manifest = self.read(steps[-1])
        before = manifest.step - 1
        if before in steps and self.read(before).digest != manifest.previous:
            raise damaged(str(self._file(manifest.step)), f"it does not follow step {before}")
        return manifest

    def steps(self) -> list[int]:
        """Return the steps that have a manifest, ascending."""
        try:
            names = names_in(self.root / "manifests")
        except OSError as error:
            msg = f"{self.path} is not a checkpoint of headgate ({error.strerror}): check the path"
            raise CheckpointError(msg) from error
        return sorted(int(name) for name in names if len(name) == _STEP_DIGITS and name.isdecimal())

    def read(self, step: int) -> Manifest:
        """Return the manifest of a step.

        Raises
        ------
        CheckpointError    It is missing, truncated, altered, or not of this job.
        """
        self._read_s = time.monotonic()
        manifest = self._manifests.get(step)
        if manifest is not None:
            return manifest
        name = str(self._file(step))
        raw = read_bytes(self.root / "manifests", file_name(step))
        manifest = decode_manifest(raw, name)
        if manifest.step != step or self._job not in (None, manifest.job):
            raise damaged(name, f"it is step {manifest.step} of job {manifest.job}")
        self._manifests.put(step, manifest, _OBJECTS_PER_BYTE * len(raw))
        return manifest

    def commit(self, manifest: Manifest) -> Manifest:
        """Make a step final; return the manifest with its digest.

        Raises
        ------
        CheckpointError    The step is committed already: another driver is at work.
        """
        raw, digest = encode_manifest(manifest)
        try:
            write_bytes(self.root / "manifests", file_name(manifest.step), raw)
        except FileExistsError as error:
            msg = _two_drivers(self.path, f"step {manifest.step}")
            raise CheckpointError(msg) from error
        # not kept: who commits has it, and what a chain is read from is read elsewhere
        return replace(manifest, digest=digest)

    def write_intent(self, step: int, intent: Mapping[str, Any]) -> None:
        """Write down what a step is about to do; a retry may replace it.

        Not forced to disk: an intent that is lost with the machine was for a step that is not
        committed, and loses nothing.
        """
        raw, _ = sealed(json_line(intent))
        directory = self.root / "intents"
        write_bytes(directory, file_name(step), raw, replace=True, durable=False)

    def read_intent(self, step: int) -> dict[str, Any] | None:
        """Return the intent of a step, None if there is none."""
        directory, name = self.root / "intents", file_name(step)
        if not os.path.lexists(directory / name):
            return None
        content, _ = unsealed(read_bytes(directory, name), str(directory / name))
        found: dict[str, Any] = json.loads(content)
        return found

    def _file(self, step: int) -> Path:
        return self.root / "manifests" / file_name(step)

    # Other files.

    def write_file(self, kind: str, name: str, data: bytes) -> None:
        """Write a file named by a token; it is garbage until a manifest names it.

        Raises
        ------
        CheckpointError    The name is taken or no name, or the directory cannot be written.
        """
        try:
            write_bytes(self._kind(kind), checked_file_name(name), data)
        except FileExistsError as error:
            msg = f"{self._kind(kind) / name} is there already: name files by a fresh token"
            raise CheckpointError(msg) from error

    def read_file(
        self, kind: str, name: str, *, length: int | None = None, crc32: int | None = None
    ) -> bytes:
        """Return a file's bytes, compared with `length` and `crc32` where given."""
        data = read_bytes(self._kind(kind), checked_file_name(name))
        self._compare_file(data, kind, name, length, crc32)
        return data

    def _compare_file(
        self,
        data: bytes | mmap.mmap,
        kind: str,
        name: str,
        length: int | None,
        crc32: int | None,
    ) -> None:
        wrong_length = length is not None and len(data) != length
        if wrong_length or (crc32 is not None and zlib.crc32(data) != crc32):
            raise damaged(str(self._kind(kind) / name), "its checksum does not match")

    def _kind(self, kind: str) -> Path:
        assert kind in KINDS, kind
        return self.root / kind

    def blob(self, manifest: Manifest, index: int) -> Blob:
        """Return one of a manifest's changelog blobs, verified and opened."""
        key = (manifest.step, manifest.digest, index)
        opened = self._blobs.get(key)
        if opened is None:
            entry = manifest.blobs[index]
            raw = self._blob_bytes(manifest, entry)
            opened = open_blob(raw)
            cost = len(raw) if isinstance(raw, bytes) else len(raw) // _MAPPED_FOR_ONE
            self._blobs.put(key, opened, cost)
        return opened

    def _blob_bytes(self, manifest: Manifest, entry: BlobEntry) -> bytes | mmap.mmap:
        if entry.name is not None:
            data = map_bytes(self._kind("changelog"), checked_file_name(entry.name))
            self._compare_file(data, "changelog", entry.name, entry.length, entry.crc32)
            return data
        assert entry.inline is not None, "decode checked it"
        data = manifest.payloads[entry.inline]
        if len(data) != entry.length or zlib.crc32(data) != entry.crc32:
            raise damaged(str(self._file(manifest.step)), f"payload {entry.inline}")
        return data

    # Chains.

    def chain(self, operator: str, group: int, head_step: int) -> Chain:
        """Return the chain that ends with the group's section of `head_step`.

        Parameters
        ----------
        operator : str
        group : int
        head_step : int    From `Heads.steps`; -1 for a group nothing was ever written to.
        """

        def sections(token: str) -> Sequence[Section]:
            found: list[Section] = []
            step = head_step
            while step != NO_STEP:
                manifest = self.read(step)
                entry = manifest.sections.get(operator, {}).get(group)
                if entry is None or entry.previous_step >= step:
                    name = str(self._file(step))
                    raise damaged(name, f"it lacks the section of {operator}, key group {group}")
                if entry.ref.token == token:
                    break
                found.append(decode(self.blob(manifest, entry.blob), entry.ref))
                if entry.ref.full:
                    break
                step = entry.previous_step
            found.reverse()
            return found

        return sections

    # Care.

    def settle(self, kept_s: float = _KEPT_S) -> None:
        """Give up what was kept after reading, if nothing was read for `kept_s` seconds.

        Called with every task and every commit: chains are walked when key groups come to a process,
        many of them together, and then perhaps not for hours.
        """
        if time.monotonic() - self._read_s >= kept_s:
            self._manifests.clear()
            self._blobs.clear()

    def collect_garbage(self, latest: Manifest) -> int:
        """Remove what no restart can need; return how many files went.

        Called after each commit, off the critical path, with the manifest just committed. Cheap: it
        remembers what it knows, and looks into the directories once in a while only.
        """
        removed = self._garbage.collect(latest)
        self.settle()
        return removed


class _Recent(Generic[Value]):
    """What was read last, up to a number of bytes; safe to use from several threads."""

    def __init__(self, byte_limit: int) -> None:
        self._limit = byte_limit
        self._lock = threading.Lock()
        self._bytes = 0
        self._kept: OrderedDict[object, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def byte_count(self) -> int:
        """What is kept, as `put` was told."""
        return self._bytes

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def get(self, key: object) -> Value | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: object, value: Value, byte_count: int) -> None:
        with self._lock:
            if key in self._kept:
                self._bytes -= self._kept.pop(key)[1]
            self._kept[key] = (value, byte_count)
            self._bytes += byte_count
            while self._bytes > self._limit and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]


def _compare(old: object, new: object, where: str) -> None:
    """Refuse a query that differs from the checkpoint's, naming the field that does."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            _compare(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif old != new:
        field = {"groups": "key groups"}.get(where.rpartition(".")[2], where)
        shown = (_shown(field, old), _shown(field, new))
        msg = f"checkpoint has {shown[0]}, this query {shown[1]}; {field} cannot change. "
        raise CheckpointError(msg + "Use a new checkpoint.")


def _shown(field: str, value: object) -> str:
    if field == "key groups":
        return f"{value} {field}"
    if isinstance(value, list):
        value = f"[{', '.join(map(str, value))}]"
    return f"{field} {value}"


def _two_drivers(path: Path, what: str) -> str:
    return f"checkpoint {path} has {what} from another driver already: stop one of the two drivers"
