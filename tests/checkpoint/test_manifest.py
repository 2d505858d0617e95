"""What a manifest must be to be believed: of its step, job and format, after the one before."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.checkpoint import changelog
from headgate.checkpoint.changelog import SectionRef
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import (
    FORMAT,
    BlobEntry,
    FileEntry,
    Heads,
    Manifest,
    SectionEntry,
    decode,
    encode,
    file_name,
    json_line,
    sealed,
    unsealed,
)
from headgate.core.errors import CheckpointError
from headgate.tables.ports import EMPTY_TOKEN, Section

IDENTITY = {"groups": 1}


def manifest(job: str, step: int, previous: str | None = None, **more: Any) -> Manifest:
    """Return a manifest of a step in which nothing happened."""
    return Manifest(job, step, step, 0, {}, {}, {}, {}, previous=previous, **more)


def begun(path: Path) -> tuple[Checkpoint, str]:
    checkpoint = Checkpoint(path)
    return checkpoint, checkpoint.open(IDENTITY)


def test_a_manifest_that_does_not_follow_the_one_before_is_refused(tmp_path: Path) -> None:
    checkpoint, job = begun(tmp_path)
    first = checkpoint.commit(manifest(job, 0))
    assert checkpoint.commit(manifest(job, 1, first.digest)) == Checkpoint(tmp_path).latest()
    checkpoint.commit(manifest(job, 2, first.digest))
    with pytest.raises(CheckpointError, match="it does not follow step 1"):
        Checkpoint(tmp_path).latest()


def test_a_manifest_of_another_step_is_refused(tmp_path: Path) -> None:
    checkpoint, job = begun(tmp_path)
    checkpoint.commit(manifest(job, 0))
    kept = checkpoint.root / "manifests"
    shutil.copy(kept / file_name(0), kept / file_name(5))
    with pytest.raises(CheckpointError, match="it is step 0 of job"):
        Checkpoint(tmp_path).read(5)


def test_a_manifest_of_another_job_is_refused(tmp_path: Path) -> None:
    checkpoint, _ = begun(tmp_path / "a")
    other, job = begun(tmp_path / "b")
    other.commit(manifest(job, 0))
    kept = "manifests"
    shutil.copy(other.root / kept / file_name(0), checkpoint.root / kept / file_name(0))
    with pytest.raises(CheckpointError, match=f"it is step 0 of job {job}"):
        checkpoint.read(0)


def test_manifests_without_an_identity_are_refused(tmp_path: Path) -> None:
    checkpoint, job = begun(tmp_path)
    checkpoint.commit(manifest(job, 0))
    (checkpoint.root / "identity.json").unlink()
    with pytest.raises(CheckpointError, match=r"no identity\.json: restore it"):
        Checkpoint(tmp_path).open(IDENTITY)


def test_another_format_is_refused(tmp_path: Path) -> None:
    raw, _ = sealed(json_line({"format": FORMAT + 1}))
    with pytest.raises(CheckpointError, match="upgrade headgate"):
        decode(raw, "manifest")
    checkpoint, _ = begun(tmp_path)
    (checkpoint.root / "identity.json").write_bytes(raw)
    with pytest.raises(CheckpointError, match="upgrade headgate"):
        checkpoint.identity()


def test_a_payload_that_its_index_does_not_know_is_refused() -> None:
    raw, _ = encode(manifest("j", 0, payloads={"blob": b"abc"}))
    content, _ = unsealed(raw, "manifest")
    assert decode(raw, "manifest").payloads == {"blob": b"abc"}
    with pytest.raises(CheckpointError, match="field blob"):
        decode(sealed(content.replace(b"abc", b"abd"))[0], "manifest")


def test_a_payload_that_is_not_what_its_entry_says_is_refused(tmp_path: Path) -> None:
    checkpoint, job = begun(tmp_path)
    entry = BlobEntry(None, "blob", 3, zlib.crc32(b"abc") ^ 1)
    last = checkpoint.commit(manifest(job, 0, blobs=(entry,), payloads={"blob": b"abc"}))
    with pytest.raises(CheckpointError, match="payload blob"):
        checkpoint.blob(last, 0)


def whole() -> tuple[Manifest, dict[str, Any]]:
    """Return a manifest that has some of everything, and its head as JSON."""
    ref = SectionRef(0, 1, 2, 3, 4, True, "1" * 32, "2" * 32)
    made = Manifest(
        "job", 5, 4, 3, {"op": {"slots": 1, "slot_of": [0, 0]}}, {"late_us": None, "evict_us": 7},
        {"op": Heads(("2" * 32, EMPTY_TOKEN), (5, -1))}, {"op": {0: SectionEntry(1, ref, -1)}},
        blobs=(BlobEntry("file", None, 9, 8), BlobEntry(None, "blob", 3, zlib.crc32(b"abc"))),
        files=(FileEntry("output/x", 1, 2), FileEntry("sources/y", 3, 4)),
        engine={"a": [1]}, previous="p", payloads={"rows": b"12345", "blob": b"abc"},
    )  # fmt: skip
    content, _ = unsealed(encode(made)[0], "manifest")
    return made, json.loads(content.partition(b"\n")[0])


def test_a_manifest_is_written_as_the_format_says(tmp_path: Path) -> None:
    made, head = whole()
    raw, digest = encode(made)
    assert decode(raw, "manifest") == made
    assert decode(raw, "manifest").digest == digest == hashlib.sha256(raw[:-73]).hexdigest()
    assert raw.endswith(b"}\n12345abc\nsha256 " + digest.encode() + b"\n")
    assert head == {
        "format": 2, "job": "job", "step": 5, "spark_batch": 4, "epoch": 3, "previous": "p",
        "assignments": {"op": {"slots": 1, "slot_of": [0, 0]}},
        "watermarks": {"late_us": None, "evict_us": 7},
        "heads": {"op": {"tokens": ["2" * 32, EMPTY_TOKEN], "steps": [5, -1]}},
        "sections": {"op": {
            "group": [0], "blob": [1], "previous_step": [-1], "row_start": [0], "row_count": [1],
            "string_start": [2], "string_count": [3], "first_string": [4], "full": [True],
            "previous": ["1" * 32], "token": ["2" * 32],
        }},
        "blobs": [
            {"name": "file", "inline": None, "length": 9, "crc32": 8},
            {"name": None, "inline": "blob", "length": 3, "crc32": zlib.crc32(b"abc")},
        ],
        "files": [
            {"name": "output/x", "length": 1, "crc32": 2},
            {"name": "sources/y", "length": 3, "crc32": 4},
        ],
        "engine": {"a": [1]},
        "body": [["rows", 0, 5, zlib.crc32(b"12345")], ["blob", 5, 3, zlib.crc32(b"abc")]],
    }  # fmt: skip
    assert made.checksums("output") == {"x": 2}
    assert made.checksums("backlog") == {}
    with pytest.raises(
        CheckpointError, match="is not in one of changelog, output, backlog, late, sources"
    ):
        encode(replace(made, files=(FileEntry("other/x", 1, 2),)))


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("format", 3, "has format 3, this headgate reads up to format 2: upgrade headgate"),
        ("format", None, "has format None"),
        ("body.0.1", 1, "field rows"),
        ("body.0.2", 4, "field rows"),
        ("body.1.2", 30, "field blob"),
        ("body.1.3", 1, "field blob"),
        ("heads.op.tokens.0", "x", "field heads"),
        ("heads.op.steps", [5], "field heads"),
        ("heads.op.tokens", ["2" * 32], "field heads"),
        ("sections.op.blob.0", 2, "field 0"),
        ("sections.op.blob.0", -1, "field 0"),
        ("sections.op.token.0", "x", "field 0"),
        ("sections.op.previous.0", "x", "field 0"),
        ("sections.op.group", [], "field zip"),
        ("sections.op.full", [], "field zip"),
        ("blobs.0.name", None, "BlobEntry"),
        ("blobs.0.inline", "blob", "BlobEntry"),
        ("blobs.1.inline", "other", "BlobEntry"),
        ("blobs.1.name", "../x", "cannot name a file of a checkpoint"),
        ("files.0.name", "other/x", "is not in one of"),
        ("files.0.name", "output/../x", "cannot name a file of a checkpoint"),
        ("files.0.name", "x", "is not in one of"),
        ("spark_batch", "../../metadata", "field spark_batch"),
        ("spark_batch", True, "field spark_batch"),
        ("step", 0.5, "field step"),
        ("epoch", None, "field epoch"),
        ("job", ..., "is damaged"),
        ("more", 1, "is damaged"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(where: str, value: Any, says: str) -> None:
    _, head = whole()
    place: Any = head
    *way, last = where.split(".")
    for key in way:
        place = place[int(key) if isinstance(place, list) else key]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    with pytest.raises(CheckpointError) as refused:
        decode(sealed(json_line(head) + b"12345abc")[0], "the file")
    assert says in str(refused.value)


@pytest.mark.parametrize("length", [-1, 4])
@pytest.mark.parametrize("at", [0, 1, 500, -74, -73, -72, -1])
def test_a_manifest_with_a_byte_less_or_another_is_refused(at: int, length: int) -> None:
    raw, _ = encode(whole()[0])
    place = at % len(raw)
    other = raw[:place] + raw[place + 1 :] if length < 0 else raw[:place] + b"~" + raw[place + 1 :]
    with pytest.raises(CheckpointError, match=r"the file is damaged .its checksum does not match"):
        decode(other, "the file")


def test_names_of_steps_sort_as_their_numbers_do() -> None:
    numbers = [0, 9, 10, 99, 100, 12345]
    assert sorted(map(file_name, reversed(numbers))) == list(map(file_name, numbers))


def test_a_step_is_committed_once(tmp_path: Path) -> None:
    checkpoint, job = begun(tmp_path)
    checkpoint.commit(manifest(job, 0))
    with pytest.raises(CheckpointError, match="stop one of the two drivers"):
        Checkpoint(tmp_path).commit(manifest(job, 0, payloads={"x": b"y"}))
    assert Checkpoint(tmp_path).read(0).payloads == {}


def test_an_intent_may_be_replaced_by_a_retry(tmp_path: Path) -> None:
    checkpoint, _ = begun(tmp_path)
    for attempt in (1, 2):
        checkpoint.write_intent(3, {"attempt": attempt})
    assert checkpoint.read_intent(3) == {"attempt": 2}


def test_a_chain_begins_behind_the_token_that_is_there(tmp_path: Path) -> None:
    checkpoint, job = begun(tmp_path)
    tokens = [EMPTY_TOKEN, *(digit * 32 for digit in "123")]
    nothing = (np.zeros((1, 4), np.int64), np.zeros(1, np.int64), np.zeros(0, np.uint8), 0)
    for step, (before, token) in enumerate(itertools.pairwise(tokens)):
        blob, refs = changelog.encode({0: Section(token, before, False, *nothing)})
        entry = BlobEntry(None, "blob", len(blob), zlib.crc32(blob))
        changed = manifest(job, step, blobs=(entry,), payloads={"blob": blob})
        checkpoint.commit(
            replace(changed, sections={"op": {0: SectionEntry(0, refs[0], step - 1)}})
        )
    chain = checkpoint.chain("op", 0, 2)
    assert [section.token for section in chain(EMPTY_TOKEN)] == tokens[1:]
    assert [section.token for section in chain(tokens[1])] == tokens[2:]
    assert chain(tokens[3]) == []


# Garbage.


def committed(checkpoint: Checkpoint, job: str, step: int, *names: str) -> None:
    """Commit a step that needs some files, and collect garbage as a driver does."""
    needed = tuple(FileEntry(name, 0, 0) for name in names)
    checkpoint.collect_garbage(checkpoint.commit(manifest(job, step, files=needed)))


def test_the_last_two_manifests_are_kept_though_nothing_happened_in_them(tmp_path: Path) -> None:
    checkpoint, job = begun(tmp_path)
    for step in range(5):
        checkpoint.write_intent(step, {})
        committed(checkpoint, job, step)
    assert checkpoint.steps() == [0, 3, 4], "and the driver's first one"
    assert [step for step in range(5) if checkpoint.read_intent(step) is not None] == [3, 4]


def test_a_file_that_the_last_manifest_but_one_names_is_kept(tmp_path: Path) -> None:
    checkpoint, job = begun(tmp_path)
    checkpoint.write_file("backlog", "x", b"")
    there = []
    for step, names in enumerate((["backlog/x"], ["backlog/x"], [], [])):
        committed(checkpoint, job, step, *names)
        there.append((checkpoint.root / "backlog" / "x").exists())
    assert there == [True, True, True, False]


def test_a_file_that_nothing_names_is_kept_when_it_is_seen_first(tmp_path: Path) -> None:
    checkpoint, job = begun(tmp_path)
    checkpoint.write_file("output", "attempt", b"of a task that still runs")
    committed(checkpoint, job, 0)
    assert (checkpoint.root / "output" / "attempt").exists()


def test_manifests_that_say_the_same_are_the_same_whatever_their_digests() -> None:
    one = manifest("job", 3)
    assert replace(one, digest="a") == replace(one, digest="b")
    assert one != replace(one, epoch=one.epoch + 1)
