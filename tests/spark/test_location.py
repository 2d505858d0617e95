"""A checkpoint lies in one directory, for Spark's log and for headgate's state."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headgate as hg
from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.cluster.doctor import doctor
from headgate.spark.cluster.location import Place, check_seen, place, resolved
from headgate.spark.jvm.files import HadoopPath

CONF = "spark.sql.streaming.checkpointLocation"


@pytest.fixture
def elsewhere(spark: SparkSession) -> SparkSession:
    """A session whose default file system is one that nobody answers at."""
    made = spark.newSession()
    made.conf.set("fs.defaultFS", "hdfs://127.0.0.1:9/")
    return made


@pytest.fixture
def numbers(tmp_path: Path) -> Callable[[SparkSession], DataFrame]:
    """Return a stream of two batches, seven numbers."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    for number, values in enumerate([[0, 1, 0], [1, 1, 0, 1]]):
        file = folder / f"{number}.json"
        file.write_text("".join(json.dumps({"k": value}) + "\n" for value in values))
        os.utime(file, (1000 + number, 1000 + number))

    def read(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("k int").option("maxFilesPerTrigger", 1)
        return reader.json(f"file:{folder}").groupBy("k").count()

    return read


def counted(frame: DataFrame, name: str, **options: str) -> Any:
    made = hg.writeStream(frame).format("memory").queryName(name).outputMode("complete")
    return made.options(**options).slots(start=1).trigger(availableNow=True)


def finish(made: Any) -> Any:
    query = made.start()
    query.awaitTermination()
    return query


def test_a_plain_path_is_refused_where_the_default_file_system_is_not_local(
    elsewhere: SparkSession, numbers: Callable[[SparkSession], DataFrame], tmp_path: Path
) -> None:
    place = tmp_path / "ck"
    with pytest.raises(
        CheckpointError, match=r"hdfs://127.0.0.1:9/ to Spark.*file:/path"
    ) as refused:
        counted(numbers(elsewhere), "elsewhere", checkpointLocation=str(place)).start()
    assert str(place) in str(refused.value)
    assert not place.exists()
    rates = elsewhere.readStream.format("rate").load().select("value")
    pools = hg.writeStream(rates.mapInArrow(lambda batches: batches, "value long"))
    with pytest.raises(CheckpointError, match="default file system"):
        pools.policy("psps").format("noop").option("checkpointLocation", str(place)).start()
    found = doctor(elsewhere, state="1 MB", checkpoint=str(place))
    assert not found["sound"]
    assert "default file system" in found["problems"][0]


def test_a_file_uri_works_whatever_the_default_file_system_is(
    elsewhere: SparkSession, numbers: Callable[[SparkSession], DataFrame], tmp_path: Path
) -> None:
    odd = tmp_path / "a b%20 #:ü"
    finish(counted(numbers(elsewhere), "by_uri", checkpointLocation=f"file:{odd}/ck"))
    assert {"headgate", "offsets", "commits"} <= {one.name for one in (odd / "ck").iterdir()}
    assert hg.inspect(f"file:{odd}/ck")["sound"]


@pytest.mark.parametrize("text", ["hdfs:/ck", "dbfs:/", "s3a:/b/ck", "s3a://b", "file://h/ck"])
def test_a_path_of_another_file_system_is_refused_and_makes_no_directory(
    spark: SparkSession,
    numbers: Callable[[SparkSession], DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError) as refused:
        counted(numbers(spark), "other_system", checkpointLocation=text).start()
    assert text in str(refused.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_path_that_is_none_is_refused(spark: SparkSession) -> None:
    with pytest.raises(CheckpointError, match="is no path"):
        resolved(spark, "")
    for text, why in (("/ck\0x", "holds a NUL character"), ("/" + "a" * 300, "longer than a path")):
        with pytest.raises(ConfigError, match=why):
            resolved(spark, text)


def test_an_output_path_means_what_it_means_to_spark(
    spark: SparkSession,
    numbers: Callable[[SparkSession], DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = spark.readStream.schema("k int").json(f"file:{tmp_path}/numbers")
    made = hg.writeStream(frame).format("parquet").option("checkpointLocation", f"{tmp_path}/ck")
    with pytest.raises(ConfigError, match="hdfs"):
        made.option("path", "hdfs:/out").start()
    assert not (tmp_path / "hdfs:").exists()


def test_relative_paths_are_those_of_sparks_jvm(spark: SparkSession) -> None:
    started_in = spark.sparkContext._jvm.System.getProperty("user.dir")
    assert resolved(spark, "x/../y") == Path(started_in) / "y"
    assert resolved(spark, "~") == Path(started_in) / "~"


def test_a_file_that_the_jvm_does_not_see_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not see"):
        check_seen(spark, tmp_path / "gone")


def test_a_log_of_spark_without_headgates_state_is_not_continued(
    spark: SparkSession, numbers: Callable[[SparkSession], DataFrame], tmp_path: Path
) -> None:
    ck = tmp_path / "ck"
    finish(counted(numbers(spark), "lost", checkpointLocation=str(ck)))
    for manifest in (ck / "headgate" / "manifests").iterdir():
        manifest.unlink()
    with pytest.raises(CheckpointError, match="no manifest"):
        counted(numbers(spark), "lost", checkpointLocation=str(ck)).start()
    for batch in (ck / "commits").iterdir():  # as if it could not be listed
        if batch.name.isdecimal() and batch.name != "1":
            batch.unlink()
    shutil.move(ck / "commits", ck / "kept")
    with pytest.raises(StreamingQueryException, match="no manifest"):
        finish(counted(numbers(spark), "lost", checkpointLocation=str(ck)))


# -- without a checkpoint ---------------------------------------------------------------------------


@pytest.fixture
def default_place(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A directory that Spark's own setting names."""
    spark.conf.set(CONF, str(tmp_path / "all"))
    yield tmp_path / "all"
    spark.conf.unset(CONF)


def test_sparks_own_setting_is_the_default_with_the_querys_name_below_it(
    spark: SparkSession, default_place: Path
) -> None:
    assert place(spark, None, "mine", one_time=True).path == default_place / "mine"
    unnamed = {place(spark, None, None, one_time=False).path for _ in range(2)}
    assert [one.parent for one in unnamed] == [default_place, default_place]


def test_a_query_to_memory_needs_no_checkpoint_and_leaves_none(
    spark: SparkSession, numbers: Callable[[SparkSession], DataFrame]
) -> None:
    with pytest.warns(UserWarning, match=r"goes when the query ends; add \.option") as warned:
        query = counted(numbers(spark), "passing").start()
    root = Path(str(query.journal)).parent.parent
    query.awaitTermination()
    assert sorted(spark.table("passing").collect()) == [(0, 3), (1, 4)]
    assert not root.exists()
    assert any(str(root) in str(one.message) for one in warned)


def test_a_temporary_checkpoint_stays_where_the_query_failed(tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "forced").mkdir()
    Place(tmp_path / "forced", temporary=True, forced=True).leave(failed=True)
    Place(tmp_path / "ck", temporary=True).leave(failed=True)
    Place(tmp_path / "ck").leave(failed=False)
    assert [path.name for path in tmp_path.iterdir()] == ["ck"]


def test_a_query_to_files_needs_a_checkpoint(
    spark: SparkSession, numbers: Callable[[SparkSession], DataFrame], tmp_path: Path
) -> None:
    made = hg.writeStream(spark.readStream.schema("k int").json(f"{tmp_path}/numbers"))
    with pytest.raises(ConfigError, match=r'add \.option\("checkpointLocation"'):
        made.format("parquet").start(str(tmp_path / "out"))


def test_names_in_a_directory_are_those_of_its_files_and_none_in_an_empty_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen = HadoopPath(spark, str(tmp_path / "log"))
    assert seen.names() == []
    (tmp_path / "log").mkdir()
    assert seen.names() == []
    for name in ("0", "1.compact", "[a]", ".hidden"):
        (tmp_path / "log" / name).touch()
    assert sorted(seen.names()) == [".hidden", "0", "1.compact", "[a]"]
