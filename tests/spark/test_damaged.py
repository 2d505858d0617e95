"""A checkpoint is damaged, Spark's own files in it too: a restart names that, or the answer is right."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damaged import Base, bases, check_sound, made_base, print_table, put_back, restarted
from pyspark.sql import SparkSession

import headgate as hg
from headgate.core.errors import CheckpointError
from headgate.spark.jvm import sparksinks


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Base:
    """A checkpoint of files into files, after its query has ended."""
    place = tmp_path_factory.mktemp("files")
    return made_base(spark, "files", place, running=False, sink="parquet")


@pytest.fixture(scope="module")
def rate(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Base:
    """A checkpoint of a rate, as a driver leaves it that was killed between two batches."""
    return made_base(spark, "rate", tmp_path_factory.mktemp("rate"), running=True)


def newest(checkpoint: Path, kind: str) -> Path:
    return max((f for f in (checkpoint / kind).iterdir() if f.name.isdecimal()), key=_number)


def _number(file: Path) -> int:
    return int(file.name)


def digit(file: Path, key: str) -> None:
    """Raise the first digit behind a key by one."""
    text = file.read_text()
    at = re.search(f"{key}[^0-9]*([0-8])", text)
    assert at is not None, text
    file.write_text(f"{text[: at.start(1)]}{int(at[1]) + 1}{text[at.end(1) :]}")


def halved(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def swapped(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def of_before(base: Base, part: str) -> None:
    shutil.rmtree(base.place / "ck" / part)
    shutil.copytree(base.older / "ck" / part, base.place / "ck" / part)


def watermark(base: Base) -> None:
    digit(newest(base.place / "ck", "offsets"), "batchWatermarkMs")


def next_watermark(base: Base) -> None:
    digit(newest(base.place / "ck", "commits"), "nextBatchWatermarkMs")


def cut_offsets(base: Base) -> None:
    halved(newest(base.place / "ck", "offsets"))


def batch_gone(base: Base) -> None:
    newest(base.place / "ck", "offsets").unlink()


def batches_swapped(base: Base) -> None:
    last = newest(base.place / "ck", "offsets")
    swapped(last, last.with_name(str(_number(last) - 1)))


def offsets_put_back(base: Base) -> None:
    of_before(base, "offsets")


def headgate_put_back(base: Base) -> None:
    of_before(base, "headgate")


def first_of_source(base: Base) -> None:
    digit(base.place / "ck" / "sources" / "0" / "0", "v1")


def seen_files(base: Base) -> None:
    newest(base.place / "ck", "sources/0").unlink()


def no_id(base: Base) -> None:
    (base.place / "ck" / "metadata").unlink()


@pytest.mark.parametrize(
    "act", [watermark, next_watermark, cut_offsets, seen_files, headgate_put_back]
)
def test_damages_under_a_source_of_files_are_refused_by_name(
    files: Base, act: Callable[[Base], None]
) -> None:
    put_back(files)
    act(files)
    outcome, text = restarted(files)
    assert outcome == "refused", text
    assert "checkpoint" in text
    if act is not headgate_put_back:
        assert not hg.inspect(files.place / "ck", verify=True)["sound"]


@pytest.mark.parametrize(
    "act", [watermark, batch_gone, batches_swapped, offsets_put_back, first_of_source, no_id]
)
def test_damages_under_a_rate_are_refused_by_name(rate: Base, act: Callable[[Base], None]) -> None:
    put_back(rate)
    act(rate)
    outcome, text = restarted(rate)
    assert outcome == "refused", text
    assert not hg.inspect(rate.place / "ck", verify=True)["sound"]


def test_what_is_not_damaged_goes_on(files: Base, rate: Base) -> None:
    for base in (files, rate):
        put_back(base)
        assert hg.inspect(base.place / "ck", verify=True)["problems"] == []
        newest(base.place / "ck", "commits").unlink()  # as a driver dies between sink and commit
        assert restarted(base) == ("equal", "")


def test_a_checkpoint_behind_its_file_sink_is_refused(files: Base) -> None:
    put_back(files)
    shutil.rmtree(files.place / "ck")
    shutil.copytree(files.older / "ck", files.place / "ck")
    before = files.answer()
    outcome, text = restarted(files)
    assert (outcome, files.answer()) == ("refused", before)
    assert "a checkpoint that is behind its output: it knows outputs up to" in text
    shutil.rmtree(files.place / "ck")  # a new checkpoint for an old path
    outcome, text = restarted(files)
    assert outcome == "refused"
    assert "it knows no output" in text


def test_an_output_that_is_gone_is_not_begun_anew(files: Base) -> None:
    put_back(files)
    shutil.rmtree(files.place / "out" / "_spark_metadata")
    outcome, text = restarted(files)
    assert outcome == "refused"
    assert "has no output in its _spark_metadata, and this query has put out outputs up to" in text


def test_a_sink_that_lost_its_newest_output_is_not_gone_on_in(files: Base) -> None:
    put_back(files)
    newest(files.place / "out", "_spark_metadata").unlink()
    outcome, text = restarted(files)
    assert outcome == "refused"
    assert "in its _spark_metadata, and this query has put out outputs up to" in text


def test_outputs_that_the_next_start_delivers_may_be_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / "5").touch()

    def begins(newest: int, delivered: int) -> None:
        outputs = sparksinks.KnownOutputs(lambda: newest, lambda: delivered)
        sparksinks.FileSink(spark, None, tmp_path, str(tmp_path), outputs).begin()

    begins(7, 5)  # as a driver leaves it that was killed in real time, two epochs behind
    with pytest.raises(CheckpointError, match=r"outputs up to 5 .* put out outputs up to 6:"):
        begins(7, 6)


@pytest.mark.thorough
def test_no_damage_that_is_drawn_by_lot_is_silent(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    made = bases(spark, tmp_path)
    check_sound(made)
    found = print_table(made, 60, seed)
    assert {key[2] for key in found} <= {"refused", "equal"}, f"seed {seed}"
