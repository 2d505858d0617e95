"""Encodes the manifest of a step: one file, written whole or not at all, with all a restart needs."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headgate.checkpoint.changelog import SectionRef
from headgate.checkpoint.files import checked_file_name
from headgate.core.errors import CheckpointError
from headgate.core.input import escaped, shown
from headgate.tables.header import is_token

FORMAT = 2
READABLE = (1, FORMAT)
NO_STEP = -1
KINDS = ("changelog", "output", "backlog", "late")
"""Directories with files of steps; a manifest names the files it needs, there and in `SOURCES`. Files
of ``late`` are named in `Manifest.engine` only; the newest of them stay."""
FIRST_STEPS = "first_steps"
"""Field of `Manifest.engine`: number of the first step that each driver committed, newest last."""
SOURCES = "sources"
"""Directory, on a store, for the larger files that Spark's sources keep in Spark's log."""
REAL_TIME = "real_time"
"""Field of `Manifest.engine` that only an epoch of real time has; the next three are keys in it."""
NEXT_WATERMARK_US = "next_watermark_us"
"""Watermark of the step after an epoch."""
SEEN_WATERMARK_US = "seen_watermark_us"
"""Watermark that the records read so far give; absent unless it is ahead of the operators' watermark,
which waits until a backlog is read."""
DELIVERED = "delivered"
"""Newest step whose output the sink had when an epoch was committed; the sink also had the outputs of
all earlier steps."""
_TRAILER = b"\nsha256 "
_TRAILER_BYTES = len(_TRAILER) + 64 + 1
_REF_FIELDS = SectionRef._fields


class SectionEntry(NamedTuple):
    """Holds a group's section of this step."""

    blob: int
    """Index into `Manifest.blobs`."""
    ref: SectionRef
    previous_step: int
    """Step whose manifest holds the group's section before this one, or -1."""


@dataclass(frozen=True)
class BlobEntry:
    """Locates a changelog blob: in a file of ``changelog/``, or inline in the manifest."""

    name: str | None
    """File name; exactly one of `name` and `inline` is not None."""
    inline: str | None
    """Name of a payload of the manifest."""
    length: int
    crc32: int


@dataclass(frozen=True)
class FileEntry:
    """Names another file that this step needs."""

    name: str
    """``kind/name``, below the checkpoint's headgate directory."""
    length: int
    crc32: int


@dataclass(frozen=True)
class Heads:
    """Names the newest state of each key group of one operator, by token and step."""

    tokens: tuple[str, ...]
    """One token per group."""
    steps: tuple[int, ...]
    """Step whose manifest holds the group's newest section, -1 without a section."""


@dataclass(frozen=True)
class Manifest:
    """Holds the result that one step committed; `docs/format.md` describes the file."""

    job: str
    """The checkpoint's job uuid."""
    step: int
    """headgate's own counter, from 0."""
    spark_batch: int
    """Spark's batch id, which may start again at 0."""
    epoch: int
    """Epoch of the assignments."""
    assignments: Mapping[str, Mapping[str, Any]]
    """mapping of operator -> {"slots": n, "slot_of": [...]}."""
    watermarks: Mapping[str, Any]
    """``late_us``, ``evict_us``: microseconds or None."""
    heads: Mapping[str, Heads]
    """mapping of operator -> Heads."""
    sections: Mapping[str, Mapping[int, SectionEntry]]
    """mapping of operator -> mapping of key group -> SectionEntry."""
    blobs: tuple[BlobEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    """JSON facts of the engine; inspection and checks of a checkpoint also read some of them."""
    previous: str | None = None
    """`digest` of the manifest before this one."""
    payloads: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    """mapping of name -> bytes: inline blobs and outputs."""
    digest: str = field(default="", compare=False)
    """sha256 of head and body; set when the manifest is read or committed."""

    def checksums(self, kind: str) -> dict[str, int]:
        """Return the CRC-32 of each file of a kind, by the name without the kind."""
        prefix = f"{kind}/"
        return {
            file.name.removeprefix(prefix): file.crc32
            for file in self.files
            if file.name.startswith(prefix)
        }


def file_name(step: int) -> str:
    """Return the name of a step's file in ``manifests/`` and ``intents/``."""
    return f"{step:012d}"


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """Return the bytes of the manifest's file, and its digest."""
    for file in manifest.files:
        _check_path(file.name)
    body_index = []
    offset = 0
    for name, payload in manifest.payloads.items():
        body_index.append([checked_file_name(name), offset, len(payload), zlib.crc32(payload)])
        offset += len(payload)
    head = {
        "format": FORMAT,
        "job": manifest.job,
        "step": manifest.step,
        "spark_batch": manifest.spark_batch,
        "epoch": manifest.epoch,
        "assignments": manifest.assignments,
        "watermarks": manifest.watermarks,
        "heads": {
            name: {"tokens": heads.tokens, "steps": heads.steps}
            for name, heads in manifest.heads.items()
        },
        "sections": {name: _columns(of) for name, of in manifest.sections.items()},
        "blobs": [vars(blob) for blob in manifest.blobs],
        "files": [vars(file) for file in manifest.files],
        "engine": manifest.engine,
        "previous": manifest.previous,
        "body": body_index,
    }
    parts = [json_line(head), *manifest.payloads.values()]
    return sealed(b"".join(parts))


def decode(raw: bytes, name: str) -> Manifest:
    """Return the manifest in a file's bytes, after a check of all checksums.

    `name`: the file's path, for the error. Raises `CheckpointError` if the file is truncated, altered,
    or of another format.
    """
    content, digest = unsealed(raw, name)
    line, _, body = content.partition(b"\n")
    try:
        head = json.loads(line)
        if head["format"] not in READABLE:
            written = shown(head["format"], 40)
            reads = f"this headgate reads up to format {FORMAT}"
            msg = f"{name} has format {written}, {reads}: upgrade headgate"
            raise CheckpointError(msg)
        return _manifest(head, body, digest)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise damaged(name, f"field {shown(error, 80)}") from error


def _manifest(head: dict[str, Any], body: bytes, digest: str) -> Manifest:
    payloads = {}
    for name, offset, length, crc32 in head.pop("body"):
        payload = body[offset : offset + length]
        if len(payload) != length or zlib.crc32(payload) != crc32:
            raise ValueError(name)
        payloads[name] = payload
    del head["format"]
    for name in ("step", "spark_batch", "epoch"):
        if type(head[name]) is not int:  # a batch's number names a file of Spark's log
            raise TypeError(name)
    heads = {name: _heads(of) for name, of in head.pop("heads").items()}
    blobs = tuple(BlobEntry(**blob) for blob in head.pop("blobs"))
    sections = {name: _entries(of, len(blobs)) for name, of in head.pop("sections").items()}
    for blob in blobs:
        named = blob.name is not None and checked_file_name(blob.name) == blob.name
        if named == (blob.inline in payloads):
            raise ValueError(blob)
    files = tuple(FileEntry(**file) for file in head.pop("files"))
    for file in files:
        _check_path(file.name)
    return Manifest(
        heads=heads, sections=sections, blobs=blobs, files=files, payloads=payloads,
        digest=digest, **head,
    )  # fmt: skip


def _check_path(path: str) -> None:
    """Refuse a path that garbage collection must never follow."""
    kind, _, name = path.partition("/")
    if kind not in (*KINDS, SOURCES):
        msg = f"{path!r} is not in one of {', '.join((*KINDS, SOURCES))}: a manifest cannot name it"
        raise CheckpointError(msg)
    checked_file_name(name)


def _heads(fields: Mapping[str, Any]) -> Heads:
    heads = Heads(tuple(fields["tokens"]), tuple(fields["steps"]))
    if len(heads.tokens) != len(heads.steps) or not all(map(is_token, heads.tokens)):
        raise ValueError("heads")
    return heads


def _columns(entries: Mapping[int, SectionEntry]) -> dict[str, list[Any]]:
    # Columns, because one object per group would be long: a step may list 128 groups of three operators.
    columns: dict[str, list[Any]] = {
        "group": list(entries),
        "blob": [entry.blob for entry in entries.values()],
        "previous_step": [entry.previous_step for entry in entries.values()],
    }
    refs = [entry.ref for entry in entries.values()]
    values = zip(*refs, strict=True) if refs else [()] * len(_REF_FIELDS)
    return columns | {name: list(of) for name, of in zip(_REF_FIELDS, values, strict=True)}


def _entries(columns: Mapping[str, list[Any]], blob_count: int) -> dict[int, SectionEntry]:
    lists = [columns[name] for name in _REF_FIELDS]
    refs = [SectionRef(*values) for values in zip(*lists, strict=True)]
    entries = {}
    for group, blob, before, ref in zip(
        columns["group"], columns["blob"], columns["previous_step"], refs, strict=True
    ):
        if not 0 <= blob < blob_count or not is_token(ref.token) or not is_token(ref.previous):
            raise ValueError(group)
        entries[group] = SectionEntry(blob, ref, before)
    return entries


# The form of all sealed files of a checkpoint: content, then the sha256 of the content.


def json_line(value: object) -> bytes:
    """Return canonical JSON: sorted keys, no blanks, no NaN, one line."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def sealed(content: bytes) -> tuple[bytes, str]:
    """Return `content` with its sha256 as the last line, and the sha256."""
    digest = hashlib.sha256(content).hexdigest()
    return b"".join((content, _TRAILER, digest.encode(), b"\n")), digest


def unsealed(raw: bytes, name: str) -> tuple[bytes, str]:
    """Return content and sha256 of a sealed file.

    Raises `CheckpointError` if the file is truncated or altered.
    """
    content, trailer = raw[:-_TRAILER_BYTES], raw[-_TRAILER_BYTES:]
    digest = hashlib.sha256(content).hexdigest()
    if trailer != b"".join((_TRAILER, digest.encode(), b"\n")):
        raise damaged(name, "its checksum does not match")
    return content, digest


def damaged(name: str, why: str) -> CheckpointError:
    """Return the error for a file whose content is not what was written."""
    msg = f"{name} is damaged ({escaped(why)}): `headgate inspect --verify` says what can be saved"
    return CheckpointError(msg)
