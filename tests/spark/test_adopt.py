"""A plain query's checkpoint goes on as headgate's, and headgate's as a plain one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import answers
import carried_state as carry
import pytest
from carried_queries import ADOPTED, AGGREGATES, EXPORTED, WHOLE, timed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import CheckpointError, HeadgateError, UnsupportedQuery
from headgate.spark.jvm.statestores import state_metadata, state_rows
from headgate.spark.plain.adopting import paired

PROVIDERS = {"hdfs": carry.HDFS, "rocksdb": carry.ROCKSDB}
SHOWN: dict[str, list[tuple[str, str]]] = {
    "adopt": [("windows, append", "hdfs")],
    "export": [("keys", "rocksdb")],
}
"""What always runs; all else runs with ``--thorough``."""


def cases(act: str, names: dict[str, carry.Query]) -> list[object]:
    return [
        pytest.param(
            name,
            provider,
            marks=[] if (name, provider) in SHOWN[act] else [pytest.mark.thorough],
            id=f"{name}-{provider}",
        )
        for name in names
        for provider in PROVIDERS
        # Spark keeps the state of transformWithState in RocksDB only
        if (name, provider) != ("processor", "hdfs")
    ]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "in"
    carry.write_files(folder, seed=1)
    return folder


def same(session: SparkSession, query: carry.Query, files: Path, place: Path, **how: object) -> str:
    """Return how the answer differs from Spark's if a query is carried after some files."""
    move = carry.adopted if how["act"] == "adopt" else carry.exported
    session.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[str(how["kept_by"])])
    got, told = move(session, query, files, place, at=how["at"])
    assert sum(one["entries"] for one in told["operators"]) > 0
    expected = carry.expected(session, query, files, place, at=how["at"])
    assert expected
    return answers.differences(expected, got)


@pytest.mark.parametrize(("name", "provider"), cases("adopt", ADOPTED))
def test_headgate_goes_on_where_plain_spark_stopped(
    session: SparkSession, files: Path, tmp_path: Path, name: str, provider: str
) -> None:
    how = {"act": "adopt", "kept_by": provider, "at": 3}
    assert same(session, ADOPTED[name], files, tmp_path, **how) == ""


@pytest.mark.parametrize(("name", "provider"), cases("export", EXPORTED))
def test_plain_spark_goes_on_where_headgate_stopped(
    session: SparkSession, files: Path, tmp_path: Path, name: str, provider: str
) -> None:
    how = {"act": "export", "kept_by": provider, "at": 3}
    assert same(session, EXPORTED[name], files, tmp_path, **how) == ""


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ADOPTED)
def test_wherever_it_is_cut_the_answer_is_sparks(
    session: SparkSession, tmp_path: Path, name: str, seed: int
) -> None:
    folder = tmp_path / "data"
    carry.write_files(folder, seed=100 + seed)
    provider = "rocksdb" if name == "processor" or seed % 2 else "hdfs"
    for act, names in (("adopt", ADOPTED), ("export", EXPORTED)):
        if name in names:
            how = {"act": act, "kept_by": provider, "at": 1 + (seed * 7 + len(name)) % 5}
            assert same(session, names[name], folder, tmp_path / act, **how) == "", (act, how)


def brief(frame: DataFrame) -> DataFrame:
    window = F.window("ts", "4 seconds").alias("w")
    return timed(frame).groupBy(window, "k").agg(F.count("*").alias("n"), F.max("s").alias("s"))


@pytest.mark.thorough
def test_there_and_back_with_one_sink_of_files(
    session: SparkSession, files: Path, tmp_path: Path
) -> None:
    session.conf.set("spark.sql.streaming.stateStore.providerClass", carry.HDFS)
    carry.come(files, tmp_path / "in", 2)
    frame = brief(carry.source(session, tmp_path / "in", files))
    counts = []

    def run(make: Any, checkpoint: str) -> None:
        written = make(frame).outputMode("append").format("parquet")
        written = written.option("path", str(tmp_path / "out")).trigger(availableNow=True)
        query = written.option("checkpointLocation", str(tmp_path / checkpoint)).start()
        query.awaitTermination()
        counts.append(session.read.parquet(str(tmp_path / "out")).count())

    def plainly(of: DataFrame) -> Any:
        return of.writeStream

    def ours(of: DataFrame) -> hg.Writer:
        return hg.writeStream(of).keyGroups(4).slots(start=2)

    run(plainly, "plain")
    to = ours(frame).outputMode("append").option("checkpointLocation", str(tmp_path / "ours"))
    hg.adopt(to, str(tmp_path / "plain"))
    carry.come(files, tmp_path / "in", 4)
    run(ours, "ours")
    hg.export(to, str(tmp_path / "again"))
    carry.come(files, tmp_path / "in", carry.FILES)
    run(plainly, "again")
    expected = brief(session.read.parquet(str(files))).where(F.col("w.end") <= carry.due(files))
    got = session.read.parquet(str(tmp_path / "out")).collect()
    assert answers.differences(expected.collect(), got) == ""
    assert 0 < counts[0] < counts[1] < counts[2]


# -- what is refused --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(
    session: SparkSession, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DataFrame, Path]:
    """A source of three files, and the checkpoint of a plain query of windows over it."""
    place = tmp_path_factory.mktemp("plain")
    carry.come(files, place / "in", 3)
    source = carry.source(session, place / "in", files)
    query = AGGREGATES["windows, append"]
    carry.run_plain(query.build(source), query, place / "plain", [])
    return source, place / "plain"


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            found.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return found.hexdigest()


def other_key(frame: DataFrame) -> DataFrame:
    return timed(frame).groupBy(F.window("ts", "10 seconds"), "s").agg(F.count("*").alias("n"))


def other_figures(frame: DataFrame) -> DataFrame:
    return timed(frame).groupBy(F.window("ts", "10 seconds"), "k").agg(F.count("*").alias("n"))


def collected(frame: DataFrame) -> DataFrame:
    window = F.window("ts", "10 seconds")
    return timed(frame).groupBy(window, "k").agg(F.collect_list("x").alias("n"))


def overlapping(frame: DataFrame) -> DataFrame:
    window = F.window("ts", "10 seconds", "5 seconds")
    return timed(frame).groupBy(window, "k").agg(F.count("*").alias("n"))


def two(frame: DataFrame) -> DataFrame:
    return other_figures(frame).groupBy("window").agg(F.sum("n").alias("n"))


def branches(frame: DataFrame) -> DataFrame:
    return other_key(frame).select("n").union(other_figures(frame).select("n"))


REFUSED = {
    "another key": (other_key, CheckpointError, "k int.*s string"),
    "other figures": (other_figures, CheckpointError, "count bigint, count bigint.*keeps count"),
    "duplicates": (
        lambda f: timed(f).dropDuplicates(["ts", "k"]),
        CheckpointError,
        "state is of stateStoreSave where the query has Deduplicate",
    ),
    "slices": (overlapping, UnsupportedQuery, 'option."headgate.windows", "whole"'),
    "two operators": (
        two,
        CheckpointError,
        "state of stateStoreSave where the query has Agg.*, Agg",
    ),
    "two branches": (
        branches,
        UnsupportedQuery,
        "stateful operators, which do not follow each other",
    ),
    "no operator": (lambda f: f.select("k"), UnsupportedQuery, "0 stateful operators"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", REFUSED)
def test_a_query_of_another_state_is_refused_and_nothing_is_written(
    plain: tuple[DataFrame, Path], tmp_path: Path, name: str
) -> None:
    build, error, text = REFUSED[name]
    source, checkpoint = plain
    before = digest(checkpoint)
    query = carry.Query(build, "append")
    with pytest.raises(error, match=text):
        hg.adopt(carry.writer(build(source), query, tmp_path / "ours", []), str(checkpoint))
    assert not (tmp_path / "ours").exists()
    assert digest(checkpoint) == before


@pytest.mark.thorough
def test_a_place_that_is_taken_is_refused(plain: tuple[DataFrame, Path], tmp_path: Path) -> None:
    source, checkpoint = plain
    query = AGGREGATES["windows, append"]
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "mine").write_text("kept")
    writer = carry.writer(query.build(source), query, tmp_path / "ours", [])
    with pytest.raises(CheckpointError, match="is there already and not empty"):
        hg.adopt(writer, str(checkpoint))
    with pytest.raises(CheckpointError, match="is there already and not empty"):
        hg.export(writer, str(tmp_path / "ours"))
    assert (tmp_path / "ours" / "mine").read_text() == "kept"


@pytest.mark.thorough
def test_what_is_no_checkpoint_to_carry_is_refused(
    plain: tuple[DataFrame, Path], tmp_path: Path
) -> None:
    source, _ = plain
    query = AGGREGATES["windows, append"]
    writer = carry.writer(query.build(source), query, tmp_path / "ours", [])
    with pytest.raises(CheckpointError, match='has no file "metadata"'):
        hg.adopt(writer, str(tmp_path))
    with pytest.raises(HeadgateError, match="no directory with a checkpoint of headgate's"):
        hg.export(writer, str(tmp_path / "plain"))
    assert not (tmp_path / "ours").exists()


@pytest.mark.thorough
def test_windows_of_another_length_are_not_taken_for_those_of_the_query(
    session: SparkSession, plain: tuple[DataFrame, Path], tmp_path: Path
) -> None:
    source, _ = plain

    def counted(window: Any) -> DataFrame:
        return timed(source).groupBy(window, "k").agg(F.count("*").alias("n"))

    query = carry.Query(lambda _: counted(F.window("ts", "10 seconds")), "append")
    carry.run_plain(query.build(source), query, tmp_path / "plain", [])
    other = carry.writer(counted(F.window("ts", "20 seconds")), query, tmp_path / "ours", [])
    said = "windows of 10 s where the query has those of 20 s; give the query that wrote it"
    with pytest.raises(CheckpointError, match=said):
        hg.adopt(other, str(tmp_path / "plain"))
    assert not (tmp_path / "ours").exists()


OTHER_WINDOWS = {
    "another start": (("10 seconds",), ("10 seconds", "10 seconds", "3 seconds")),
    "more often": (("20 seconds", "10 seconds"), ("20 seconds", "5 seconds")),
    "less often": (("20 seconds", "5 seconds"), ("20 seconds", "10 seconds")),
    "overlapping": (("20 seconds",), ("20 seconds", "10 seconds")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHER_WINDOWS)
def test_windows_that_begin_at_other_times_are_not_taken_for_those_of_the_query(
    plain: tuple[DataFrame, Path], tmp_path: Path, name: str
) -> None:
    source, _ = plain

    def counted(window: tuple[str, ...]) -> DataFrame:
        return timed(source).groupBy(F.window("ts", *window), "k").agg(F.count("*").alias("n"))

    written, wanted = OTHER_WINDOWS[name]
    query = carry.Query(lambda _: counted(written), "append", options=WHOLE)
    carry.run_plain(query.build(source), query, tmp_path / "plain", [])
    other = carry.writer(counted(wanted), query, tmp_path / "ours", [])
    said = r"from 20.* do not begin where those of the query do, every \d+ s from [03] s on;"
    with pytest.raises(CheckpointError, match=said):
        hg.adopt(other, str(tmp_path / "plain"))
    assert not (tmp_path / "ours").exists()
    hg.adopt(carry.writer(counted(written), query, tmp_path / "ours", []), str(tmp_path / "plain"))


@pytest.mark.thorough
def test_a_checkpoint_of_two_sources_is_not_taken_for_one(
    session: SparkSession, plain: tuple[DataFrame, Path], files: Path, tmp_path: Path
) -> None:
    source, checkpoint = plain
    carry.come(files, tmp_path / "other", 1)
    both = source.union(carry.source(session, tmp_path / "other", files))
    query = AGGREGATES["windows, append"]
    said = "has offsets of 1 sources where the query has 2; give the query that wrote it"
    with pytest.raises(CheckpointError, match=said):
        hg.adopt(carry.writer(query.build(both), query, tmp_path / "ours", []), str(checkpoint))
    assert not (tmp_path / "ours").exists()
    # one source, read twice: the other way round nobody can tell
    twice = source.union(source)
    carry.run_plain(query.build(twice), query, tmp_path / "plain", [])
    writer = carry.writer(query.build(twice), query, tmp_path / "ours", [])
    hg.adopt(writer, str(tmp_path / "plain"))


@pytest.mark.parametrize("text", ["", "v1\n{nonsense", "v9\n{}"])
def test_metadata_of_state_that_are_damaged_are_one_sentence(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    metadata = tmp_path / "state" / "0" / "_metadata" / "metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(text)
    with pytest.raises(CheckpointError, match=r"the state below .* cannot be read \(") as raised:
        state_metadata(spark, tmp_path)
    said = str(raised.value)
    assert "\n" not in said
    assert len(said) < 500
    assert "Task 0" not in said


def test_state_of_which_nothing_was_committed_is_one_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(
        CheckpointError, match=r"state of operator 0 below .* cannot be read"
    ) as said:
        state_rows(spark, tmp_path, 0, 0)
    assert "\n" not in str(said.value)


@pytest.mark.thorough
def test_a_state_file_that_is_lost_is_one_sentence_and_leaves_nothing(
    session: SparkSession, files: Path, tmp_path: Path
) -> None:
    session.conf.set("spark.sql.streaming.stateStore.providerClass", carry.HDFS)
    carry.come(files, tmp_path / "in", 3)
    source = carry.source(session, tmp_path / "in", files)
    query = AGGREGATES["windows, append"]
    carry.run_plain(query.build(source), query, tmp_path / "plain", [])
    for file in (tmp_path / "plain" / "state").rglob("1.delta"):
        file.unlink()
    writer = carry.writer(query.build(source), query, tmp_path / "ours", [])
    with pytest.raises(CheckpointError, match=r"state below .* cannot be read .*1.delta") as raised:
        hg.adopt(writer, str(tmp_path / "plain"))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "ours").exists()


@pytest.mark.thorough
def test_a_place_that_cannot_be_is_refused(plain: tuple[DataFrame, Path], tmp_path: Path) -> None:
    source, checkpoint = plain
    query = AGGREGATES["windows, append"]

    def adopted(to: Path, of: str) -> None:
        hg.adopt(carry.writer(query.build(source), query, to, []), of)

    with pytest.raises(CheckpointError, match=r"s3://b/k lies on a store, and .* between director"):
        adopted(tmp_path / "ours", "s3://b/k")
    with pytest.raises(CheckpointError, match=r"lies in the checkpoint .*, which is only read"):
        adopted(checkpoint / "sub", str(checkpoint))
    (tmp_path / "file").write_text("kept")
    with pytest.raises(CheckpointError, match=r"cannot be used .Not a directory.: make it a dir"):
        adopted(tmp_path / "file" / "ours", str(checkpoint))
    assert not (checkpoint / "sub").exists()


def operators(*parents: list[str]) -> list[Any]:
    return [SimpleNamespace(parents=names) for names in parents]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (SimpleNamespace(operators=[], last=["a"]), "0 stateful operators, so there is no state"),
        (
            SimpleNamespace(operators=operators([], [], ["a", "b"]), last=["c"]),
            "3 stateful operators, which do not follow each other",
        ),
        (
            SimpleNamespace(operators=operators([], []), last=["a", "b"]),
            "2 stateful operators, which do not follow each other",
        ),
    ],
)
def test_what_has_no_state_or_branches_is_not_carried(query: Any, why: str) -> None:
    with pytest.raises(UnsupportedQuery, match=why):
        paired(query, [])
