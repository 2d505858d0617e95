"""Reads and writes a checkpoint: the files from which a job restarts, and the chains of sections.

::

    <path>/headgate/identity.json     the job that the checkpoint belongs to
    <path>/headgate/meaning.json      the meaning of its state, if an earlier release created it
                    intents/          the plan of a step, before it
                    manifests/        the result of a step: the commit point
                    changelog/ output/ backlog/ late/    files that manifests name

Only the newest manifest is found by listing; a file that no manifest names is garbage.
"""

from __future__ import annotations

import json
import mmap
import os
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.checkpoint.changelog import Blob, decode, open_blob
from headgate.checkpoint.drivers import Driver
from headgate.checkpoint.files import checked_file_name
from headgate.checkpoint.garbage import Garbage
from headgate.checkpoint.identity import MEANING, refuse_another
from headgate.checkpoint.manifest import (
    FIRST_STEPS,
    FORMAT,
    KINDS,
    NO_STEP,
    READABLE,
    SOURCES,
    BlobEntry,
    Manifest,
    SectionEntry,
    damaged,
    file_name,
    json_line,
    sealed,
    unsealed,
)
from headgate.checkpoint.manifest import decode as decode_manifest
from headgate.checkpoint.manifest import encode as encode_manifest
from headgate.checkpoint.place import files_at
from headgate.checkpoint.recent import Recent
from headgate.checkpoint.spool import Spool
from headgate.core.errors import AnotherDriver, CheckpointError
from headgate.core.input import shown
from headgate.core.location import local_path
from headgate.core.stores import store_url
from headgate.tables.ports import Chain, Section

_DIRECTORIES = ("intents", "manifests", *KINDS)
_IDENTITY = "identity.json"
_NOTE = "sparklog.json"
_LATER = "meaning.json"
_STEP_DIGITS = 12
_FIRST_STEPS_KEPT = 256
"""Number of drivers whose first manifests stay, of at most some 100 kB each. A driver that sleeps while
256 other drivers run would not be detected. Chosen."""
_CACHE_BYTES = 64 << 20
"""Bytes of the cache of manifests, and of that of blobs. The chains of a slot's key groups read each of
the last 33 manifests once per group. If all fit into the cache, 94 in 100 reads hit it; if fewer fit,
almost none (measured; docs/design/0147). This size holds 33 files of 1 MB."""

_OBJECTS_PER_BYTE = 2
"""Bytes of memory that a manifest takes per byte of its file; measured there."""

_AT_ONCE = 16
"""Largest number of concurrent requests to a store. Chosen."""

_KEPT_S = 60.0
"""Seconds after the last read when the caches are dropped. Chosen: a migration's host tasks follow each
other within a second or two."""

_MAPPED_FOR_ONE = 32
"""Mapped bytes that count as one cached byte: they take addresses, and pages that the system may reclaim.
A rebuilt slot walks the chains of its key groups one after another, and each chain goes through every
large file of the past."""


class Checkpoint:
    """Reads and writes the checkpoint at a path; creating this object touches no file.

    Raises `CheckpointError` if the path names a file system that is not supported.

    Parameters
    ----------
    path : str or path
        Spark's ``checkpointLocation``: a POSIX path, a ``file:`` URI, or a `store_url`.
    log : Path, optional
        Directory of Spark's own log if the checkpoint is on a store; only its driver needs this.
    known : bool    True if the store has answered this job before, as for every slot.

    Attributes
    ----------
    location : str    The path or the URL, in the form that executors receive.
    files : Files    Files below ``headgate/``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: Mapping[str, str] | None = None,
        log: Path | None = None,
        *,
        known: bool = False,
    ) -> None:
        url = store_url(path)
        self._log = local_path(path) if url is None else log
        self.location = str(self._log) if url is None else url
        self.options = dict(options or {})
        self.files = files_at(path, "headgate", self.options, known=known)
        self._driver = Driver.here()
        self._first_steps: list[int] = []
        self._has_committed = False
        self._job: str | None = None
        self._manifests: Recent[Manifest] = Recent(_CACHE_BYTES)
        self._blobs: Recent[Blob] = Recent(_CACHE_BYTES)
        self._spool = Spool()
        self._read_s = time.monotonic()
        self._next_back, self._along = NO_STEP, 0
        """The step before those of the last read, and the number of steps read along with it."""
        self._garbage = Garbage(self.files, self.read)

    @property
    def path(self) -> Path:
        """Directory of Spark's own log: the checkpoint itself, if the checkpoint is a directory.

        Raises `CheckpointError` if the checkpoint is on a store and this is not its driver.
        """
        if self._log is None:
            msg = f"checkpoint {self.location} is no directory; it lies on a store."
            raise CheckpointError(msg)
        return self._log

    @property
    def root(self) -> Path:
        """Return headgate's directory: inside the checkpoint, or beside Spark's log on a store."""
        return self.path / "headgate"

    # Opening.

    def open(self, identity: Mapping[str, Any]) -> str:
        """Create the checkpoint, or check that it belongs to this query; return the job's uuid.

        Called by the driver, before any other method.

        `identity`: properties of the query that must never change, as JSON; for instance ``keys``. Raises
        `CheckpointError` if the checkpoint belongs to another query or plain Spark, or is not writable.
        """
        self.files.check()
        known = self.files.exists(_IDENTITY)
        if not known and not self.files.is_there():
            self._refuse_plain_spark()
        self.files.prepare(_DIRECTORIES)
        if not known:
            self._create_identity(identity)
        stored = self.identity()
        own = json.loads(json_line(identity))
        begun = {**self.later_meaning(), **stored["query"]}
        refuse_another(begun, own, self.location)
        if MEANING in own and MEANING not in begun:
            self._put_first(_LATER, {MEANING: own[MEANING]}, "what its state means")
        self._job = str(stored["job"])
        return self._job

    def later_meaning(self) -> dict[str, Any]:
        """Return the content of ``meaning.json``, which a later release added; {} without this file."""
        if not self.files.exists(_LATER):
            return {}
        meaning = self._json(_LATER)
        if MEANING not in meaning:
            raise damaged(self.files.at(_LATER), f"it lacks {MEANING}")
        return meaning

    def identity(self) -> dict[str, Any]:
        """Return the content of ``identity.json``: ``format``, ``job``, ``query``."""
        name, content = self.files.at(_IDENTITY), self._json(_IDENTITY)
        if "format" not in content:
            raise damaged(name, "it lacks format")
        if content["format"] not in READABLE:
            written = shown(content["format"], 40)
            reads = f"this headgate reads up to format {FORMAT}"
            msg = f"{name} has format {written}, {reads}: upgrade headgate"
            raise CheckpointError(msg)
        if not {"job", "query"} <= content.keys():
            raise damaged(name, "it lacks job or query")
        return content

    def _create_identity(self, identity: Mapping[str, Any]) -> None:
        if self.files.names("manifests"):
            msg = f"{self.files.at('')} has manifests but no identity.json: restore it from a copy"
            raise CheckpointError(msg)
        content = {"format": FORMAT, "job": str(uuid.uuid4()), "query": identity}
        self._put_first(_IDENTITY, content, "its identity")

    def _put_first(self, name: str, content: Mapping[str, Any], what: str) -> None:
        try:
            self.files.put_new(name, sealed(json_line(content))[0])
        except FileExistsError as error:
            raise CheckpointError(_two_drivers(self.location, what, None)) from error

    def _refuse_plain_spark(self) -> None:
        beside = files_at(self.location, "", self.options)
        if beside.exists("metadata") or beside.exists("offsets"):
            msg = (
                f"checkpoint {self.location} belongs to a plain Spark query: "
                "use a new checkpointLocation for headgate"
            )
            raise CheckpointError(msg)

    # Manifests and intents.

    def latest(self) -> Manifest | None:
        """Return the newest manifest, after a check of the manifest and its link to the one before.

        Raises `CheckpointError` if it is damaged, or belongs to another job or history.
        """
        steps = self.steps()
        if self.files.shared:
            self._look_ahead(steps)
        if not steps:
            return None
        manifest = self.read(steps[-1])
        before = manifest.step - 1
        if before in steps and self.read(before).digest != manifest.previous:
            raise damaged(self._file(manifest.step), f"it does not follow step {before}")
        self._first_steps = list(manifest.engine.get(FIRST_STEPS, ()))
        return manifest

    def _look_ahead(self, steps: list[int]) -> None:
        """Add newer steps to a list of steps: the list of a store may miss the newest files."""
        after = steps[-1] + 1 if steps else 0
        while self.files.exists(_manifest_name(after)):
            steps.append(after)
            after += 1

    def steps(self) -> list[int]:
        """Return the steps that have a manifest, ascending."""
        try:
            names = self.files.names("manifests")
        except OSError as error:
            msg = f"{self.location} is not a checkpoint of headgate ({error.strerror}): check the path"
            raise CheckpointError(msg) from error
        return sorted(int(name) for name in names if len(name) == _STEP_DIGITS and name.isdecimal())

    def read(self, step: int) -> Manifest:
        """Return the manifest of a step.

        Raises `CheckpointError` if it is missing, truncated, altered, or not of this job.
        """
        self._read_s = time.monotonic()
        manifest = self._manifests.get(step)
        if manifest is not None:
            return manifest
        before = self._steps_before(step) if self.files.shared else []
        if not before:
            return self._read(step)
        with ThreadPoolExecutor(len(before) + 1) as pool:
            wanted = pool.submit(self._read, step)
            for older in before:
                pool.submit(self._read, older)  # if this fails, a later use reads the step again
        return wanted.result()

    def _steps_before(self, step: int) -> list[int]:
        """Return the steps to read along with a step: chains go back, and each read of a store is slow.

        None at first; then the number doubles with each read that continues backwards.
        """
        # the manifest of a step does not list a key group that the step did not change
        goes_on = self._next_back - _AT_ONCE < step <= self._next_back
        self._along = min(2 * self._along + 1, _AT_ONCE - 1) if goes_on else 0
        self._next_back = step - self._along - 1
        steps = range(max(self._next_back + 1, 0), step)
        return [before for before in steps if self._manifests.get(before) is None]

    def _read(self, step: int) -> Manifest:
        name = self._file(step)
        raw = self.files.get(_manifest_name(step))
        manifest = decode_manifest(raw, name)
        if manifest.step != step or self._job not in (None, manifest.job):
            raise damaged(name, f"it is step {manifest.step} of job {manifest.job}")
        # chains read each manifest once per key group, and payloads are most of its bytes
        payloads = {name: self._spool.put(data) for name, data in manifest.payloads.items()}
        away = sum(len(data) for data in payloads.values() if isinstance(data, memoryview))
        cost = _OBJECTS_PER_BYTE * (len(raw) - away) + away // _MAPPED_FOR_ONE
        manifest = replace(manifest, payloads=payloads)
        self._manifests.put(step, manifest, cost)
        return manifest

    def commit(self, manifest: Manifest) -> Manifest:
        """Commit a step; return the manifest with its digest.

        The manifest of each driver's first step stays: an older driver that was paused would write this
        step next, and must find it (docs/design/0131). Raises `AnotherDriver` if the step is committed
        already.
        """
        first = self._first_steps if self._has_committed else [*self._first_steps, manifest.step]
        own = {"driver": self._driver.to_json(), FIRST_STEPS: first[-_FIRST_STEPS_KEPT:]}
        engine = {**manifest.engine, **own}
        manifest = replace(manifest, engine=engine)
        raw, digest = encode_manifest(manifest)
        try:
            self.files.put_new(_manifest_name(manifest.step), raw)
        except FileExistsError as error:
            other = self._other(manifest.step)
            msg = _two_drivers(self.location, f"step {manifest.step}", other)
            raise AnotherDriver(msg) from error
        self._first_steps, self._has_committed = first, True
        # not cached: the driver has the manifest, and other processes read the chains
        return replace(manifest, digest=digest)

    def refuse_after_another(self, step: int) -> None:
        """Refuse to continue after a step if another driver has already continued after it.

        Raises `AnotherDriver` if the next step is committed; `CheckpointError` if the store is not
        readable.
        """
        after = step + 1
        if self.files.exists(_manifest_name(after)):
            raise AnotherDriver(_two_drivers(self.location, f"step {after}", self._other(after)))

    def _other(self, step: int) -> Driver | None:
        """Return the driver that committed a step; None if its manifest is damaged or names no driver."""
        try:
            return Driver.of_json(self.read(step).engine.get("driver"))
        except CheckpointError:
            return None

    def write_intent(self, step: int, intent: Mapping[str, Any]) -> None:
        """Write the intent of a step; a retry may replace it.

        The write is not forced to disk: a failure of the machine loses only the intent of a step that is
        not committed, which no restart needs.
        """
        raw, _ = sealed(json_line(intent))
        self.files.put(f"intents/{file_name(step)}", raw, durable=False)

    def read_intent(self, step: int) -> dict[str, Any] | None:
        """Return the intent of a step, None without an intent.

        Raises `CheckpointError` if it is damaged, or of another step.
        """
        name = f"intents/{file_name(step)}"
        if not self.files.exists(name):
            return None
        intent = self._json(name)
        if intent.get("step") not in (None, step):
            raise damaged(self.files.at(name), f"it is of step {shown(intent['step'], 40)}")
        return intent

    def write_note(self, note: Mapping[str, Any]) -> None:
        """Write a note about Spark's log (`headgate.checkpoint.spark_log`); not forced to disk."""
        self.files.put(_NOTE, sealed(json_line(note))[0], durable=False)

    def read_note(self) -> dict[str, Any] | None:
        """Return the newest note of `write_note`; None without a note.

        Raises `CheckpointError` if it is damaged.
        """
        return self._json(_NOTE) if self.files.exists(_NOTE) else None

    def _json(self, name: str) -> dict[str, Any]:
        content, _ = unsealed(self.files.get(name), self.files.at(name))
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise damaged(self.files.at(name), shown(repr(error), 80)) from error
        if not isinstance(value, dict):
            raise damaged(self.files.at(name), "it is no JSON object")
        return value

    def _file(self, step: int) -> str:
        return self.files.at(_manifest_name(step))

    # Other files.

    def write_file(self, kind: str, name: str, data: bytes) -> None:
        """Write a file named by a token; it is garbage until a manifest names it.

        Raises `CheckpointError` if the name is taken or invalid, or if the file cannot be written.
        """
        path = _named(kind, name)
        try:
            self.files.put_unique(path, data)
        except FileExistsError as error:
            msg = f"{self.files.at(path)} is there already: name files by a fresh token"
            raise CheckpointError(msg) from error

    def read_file(
        self, kind: str, name: str, *, length: int | None = None, crc32: int | None = None
    ) -> bytes:
        """Return a file's bytes; raise `CheckpointError` if `length` or `crc32` does not match."""
        data = self.files.get(_named(kind, name))
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
            raise damaged(self.files.at(f"{kind}/{name}"), "its checksum does not match")

    def blob(self, manifest: Manifest, index: int) -> Blob:
        """Return a changelog blob of a manifest, verified and opened."""
        key = (manifest.step, manifest.digest, index)
        opened = self._blobs.get(key)
        if opened is None:
            entry = manifest.blobs[index]
            opened = self._keep(key, self._blob_bytes(manifest, entry))
        return opened

    def _keep(self, key: object, raw: bytes | mmap.mmap | memoryview) -> Blob:
        content = self._spool.put(raw) if isinstance(raw, bytes) else raw
        opened = open_blob(content)
        cost = len(content) if isinstance(content, bytes) else len(content) // _MAPPED_FOR_ONE
        self._blobs.put(key, opened, cost)
        return opened

    def _blob_bytes(self, manifest: Manifest, entry: BlobEntry) -> bytes | mmap.mmap | memoryview:
        if entry.name is not None:
            data = self.files.get_large(_named("changelog", entry.name))
            self._compare_file(data, "changelog", entry.name, entry.length, entry.crc32)
            return data
        assert entry.inline is not None, "decode checked it"
        payload = manifest.payloads[entry.inline]
        if len(payload) != entry.length or zlib.crc32(payload) != entry.crc32:
            raise damaged(self._file(manifest.step), f"payload {entry.inline}")
        return payload

    # Chains.

    def chain(self, operator: str, group: int, head_step: int, token: str = "") -> Chain:
        """Return the chain that ends with the group's section of `head_step`.

        Parameters
        ----------
        head_step : int    From `Heads.steps`; -1 for a group without any write.
        token : str        The group's token at `head_step`, from `Heads.tokens`; "" skips the check.

        Reading the chain raises `CheckpointError` with the name of the file if a manifest in the chain
        has another state of the group than the next manifest expects: it is of another job or time.
        """
        head = token

        def sections(token: str) -> Sequence[Section]:
            entries: list[tuple[Manifest, SectionEntry]] = []
            step, wanted = head_step, head
            while step != NO_STEP:
                manifest = self.read(step)
                entry = manifest.sections.get(operator, {}).get(group)
                if entry is None or entry.previous_step >= step:
                    name = self._file(step)
                    raise damaged(name, f"it lacks the section of {operator}, key group {group}")
                if wanted not in ("", entry.ref.token):
                    why = f"it has another state of {operator}, key group {group}"
                    raise damaged(self._file(step), why)
                if entry.ref.token == token:
                    break
                entries.append((manifest, entry))
                if entry.ref.full:
                    break
                step, wanted = entry.previous_step, entry.ref.previous
            if self.files.shared:
                self._fetch(entries)
            return [decode(self.blob(m, entry.blob), entry.ref) for m, entry in reversed(entries)]

        return sections

    def _fetch(self, chain: Sequence[tuple[Manifest, SectionEntry]]) -> None:
        """Read the blobs of a chain that are not cached, several at a time."""
        wanted = {
            (manifest.step, manifest.digest, entry.blob): (manifest, manifest.blobs[entry.blob])
            for manifest, entry in chain
        }
        new = {key: of for key, of in wanted.items() if of[1].name and self._blobs.get(key) is None}
        if len(new) < 2:  # noqa: PLR2004 -- a single blob is read when it is used
            return
        with ThreadPoolExecutor(min(len(new), _AT_ONCE)) as pool:
            for key, raw in zip(
                new, pool.map(lambda of: self._blob_bytes(*of), new.values()), strict=True
            ):
                self._keep(key, raw)

    # Care.

    def settle(self, kept_s: float = _KEPT_S) -> None:
        """Drop the caches of earlier reads, if nothing was read for `kept_s` seconds.

        Called with every task and every commit: a process walks the chains of many key groups when the
        groups arrive, and then perhaps none for hours.
        """
        if time.monotonic() - self._read_s >= kept_s:
            self._manifests.clear()
            self._blobs.clear()
            self._spool.clear()

    def collect_garbage(self, latest: Manifest) -> None:
        """Remove files that no restart can need.

        Called after each commit, outside the critical path, with the committed manifest. Cheap, because
        it remembers the needed files, and lists the directories only now and then.
        """
        self._garbage.collect(latest)
        self.settle()


def _two_drivers(location: str, what: str, other: Driver | None) -> str:
    who = "" if other is None else f" ({other})"
    has = f"checkpoint {location} has {what} from another driver already{who}"
    return f"{has}: stop one of the two drivers"


def _manifest_name(step: int) -> str:
    return f"manifests/{file_name(step)}"


def _named(kind: str, name: str) -> str:
    assert kind in (*KINDS, SOURCES), kind
    return f"{kind}/{checked_file_name(name)}"
