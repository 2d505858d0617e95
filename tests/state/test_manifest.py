"""What a manifest must be to be believed: of its step, job and format, after the one before."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import CheckpointError
from headgate.state.checkpoint import Checkpoint
from headgate.state.manifest import (
    FORMAT,
    BlobEntry,
    Manifest,
    decode,
    encode,
    file_name,
    json_line,
    sealed,
    unsealed,
)

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
