"""What stands in Spark's log behind epochs, so that batches go on from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate.checkpoint.epochs import (
    first_offsets,
    next_watermark_us,
    write_first_offsets,
    write_identity,
    write_log,
)
from headgate.checkpoint.manifest import NEXT_WATERMARK_US, REAL_TIME, Manifest
from headgate.core.errors import CheckpointError


def manifest(batch: int, *, epoch: bool = True) -> Manifest:
    engine = {"sources": ['{"event": 7}']}
    if epoch:
        engine |= {REAL_TIME: {NEXT_WATERMARK_US: 9_000_000}}  # type: ignore[dict-item]
    marks = {"evict_us": 5_000_000, "late_us": 4_000_000}
    return Manifest("job", 3, batch, 0, {}, marks, {}, {}, engine=engine)


def batch(log: Path, number: int, *, offset: str, watermark_ms: int | None) -> None:
    """Write a batch as Spark does; one without a watermark behind it is not committed."""
    for kind in ("offsets", "commits"):
        (log / kind).mkdir(exist_ok=True)
    (log / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":1}}\n{offset}\n41')
    if watermark_ms is not None:
        text = json.dumps({"nextBatchWatermarkMs": watermark_ms})
        (log / "commits" / str(number)).write_text(f"v1\n{text}")


def lines(log: Path, name: str) -> list[str]:
    return (log / name).read_text().split("\n")


def test_batches_go_on_from_the_newest_epoch(tmp_path: Path) -> None:
    write_log(tmp_path, manifest(12))
    assert {file.name for file in (tmp_path / "offsets").iterdir()} == {"11", "12"}
    version, notes, source, tick = lines(tmp_path, "offsets/12")
    assert (version, source, tick) == ("v1", '{"event": 7}', "0")
    assert json.loads(notes)["batchWatermarkMs"] == 5_000
    # a batch begins at the watermark at which the one before has ended
    assert json.loads(lines(tmp_path, "commits/11")[1]) == {"nextBatchWatermarkMs": 5_000}
    assert json.loads(lines(tmp_path, "commits/12")[1]) == {"nextBatchWatermarkMs": 9_000}
    assert json.loads((tmp_path / "metadata").read_text())["id"]


@pytest.mark.parametrize("kind", ["offsets", "commits"])
def test_what_is_no_file_in_sparks_log_is_neither_followed_nor_waited_for(
    tmp_path: Path, kind: str
) -> None:
    batch(tmp_path, 12 if kind == "commits" else 11, offset="-", watermark_ms=1)
    file = next((tmp_path / kind).iterdir())
    file.unlink()
    other = tmp_path / "other"
    other.write_text('{"nextBatchWatermarkMs": 99}')
    file.symlink_to(other)
    reads = next_watermark_us if kind == "commits" else write_log
    with pytest.raises(CheckpointError, match="cannot be read"):
        reads(tmp_path, manifest(12, epoch=kind == "offsets"))


def test_what_spark_has_written_stays_and_its_tick_goes_on(tmp_path: Path) -> None:
    batch(tmp_path, 11, offset="-", watermark_ms=None)
    write_log(tmp_path, manifest(12))
    assert lines(tmp_path, "offsets/11")[2:] == ["-", "41"]
    assert not (tmp_path / "commits" / "11").exists()
    assert lines(tmp_path, "offsets/12")[2:] == ['{"event": 7}', "41"]


@pytest.mark.parametrize("newest", [None, manifest(11, epoch=False), manifest(11)])
def test_a_log_that_is_as_far_is_left_alone(tmp_path: Path, newest: Manifest | None) -> None:
    batch(tmp_path, 11, offset="-", watermark_ms=2)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    write_log(tmp_path, newest)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_crash_before_the_last_file_is_made_good(tmp_path: Path) -> None:
    write_log(tmp_path, manifest(12))
    (tmp_path / "offsets" / "12").unlink()
    write_log(tmp_path, manifest(12))
    assert lines(tmp_path, "offsets/12")[2:] == ['{"event": 7}', "0"]


def test_the_watermark_behind_a_step_is_that_of_its_epoch_or_of_sparks_commit(
    tmp_path: Path,
) -> None:
    assert next_watermark_us(tmp_path, None) == 0
    assert next_watermark_us(tmp_path, manifest(3)) == 9_000_000
    plain = manifest(3, epoch=False)
    assert next_watermark_us(tmp_path, plain) == 5_000_000
    batch(tmp_path, 3, offset="-", watermark_ms=6_500)
    assert next_watermark_us(tmp_path, plain) == 6_500_000


def test_the_first_offsets_and_the_identity_are_written_once(tmp_path: Path) -> None:
    assert first_offsets(tmp_path, 0) is None
    write_first_offsets(tmp_path, 0, '{"t":{"0":5}}')
    write_first_offsets(tmp_path, 1, '{"t":{"0":6}}')
    assert first_offsets(tmp_path, 0) == '{"t":{"0":5}}'
    assert first_offsets(tmp_path, 1) == '{"t":{"0":6}}'
    # as Spark's source reads it: a byte, the version, the offsets
    assert (tmp_path / "sources" / "0" / "0").read_bytes() == b'\0v1\n{"t":{"0":5}}'
    write_identity(tmp_path)
    known = (tmp_path / "metadata").read_bytes()
    write_identity(tmp_path)
    assert (tmp_path / "metadata").read_bytes() == known
