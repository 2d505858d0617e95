"""What Spark says of its logs, settings, executors and tasks, and is asked; Spark is made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import EngineError
from headgate.spark.jvm import executors, gauges, hosts, sessions, sparklog, tick
from headgate.spark.jvm.executors import Executor, ExecutorPool, living_executors
from headgate.spark.jvm.gauges import Gauges
from headgate.spark.jvm.logfiles import forget_raw_files, raw_local_files
from headgate.spark.jvm.sessions import (
    PIPELINED,
    pipelined_python,
    pipelines_python,
    set_as_for_batches,
)
from headgate.spark.jvm.sparklog import BatchLog, SparkLog
from headgate.spark.jvm.tasks import failure_of_tasks


class Scala(list[Any]):
    """A collection of Scala's."""

    def iterator(self) -> Any:
        left = list(self)
        return SimpleNamespace(hasNext=lambda: bool(left), next=lambda: left.pop(0))


def option(value: Any) -> Any:
    return SimpleNamespace(isDefined=lambda: value is not None, get=lambda: value)


def known(**values: Any) -> Any:
    """Return an object of the JVM whose methods return these values."""
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


# --- The logs -----------------------------------------------------------------------------------------


def stream(active: Sequence[bool] = ()) -> Any:
    """Return a running query of Spark's whose batch 3 is in its logs; `active` in turn, then the last."""
    offset = known(json='{"a": 1}')
    notes = known(batchWatermarkMs=7, batchTimestampMs=9)
    entry = SimpleNamespace(
        offsets=lambda: Scala([option(offset), option(None), option(known(json="5"))]),
        metadataOpt=lambda: option(notes),
        metadata=lambda: option(notes),
    )
    left = list(active)
    return SimpleNamespace(
        isActive=lambda: left.pop(0) if len(left) > 1 else left[0],
        offsetLog=lambda: SimpleNamespace(get=lambda n: option(entry if n == 3 else None)),
        commitLog=lambda: SimpleNamespace(
            get=lambda n: option(known(nextBatchWatermarkMs=8) if n == 3 else None)
        ),
    )


def log_of(execution: Any, query: str | None = "q1") -> tuple[SparkLog, list[str]]:
    asked: list[str] = []

    def get(query_id: str) -> Any:
        asked.append(query_id)
        return SimpleNamespace(streamingQuery=lambda: execution)

    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query}.get)
    java = SimpleNamespace(streams=lambda: SimpleNamespace(get=get))
    return SparkLog(SimpleNamespace(sparkContext=context, _jsparkSession=java)), asked  # type: ignore[arg-type]


def test_the_log_has_offsets_of_all_sources_but_the_tick_and_times_in_microseconds() -> None:
    log, asked = log_of(stream())
    assert log.batch(3) == BatchLog(7000, ['{"a": 1}', ""], 9.0)
    assert (log.offsets(3), log.offsets(4)) == (['{"a": 1}', ""], None)
    assert (log.next_watermark_us(3), log.next_watermark_us(4)) == (8000, None)
    assert asked == ["q1"], "it is looked for once"


def test_no_query_is_known_before_its_first_batch() -> None:
    with pytest.raises(EngineError, match="not known before its first batch has begun; try again"):
        log_of(stream(), query=None)[0].offsets(3)
    assert log_of(stream([True]))[0].active is True


def test_a_batch_is_refused_once_spark_has_stopped_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(sparklog, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with pytest.raises(EngineError, match=r"Py4JJavaError.*InterruptedException") as error:
        log_of(stream([True, True, False]))[0].refuse_batch()
    assert now[0] == pytest.approx(0.02)
    assert error.value.__suppress_context__
    with pytest.raises(EngineError, match="InterruptedException"):
        log_of(stream([True]))[0].refuse_batch()
    assert now[0] == pytest.approx(10.0, abs=0.1), "it is waited for ten seconds"


@pytest.mark.parametrize(
    ("files", "last"),
    [
        ({}, -1),
        ({"9": "v1\n{}\n4", "10": "v1\n{}\n5", ".10.crc": "9", "10.tmp": "9"}, 5),
        ({"10": "v1\n{}\n3", "9": "v1\n{}\n8"}, 3),
        ({"0": "v1\n{}\n0"}, 0),
    ],
)
def test_a_tick_goes_on_from_the_newest_batch(
    files: dict[str, str], last: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert tick._last_offset(tmp_path) == last
    assert tick._last_offset(tmp_path / "none") == -1
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_a_tick_of_an_older_headgate_becomes_a_number_and_its_checksum_goes(tmp_path: Path) -> None:
    (tmp_path / "7").write_text('v1\n{}\n5\n{"tick": 3}')
    (tmp_path / ".7.crc").write_text("sum")
    assert tick._last_offset(tmp_path) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"7": "v1\n{}\n5\n0"}


@pytest.mark.parametrize("text", ['{"other": 3}', '{"tick": 1, "b": 2}', "3.5", "[]"])
def test_an_offset_of_another_source_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    (tmp_path / "7").write_text(f"v1\n{{}}\n{text}")
    assert tick._last_offset(tmp_path) == -1
    assert (tmp_path / "7").read_text() == f"v1\n{{}}\n{text}"


def ticking(rests: list[bool], fails: Exception | None = None) -> list[str]:
    """Return what a tick did until its thread ended; it is stopped when nobody says if it rests."""
    made: Any = object.__new__(tick.Tick)
    did: list[str] = []

    def rest() -> bool:
        answer = rests.pop(0)
        if not rests:
            made._ended.set()
        return answer

    def add(rows: Any) -> None:
        did.append(f"tick {rows}")
        if fails is not None:
            raise fails

    waits: list[float] = []
    ended = [False]

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return ended[0]

    made._ended = SimpleNamespace(
        wait=wait,
        set=lambda: ended.__setitem__(0, True),
        is_set=lambda: ended[0],
    )
    made._stream, made._nothing = SimpleNamespace(addData=add), "nothing"
    made.start(rest)
    made._thread.join(2)
    assert set(waits) == {1.0}
    assert made._thread.daemon
    made.stop()
    made.soon()
    return did


def test_a_tick_comes_once_a_second_unless_the_query_rests() -> None:
    assert ticking([False, True, False]) == ["tick nothing"] * 2, "none after the end"


def test_a_tick_ends_with_the_jvm() -> None:
    assert ticking([False, False, False], OSError("gone")) == ["tick nothing"]


# --- Settings -----------------------------------------------------------------------------------------


class Conf:
    """Settings of a session or of the driver."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def get(self, key: str, default: Any = "none") -> Any:
        return self.values.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def unset(self, key: str) -> None:
        del self.values[key]

    def getBoolean(self, key: str, default: bool) -> bool:
        return self.values.get(key, str(default)).lower() == "true"

    def getInt(self, key: str, default: int) -> int:
        return int(self.values.get(key, default))


def test_python_is_pipelined_while_anybody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = Conf(**{PIPELINED: "False"})
    monkeypatch.setattr(sessions, "driver_conf", lambda _: conf)
    spark: Any = "spark"
    with pipelined_python(spark):
        assert pipelines_python(spark)
        with pipelined_python(spark):
            assert conf.values[PIPELINED] == "true"
        assert conf.values[PIPELINED] == "true"
    assert conf.values[PIPELINED] == "False"
    assert not pipelines_python(spark)
    conf.values.clear()
    assert not pipelines_python(spark)
    with pytest.raises(KeyError), pipelined_python(spark):
        raise KeyError
    assert conf.values[PIPELINED] == "false"


@pytest.mark.parametrize(("stateful", "adaptive"), [(True, "false"), (False, "yes")])
def test_results_are_planned_as_batches_are_and_stateful_ones_not_adaptively(
    stateful: bool, adaptive: str
) -> None:
    values = {
        "spark.sql.adaptive.enabled": "yes",
        "spark.sql.cbo.enabled": "a",
        "spark.sql.requireAllClusterKeysForDistribution": "b",
        "spark.sql.shuffle.partitions": "c",
    }
    results: Any = SimpleNamespace(conf=Conf())
    batches: Any = SimpleNamespace(conf=Conf(**values))
    set_as_for_batches(results, batches, stateful=stateful)
    assert results.conf.values == {**values, "spark.sql.adaptive.enabled": adaptive}


RAW = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def files(own: str | None = None, of_hadoop: str | None = None) -> Any:
    hadoop = SimpleNamespace(get={"fs.file.impl": of_hadoop}.get)
    context = SimpleNamespace(_jsc=known(hadoopConfiguration=hadoop))
    conf = Conf(**({} if own is None else {"fs.file.impl": own}))
    return SimpleNamespace(conf=conf, sparkContext=context)


def test_a_query_that_starts_meanwhile_writes_its_logs_raw() -> None:
    spark = files()
    with raw_local_files(spark):
        assert spark.conf.values == RAW
    assert spark.conf.values == {}
    with pytest.raises(KeyError), raw_local_files(spark):
        raise KeyError
    assert spark.conf.values == {}


@pytest.mark.parametrize("chosen", [{"own": "mine"}, {"of_hadoop": "mine"}])
def test_a_class_for_files_that_a_user_has_chosen_stays(chosen: dict[str, str]) -> None:
    spark = files(**chosen)
    before = dict(spark.conf.values)
    with raw_local_files(spark):
        assert spark.conf.values == before
    forget_raw_files(spark)
    assert spark.conf.values == before


# --- Executors, hosts and tasks -----------------------------------------------------------------------


def cluster(master: str = "spark://h:7077", **conf: str) -> Any:
    """Return a session of a cluster with two executors on host a and one on b; its driver is on d."""
    named = [("2", "a:1", 4), ("driver", "d:9", 3), ("10", "b:1", 2), ("1", "a:7077", 4)]
    registered = Scala(known(id=i, hostPort=port, totalCores=cores) for i, port, cores in named)
    infos = [known(host=host, port=port) for host, port in (("b", 1), ("d", 9), ("a", 1))]
    store = SimpleNamespace(executorList=lambda living: registered if living else Scala())
    context = SimpleNamespace(
        asked=[],
        conf=lambda: Conf(**{"spark.driver.host": "d", "spark.driver.port": "9", **conf}),
        statusStore=lambda: store,
        statusTracker=lambda: known(getExecutorInfos=infos),
    )
    context.requestTotalExecutors = lambda *told: context.asked.append(told) or 1
    context.killExecutors = lambda ids: context.asked.append(ids) or 0
    context.killAndReplaceExecutor = lambda name: context.asked.append(name) or 1
    spark = SimpleNamespace(master=master, defaultParallelism=6, _jsc=known(sc=context))
    return SimpleNamespace(sparkContext=spark, context=context)


@pytest.mark.parametrize(
    ("master", "local", "in_driver", "cores", "executors"),
    [
        ("spark://h:7077", False, False, 10, {"1", "2", "10"}),
        ("local[2]", True, True, 6, set()),
        ("local-cluster[2,1,1024]", True, False, 6, {"1", "2", "10"}),
    ],
)
def test_executors_are_counted_without_the_driver(
    master: str, local: bool, in_driver: bool, cores: int, executors: set[str]
) -> None:
    pool = ExecutorPool(cluster(master))
    assert (pool.local, pool.in_driver, pool.cores) == (local, in_driver, cores)
    assert pool.living() == [
        Executor("1", "a", 4), Executor("10", "b", 2), Executor("2", "a", 4)
    ]  # fmt: skip
    assert living_executors(cluster(master))() == executors


def test_spark_may_manage_executors_or_be_told_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = ExecutorPool(cluster())
    assert (pool.managed_by_spark, pool.configured) == (False, None)
    told = {"spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "3"}
    pool = ExecutorPool(cluster(**told))
    assert (pool.managed_by_spark, pool.configured) == (True, 3)


def test_executors_are_asked_for_given_back_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "java_class", lambda *_: known(empty="no hints"))
    monkeypatch.setattr(executors, "seq", lambda _, ids: ids)
    spark = cluster()
    pool = ExecutorPool(spark)
    assert pool.request(5) is True
    assert pool.give_back(pool.living()[:2]) is False
    assert pool.kill(pool.living()[2]) is True
    assert spark.context.asked == [(5, 0, "no hints"), ["1", "10"], "2"]


def test_hosts_of_executors_are_those_without_the_drivers_where_there_are_others() -> None:
    spark = cluster()
    assert hosts.living_hosts(spark) == ["a", "b"]
    assert hosts.living_hosts(cluster("local[2]")) == []
    infos = [known(host="d", port=9), known(host="d", port=4)]
    spark.context.statusTracker = lambda: known(getExecutorInfos=infos)
    assert hosts.living_hosts(spark) == ["d"]
    infos.pop()
    assert hosts.living_hosts(spark) == []


def test_the_first_failure_of_a_groups_tasks_is_told() -> None:
    failures: dict[int, list[str | None]] = {
        5: [None, "ValueError: 5"],
        6: ["ValueError: 6"],
        4: [None],
    }
    tracker = SimpleNamespace(
        getJobIdsForGroup={"mine": [1, 2, 3]}.get,
        getJobInfo={
            1: None,
            2: SimpleNamespace(stageIds=[4]),
            3: SimpleNamespace(stageIds=[5, 6]),
        }.get,
    )

    def listed(stage: int, attempt: int, most: int) -> Scala:
        assert (attempt, most) == (0, 1000)
        return Scala(known(errorMessage=option(text)) for text in failures[stage])

    context = known(statusStore=SimpleNamespace(taskList=listed))
    spark: Any = SimpleNamespace(statusTracker=lambda: tracker, _jsc=known(sc=context))
    spark = SimpleNamespace(sparkContext=spark)
    assert failure_of_tasks(spark, "mine") == "ValueError: 5"
    failures |= {5: [], 6: []}
    assert failure_of_tasks(spark, "mine") == ""


# --- Gauges -------------------------------------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what was registered with Spark's metrics, call by call."""
    calls: list[dict[str, Any]] = []
    source = SimpleNamespace(register=lambda _, new: calls.append(new))
    monkeypatch.setattr(gauges, "_accumulators", {})
    monkeypatch.setattr(gauges, "java_class", lambda *_: source)
    monkeypatch.setattr(gauges, "scala_map", lambda _, items: dict(items))
    return calls


def test_a_gauge_is_registered_once_for_an_application(registered: list[dict[str, Any]]) -> None:
    values: dict[str, float] = {}

    def accumulator(name: str) -> Any:
        return SimpleNamespace(setValue=lambda value: values.update({name: value}))

    def spark(application: str) -> Any:
        context = known(sc=SimpleNamespace(doubleAccumulator=accumulator))
        return SimpleNamespace(
            sparkContext=SimpleNamespace(_jsc=context, applicationId=application)
        )

    Gauges(spark("one"), "hg.clicks", ["slots"]).set({"slots": 2})
    both = Gauges(spark("one"), "hg.clicks", ["slots", "lag"])
    both.set({"slots": 3, "lag": 4})
    assert [list(call) for call in registered] == [["hg.clicks.slots"], ["hg.clicks.lag"]]
    assert values == {"hg.clicks.slots": 3.0, "hg.clicks.lag": 4.0}
    Gauges(spark("one"), "hg.clicks", ["lag"])
    assert len(registered) == 2
    Gauges(spark("two"), "hg.clicks", ["lag"])
    assert len(registered) == 3
