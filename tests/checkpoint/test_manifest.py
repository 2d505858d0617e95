"""What a manifest must be to be believed: of its step, job and format, after the one before."""

from __future__ import annotations

import itertools
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.checkpoint import changelog
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import (
    FORMAT,
    BlobEntry,
    FileEntry,
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
    with pytest.raises(CheckpointError, match="upgrade it"):
        decode(raw, "manifest")
    checkpoint, _ = begun(tmp_path)
    (checkpoint.root / "identity.json").write_bytes(raw)
    with pytest.raises(CheckpointError, match="upgrade it"):
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
