"""Spark's log as files, and columns of state beside those of a query; no session is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import types as T

from headgate.core.errors import CheckpointError, HeadgateError
from headgate.spark.jvm.minors import adapter_for
from headgate.spark.plain import log
from headgate.spark.plain.plain_state import check_columns

NOTES = {"batchWatermarkMs": 5000, "batchTimestampMs": 7, "conf": {"spark.x": "y"}}
OFFSET = '{"logOffset":3}'


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A checkpoint as plain Spark leaves it after batch 10."""
    place = tmp_path / "plain"
    for batch in (9, 10):
        entry = log.LogEntry(batch, NOTES, [OFFSET, "-"], 6000)
        log.begin(place, entry, ticks=False)
        log.commit(place, entry)
    (place / "metadata").write_text('{"id":"x"}')
    (place / "sources" / "0").mkdir(parents=True)
    (place / "sources" / "0" / "3").write_text("v1")
    (place / "offsets" / ".10.crc").write_bytes(b"crc")
    return place


def test_the_newest_batch_is_read(plain: Path) -> None:
    found = log.newest(plain)
    assert (found.batch, found.watermark_us, found.next_watermark_ms) == (10, 5_000_000, 6000)
    assert found.sources == [OFFSET, ""]
    assert found.notes == NOTES


def test_a_log_is_written_with_ticks_and_read_without(plain: Path, tmp_path: Path) -> None:
    found, ours = log.newest(plain), tmp_path / "ours"
    log.begin(ours, found, ticks=True)
    log.commit(ours, found)
    log.copy_beside(plain, ours)
    lines = (ours / "offsets" / "10").read_text().splitlines()
    assert lines[1] == json.dumps(NOTES, separators=(",", ":")), (
        "without spaces, as Spark writes it"
    )
    assert lines[2:] == [OFFSET, "-", "0"]
    assert log.newest_of_ours(ours) == found
    assert json.loads((ours / "metadata").read_text()) == {"id": "x"}
    assert (ours / "sources" / "0" / "3").read_text() == "v1"


def altered(plain: Path, what: str) -> None:
    """Alter a checkpoint."""
    offsets = plain / "offsets" / "10"
    if what == "a batch that was begun":
        (plain / "offsets" / "11").write_text(offsets.read_text())
    elif what == "another form":
        offsets.write_text(offsets.read_text().replace("v1", "v2", 1))
    elif what == "a cut":
        offsets.write_text("v1")
    elif what == "no JSON":
        offsets.write_text(offsets.read_text().replace("{", "", 1))
    elif what == "much JSON":
        offsets.write_text("v1\n" + "[" * 100_000 + "\n" + OFFSET)
    elif what == "no number":
        offsets.write_text(offsets.read_text().replace("{", '{"a":NaN,', 1))
    elif what == "no text":
        offsets.write_bytes(b"\xff\xfe")
    elif what == "an old log":
        offsets.write_text("v1\n{}\n" + OFFSET)
    elif what == "no commit":
        for file in (plain / "commits").iterdir():
            file.unlink()
    elif what == "no metadata":
        (plain / "metadata").unlink()
    else:
        (plain / "headgate").mkdir()


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a batch that was begun", "ends within batch 11; start the plain query once more"),
        ("another form", 'has the form "v2"'),
        ("a cut", "ends behind its first line; restore the checkpoint from a copy"),
        ("no JSON", "has a damaged log"),
        ("much JSON", r"has a damaged log \(its log is not JSON: it is nested"),
        ("no number", r"has a damaged log \(its log is not JSON: NaN"),
        ("no text", "cannot be read"),
        ("an old log", "a Spark before 2.2"),
        ("no commit", "has no committed batch"),
        ("no metadata", 'has no file "metadata"'),
        ("headgate's own", "is a checkpoint of headgate's already"),
    ],
)
def test_a_log_that_says_less_than_it_must_is_refused(plain: Path, what: str, text: str) -> None:
    altered(plain, what)
    with pytest.raises(CheckpointError, match=text):
        log.newest(plain)


def test_a_line_of_the_log_ends_only_where_spark_ends_it(plain: Path) -> None:
    offsets = max((plain / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    *lines, _ = offsets.read_text().split("\n")
    offsets.write_text("\n".join([*lines, '{"at":"a\u2028b"}']))
    assert log.newest(plain).offsets[-1] == '{"at":"a\u2028b"}'


def test_spark_4_1_has_nothing_that_writes_state() -> None:
    with pytest.raises(HeadgateError, match=r"export with Spark 4\.2 or later"):
        adapter_for("4.1.4").state_rewriter(None)


def test_ours_without_a_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no batch that Spark has committed"):
        log.newest_of_ours(tmp_path)


def test_what_is_made_in_vain_goes_again(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"

    def fail() -> None:
        with log.fresh(place):
            (place / "file").write_text("x")
            msg = "in vain"
            raise ValueError(msg)

    with pytest.raises(ValueError, match="in vain"):
        fail()
    assert not place.exists()
    with log.fresh(place):
        (place / "file").write_text("x")
    assert (place / "file").exists()
    with pytest.raises(CheckpointError, match="is there already and not empty"), log.fresh(place):
        pass
    assert (place / "file").exists()


def test_columns_are_compared_by_name_and_type() -> None:
    there = [("k", T.IntegerType()), ("sum", T.LongType())]
    check_columns("it", there, [("k", T.IntegerType()), ("", T.LongType())])
    for other in (
        [("k", T.LongType()), ("sum", T.LongType())],
        [("j", T.IntegerType()), ("sum", T.LongType())],
        [("k", T.IntegerType())],
        [],
    ):
        with pytest.raises(CheckpointError, match="has k int, sum bigint where it keeps"):
            check_columns("it", there, other)
