"""Which queries start in real time, how their sinks and epochs begin, and what their handle tells."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made
from pyspark.sql import types as T

from headgate.core.errors import ConfigError, HeadgateError, UnsupportedQuery
from headgate.spark.api import real_time
from headgate.spark.api.real_time import RealTimeFlow, RealTimeQuery, TooFewCores
from headgate.spark.settings.query_settings import QuerySettings
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.sinks.own_sink import OwnSink
from headgate.spark.sinks.sinks import ConsoleSink, FunctionSink, NoopSink, WriterSink

REAL_TIME = {"realTime": "5 minutes"}
EARLY = QuerySettings(trigger=REAL_TIME, options={"headgate.release": "early"})
COMMITTED = QuerySettings(trigger=REAL_TIME)
SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))


# --- Sinks --------------------------------------------------------------------------------------------


def flow(feeds: Any = None) -> RealTimeFlow:
    plan: Any = "the pipe's plan"
    return RealTimeFlow(plan, feeds)


@pytest.mark.parametrize(
    ("kind", "did"),
    [
        (KafkaSink, ["send early", "write early"]),
        (OwnSink, ["write early"]),
        (FunctionSink, ["write early"]),
        (ConsoleSink, []),
        (NoopSink, []),
        (WriterSink, []),
    ],
)
def test_a_sink_that_is_given_outputs_early_knows_that_they_may_come_again(
    monkeypatch: pytest.MonkeyPatch, kind: Any, did: list[str]
) -> None:
    told: list[str] = []
    for name, said in {"send_early": "send early", "write_early": "write early"}.items():
        call = lambda self, said=said: told.append(said)  # noqa: E731
        monkeypatch.setattr(kind, name, call, raising=False)
    sink = object.__new__(kind)
    flow().begin_sink(sink, EARLY)
    assert told == did
    told.clear()
    flow().begin_sink(sink, COMMITTED)
    assert told == did[:1] * (kind is KafkaSink)


def test_a_sink_that_looks_at_numbers_is_given_no_output_early() -> None:
    sink: Any = SimpleNamespace(description="FileSink[/out]")
    flow().begin_sink(sink, COMMITTED)
    with pytest.raises(ConfigError, match=r'^\.release\("early"\) loses rows in FileSink\[/out\]'):
        flow().begin_sink(sink, EARLY)


# --- The beginning ------------------------------------------------------------------------------------


class Work(real_time.RealTimeWork):
    """Work that says what it was told."""

    def __init__(self, did: list[Any]) -> None:
        self.did = did

    def begin(self, *given: Any) -> None:
        self.did.append(("begin", *given))

    def write_to(self, sink: Any) -> None:
        self.did.append(("write to", sink))

    def close(self) -> None:
        self.did.append("close")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Begin a flow behind a manifest; return what was done, and the epochs' settings."""
    did: list[Any] = []
    fails: list[Exception] = []

    class Epochs:
        def __init__(self, machine: Any, work: Any, **named: Any) -> None:
            self.named = named

        def start(self) -> None:
            did.append("start")
            if fails:
                raise fails[0]

    monkeypatch.setattr(real_time, "Epochs", Epochs)
    monkeypatch.setattr(real_time, "write_identity", lambda log: did.append(f"identity in {log}"))
    monkeypatch.setattr(real_time, "next_watermark_us", lambda log, latest: (log, latest))
    monkeypatch.setattr(real_time, "newest_batch", lambda log: 6)
    feeds: Any = SimpleNamespace(check=lambda offsets: did.append(json.loads(offsets)))

    def begin(latest: Any, settings: QuerySettings = COMMITTED, *failing: Exception) -> Any:
        did.clear()
        fails[:] = failing
        machine: Any = SimpleNamespace(
            checkpoint=SimpleNamespace(path="log"),
            latest=latest,
            steps=SimpleNamespace(sink="sink"),
        )
        return did, flow(feeds).begin(machine, Work(did), settings), feeds

    return begin


def test_epochs_begin_behind_the_newest_manifest_or_spark_batch(begun: Any) -> None:
    latest = SimpleNamespace(engine={"sources": ["5"]}, spark_batch=9)
    did, epochs, feeds = begun(latest)
    assert did == [
        ["5"], "identity in log", ("begin", "the pipe's plan", feeds, ("log", latest)),
        ("write to", "sink"), "start",
    ]  # fmt: skip
    assert epochs.named == {"interval_s": 0.05, "name": None, "first_batch": 10, "early": False}
    latest.spark_batch = 3
    named = QuerySettings(
        name="q", trigger=REAL_TIME, options={"headgate.epoch": "2 s", **EARLY.options}
    )
    assert begun(latest, named)[1].named == {
        "interval_s": 2.0, "name": "q", "first_batch": 7, "early": True,
    }  # fmt: skip
    did, epochs, _ = begun(None)
    assert did[0] == "identity in log"
    assert epochs.named["first_batch"] == 7


def test_epochs_that_do_not_start_close_what_began(begun: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        begun(None, COMMITTED, KeyboardInterrupt())
    did = begun(None)[0]
    assert did[-1] == "start"
    with pytest.raises(OSError, match="it is stuck"):
        begun(None, COMMITTED, OSError("it is stuck"))
    assert did[-2:] == ["start", "close"]


# --- Cores and plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        ((True, True, 4), None),
        ((True, True, 3), 'of the 3 tasks of its pipe and one more; use master "local[4]"'),
        ((True, False, 9), "master local[2] cannot run this query in real time"),
        ((False, False, 4), None),
        ((False, False, 3), "the 3 cores of the cluster's executors cannot run"),
    ],
)
def test_a_query_in_real_time_needs_a_core_for_each_task_and_one_more(
    monkeypatch: pytest.MonkeyPatch, pool: tuple[bool, bool, int], says: str | None
) -> None:
    made: Any = SimpleNamespace(feeds=SimpleNamespace(tasks=3))
    asked: list[Any] = []
    found = dict(zip(("local", "in_driver", "cores"), pool, strict=True))
    monkeypatch.setattr(real_time, "flow_below", lambda *given: asked.append(given) or made)
    monkeypatch.setattr(real_time, "ExecutorPool", lambda spark: SimpleNamespace(**found))
    query: Any = "a query"
    settings = QuerySettings(key_groups=64)
    if says is None:
        assert real_time.flow_of(SPARK, settings, query) is made
        assert asked == [(SPARK, query, 64)]
        return
    with pytest.raises(TooFewCores) as refused:
        real_time.flow_of(SPARK, settings, query)
    assert says in str(refused.value)


@pytest.fixture
def below(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a flow over leaves, some of whose branches have Python functions."""
    over: list[Any] = []

    def make(leaves: list[Any], *, functions: bool = False, **session: bool) -> Any:
        over.clear()
        branches = [
            SimpleNamespace(leaf=leaf, stages=["f"] if functions and n else [], over=over.append)
            for n, leaf in enumerate(leaves)
        ]
        given: list[Any] = []
        plan = SimpleNamespace(branches=branches)
        monkeypatch.setattr(
            real_time, "PipePlan", SimpleNamespace(of=lambda *more: given.extend(more) or plan)
        )
        can = {"minor": True, "in_driver": True, "pipelines": True, **session}
        monkeypatch.setattr(
            real_time, "adapter", lambda: SimpleNamespace(pipelines_python=can["minor"])
        )
        pool = SimpleNamespace(in_driver=can["in_driver"])
        monkeypatch.setattr(real_time, "ExecutorPool", lambda spark: pool)
        monkeypatch.setattr(real_time, "pipelines_python", lambda spark: can["pipelines"])
        query: Any = SimpleNamespace(sources=[["first", "second"], ["third"]])
        return real_time.flow_below(SPARK, query), given, over

    monkeypatch.setattr(real_time, "feed_of", lambda leaf: SimpleNamespace(schema=[leaf]))
    monkeypatch.setattr(
        real_time, "from_arrow_schema", lambda schema: [T.StructField("v", T.LongType())]
    )
    monkeypatch.setattr(real_time, "template", lambda spark, schema: schema.names)
    return make


def test_a_source_that_is_read_twice_is_one_source_for_its_branches(below: Any) -> None:
    leaf, other, same = Made("A"), Made("B"), Made("A")
    same.equals = lambda one: one is leaf  # type: ignore[method-assign, assignment]
    leaf.equals = lambda one: one is same  # type: ignore[method-assign, assignment]
    made, given, over = below([leaf, other, same, leaf])
    assert made.feeds.same_as == (0, 1, 0, 0)
    assert given == [SPARK, ["first", "third"], 128]
    names = ["v", *(field.name for field in real_time.MARKERS)]
    assert over == [names] * 4, "what cannot pass is refused now"


def test_python_functions_run_in_real_time_where_spark_streams_their_rows(below: Any) -> None:
    leaf = Made("A")
    below([leaf, leaf], functions=True)
    below([leaf, leaf], functions=True, in_driver=False)
    below([leaf, leaf], functions=True, pipelines=False)
    below([leaf, leaf], minor=False, in_driver=False, pipelines=False)
    with pytest.raises(UnsupportedQuery, match=r"cannot run in real time before Spark 4\.3"):
        below([leaf, leaf], functions=True, minor=False)
    with pytest.raises(UnsupportedQuery, match="on a cluster only if the application was started"):
        below([leaf, leaf], functions=True, in_driver=False, pipelines=False)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"replica_policy": "psps"}, r"\.policy\(\) of replicas"),
        ({"options": {"headgate.state.memoryMax": "1 GB"}}, r"headgate\.state\.memoryMax"),
        (
            {"format": "Kafka", "options": {"headgate.delivery": "at-least-once"}},
            r'headgate\.delivery="at-least-once"',
        ),
    ],
)
def test_settings_without_a_meaning_in_real_time_are_refused(given: Any, what: str) -> None:
    with pytest.raises(UnsupportedQuery, match=f"^{what} is not supported in real time yet; leave"):
        real_time.check_settings(QuerySettings(**given))


def test_a_mode_without_a_meaning_in_real_time_is_refused_with_the_others() -> None:
    said = (
        r'^output mode "complete" is not supported in real time yet; use update or append, or leave'
    )
    with pytest.raises(UnsupportedQuery, match=said):
        real_time.check_settings(QuerySettings(mode="complete"))


def test_settings_that_have_a_meaning_in_real_time_are_taken() -> None:
    real_time.check_settings(QuerySettings(mode="update", format="kafka"))
    real_time.check_settings(
        QuerySettings(format="parquet", options={"headgate.delivery": "at-least-once"})
    )


# --- The handle ---------------------------------------------------------------------------------------


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = object.__new__(RealTimeQuery)
    figures = SimpleNamespace(
        own=lambda batch: {"duration_ms": 2000.0, "arrived": 30, "of": batch},
        filled=lambda known: {**known, "is_filled": True}, sink="MemorySink",
    )  # fmt: skip
    told: list[Any] = []
    latest = SimpleNamespace(
        engine={"sources": ['{"n": 7}', '{"n": 8}']}, watermarks={"evict_us": 5_000_000}
    )
    vars(made).update(
        _inner=SimpleNamespace(
            feeds=SimpleNamespace(feeds=(object(), 1)), processes={"slot 0": 7}, newest=lambda: "now",
            id="7f", runId="8e", name="clicks",
        ),
        _machine=SimpleNamespace(latest=latest), _recorder=SimpleNamespace(progress=figures),
        _work=SimpleNamespace(recorder=SimpleNamespace(last=SimpleNamespace(spark_batch=4))),
        _events=SimpleNamespace(progress=told.append, ended=lambda why: told.append(("ended", why))),
        told=told,
    )  # fmt: skip
    for name in ("id", "runId", "name"):
        monkeypatch.setattr(RealTimeQuery, name, getattr(made._inner, name))
    monkeypatch.setattr(real_time.time, "time", lambda: 1_000_000.0)
    return made


def test_a_second_of_epochs_is_told_in_the_form_of_sparks_progress(query: Any) -> None:
    query._tell_progress()
    (told,) = query.told
    assert [told[name] for name in ("id", "runId", "name", "batchId", "batchDuration")] == [
        "7f", "8e", "clicks", 4, 2000,
    ]  # fmt: skip
    assert told["timestamp"] == "1970-01-12T13:46:40.000Z"
    assert told["eventTime"] == {"watermark": "1970-01-01T00:00:05.000Z"}
    assert told["durationMs"] == {"triggerExecution": 2000}
    assert told["sink"] == {"description": "MemorySink", "numOutputRows": -1}
    first, second, tick = told["sources"]
    assert (first["description"], second["description"], tick) == ("object", "int", first)
    assert [one["endOffset"] for one in (first, second)] == [{"n": 7}, {"n": 8}]
    names = ("numInputRows", "inputRowsPerSecond", "processedRowsPerSecond")
    assert [first[name] for name in names] == [30, 15.0, 15.0]
    assert [second[name] for name in names] == [0, 0.0, 0.0]
    assert told["is_filled"] is True


def test_sparks_listeners_have_a_beginning_before_anything_can_end_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[Any] = []
    monkeypatch.setattr(real_time, "QueryEvents", lambda *given: did.append(given) or "events")
    monkeypatch.setattr(
        real_time.Query, "__init__", lambda self, *given, **of: did.append((given, of))
    )
    inner: Any = SimpleNamespace(id="7f", runId="8e", name=None)
    machine: Any = SimpleNamespace(spark=SPARK)
    made = RealTimeQuery(inner, machine, "work", finite=False)
    assert did == [(SPARK, "7f", "8e", None), ((inner, machine, "work"), {"finite": False})]
    events: Any = made._events
    assert events == "events"


def test_a_second_in_which_nothing_is_known_has_no_records(query: Any) -> None:
    query._recorder.progress.own = lambda batch: {}
    found = query._newest_second()
    assert (found["batchDuration"], found["sources"][0]["numInputRows"]) == (1, 0)


def test_a_query_without_an_epoch_has_no_progress_and_one_that_cannot_tell_goes_on(
    query: Any, caplog: pytest.LogCaptureFixture
) -> None:
    query._machine.latest = None
    query._tell_progress()
    assert (query.told, query.lastProgress, query.recentProgress) == ([], None, [])
    query._machine.latest = SimpleNamespace()
    query._tell_progress()
    assert "no progress of clicks for Spark's listeners" in caplog.text
    query._machine.latest = None
    query._work.recorder.last = None
    assert query.lastProgress is None


def test_progress_is_told_with_each_line_and_is_the_only_one_there(
    query: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def from_json(known: dict[str, Any]) -> dict[str, Any]:
        made.append(known)
        return {"batchId": known["batchId"]}

    monkeypatch.setattr(real_time, "StreamingQueryProgress", SimpleNamespace(fromJson=from_json))
    own = {"duration_ms": 2000.0, "arrived": 30, "of": 4}
    assert query.recentProgress == [{"batchId": 4, "headgate": own}]
    recorder = object.__new__(real_time.EpochRecorder)
    query._recorder = recorder
    query._show_progress()
    assert recorder.after_line == query._tell_progress
    assert query.processes == {"slot 0": 7}


def test_a_drain_waits_until_all_that_the_source_had_is_out(
    query: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    now = [100.0]
    ends = [False]

    def settled(wanted: Any) -> bool:
        looks.append(wanted)
        return len(looks) == 3

    def wait(seconds: float) -> bool:
        now[0] += 1.0
        return ends[0]

    query._inner.settled, query._end = settled, SimpleNamespace(wait=wait)
    monkeypatch.setattr(real_time.time, "monotonic", lambda: now[0])
    query.drain(5.0)
    assert looks == ["now"] * 3
    with pytest.raises(HeadgateError, match=r"^not drained after 1\.5 s; raise timeout_s"):
        query.drain(1.5)
    ends[0] = True
    query._await_settled(None)


def test_spark_hears_of_an_end_however_it_comes(
    query: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(real_time.Query, "_close", lambda self, failure: closed.append(failure))
    query._close(None)
    failure = ValueError()
    monkeypatch.setattr(real_time.Query, "_close", lambda self, failure: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        query._close(failure)
    assert closed == [None]
    assert query.told == [("ended", None), ("ended", failure)]
