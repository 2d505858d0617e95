"""Refusals of the data plane that need no JVM, each in the sentence that a user reads."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

import headgate as hg
from headgate.control.fleet.grant import Grant
from headgate.core.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    NotReady,
    UnsupportedQuery,
)
from headgate.operators.processor import ProcessorError, TimeMode, Variable
from headgate.spark.api.writer import Writer
from headgate.spark.cluster import allocation, host_loss
from headgate.spark.job import faults
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import OperatorState
from headgate.spark.job.pools import PoolConfig
from headgate.spark.job.reports import consistent
from headgate.spark.pools.pool_loop import PoolLoop
from headgate.spark.read.declaration import declared
from headgate.spark.read.logical import _check_with_spark
from headgate.spark.read.types import leaves
from headgate.spark.settings import kafka
from headgate.spark.settings.options import check_option
from headgate.spark.sinks import jdbc_merge, kafka_sink, sinks
from headgate.spark.step import output
from headgate.spark.worker.state_handle import SlotHandle

NUMBER = T.StructType([T.StructField("n", T.LongType())])
LIST = Variable("seen", pa.schema([]), pa.schema([("n", pa.int64())]), ordered=True)


def slot_handle(mode: TimeMode = TimeMode.NONE) -> Any:
    handle = SlotHandle((LIST,), mode)
    empty = SimpleNamespace(of=[], rows=pa.RecordBatch.from_pylist([], schema=LIST.values))
    handle._states["seen"].begin(empty)
    return handle


def processor(init: Any) -> Any:
    return type("Mine", (), {"init": init, "close": lambda self: None})()


def pool_of(most: int = 4) -> PoolLoop:
    recorder: Any = SimpleNamespace(write=lambda event: None, resized=lambda *told: None)
    loop = PoolLoop(["a"], PoolConfig(1, 4, 1), SimpleNamespace(), None, recorder)  # type: ignore[arg-type]
    loop.limit(Grant({"a": most}))
    return loop


def memory_sink(**fields: Any) -> Any:
    base = {"name": None, "partition_by": [], "cluster_by": [], "options": {}, "mode": "append"}
    return lambda: sinks._memory_sink(None, SimpleNamespace(**base | fields), None)


def reports(*consumed: tuple[str, ...]) -> Any:
    """Return reports of two slots of `above`, which read executions of one slot of `below`."""
    of = [
        SimpleNamespace(operator="above", slot=n, token=f"above {n}", consumed=each)
        for n, each in enumerate(consumed)
    ]
    below = [SimpleNamespace(operator="below", slot=0, token="first", consumed=())]
    below.append(SimpleNamespace(operator="below", slot=0, token="second", consumed=()))
    return [*of, *below]


def kafka_columns(topic: str | None, **kinds: T.DataType) -> Any:
    schema = T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])
    return lambda: kafka_sink._columns(schema, SimpleNamespace(topic=topic))  # type: ignore[arg-type]


def altered_output() -> Any:
    return output._ReadOutput("ck")(iter([pa.RecordBatch.from_pylist([OF_FILE])]))


OF_FILE = {"data": None, "file": "7.out", "crc32": 1}
TEXT, NUMBER_TYPE = T.StringType(), T.LongType()
OLD_POSTGRES = SimpleNamespace(rows=lambda sql: [["140007"]], columns=lambda sql: ["k", "n"])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: kafka.kafka_target({"topic": "t"}), ConfigError, 'add .option("kafka.bootstrap'),
        (
            lambda: kafka.kafka_target({"kafka.bootstrap.server": "x:1"}),
            ConfigError,
            'instead of "kafka.bootstrap.server".',
        ),
        (lambda: sinks.require_path({"pth": "x"}, "orc"), ConfigError, 'instead of "pth".'),
        (lambda: check_option("headgate.nope", 1), ConfigError, 'unknown option "headgate.nope"'),
        (lambda: sinks.require_path({}, "orc"), ConfigError, 'format "orc" needs a place to write'),
        (memory_sink(), ConfigError, 'format "memory" needs a table name'),
        (memory_sink(partition_by=["a"]), ConfigError, '"memory" takes no partitionBy'),
        (lambda: slot_handle().registerTimer(1), ProcessorError, 'no timers in time mode "None"'),
        (lambda: slot_handle().listTimers(), ProcessorError, 'no timers in time mode "None"'),
        (
            lambda: slot_handle()._states["seen"].appendList([]),
            ProcessorError,
            'a list put into state "seen" must not be empty',
        ),
        (
            lambda: Writer.outputMode(SimpleNamespace(), "apend"),  # type: ignore[arg-type]
            ConfigError,
            'unknown output mode "apend"; did you mean "append"',
        ),
        (
            lambda: _check_with_spark(None, None, "upsert"),
            UnsupportedQuery,
            'mode "upsert"; use app',
        ),
        (
            lambda: leaves(T.MapType(T.StringType(), T.StringType()), F, "the latest row's column"),
            UnsupportedQuery,
            "cannot take the latest row's column of type map<string,string> here",
        ),
        (
            lambda: declared(processor(lambda self, h: h.registerTimer(3)), TimeMode.NONE),
            UnsupportedQuery,
            "Mine.init registers a timer; do so in handleInputRows",
        ),
        (
            lambda: declared(processor(lambda self, h: h.deleteTimer(3)), TimeMode.NONE),
            UnsupportedQuery,
            "Mine.init deletes a timer",
        ),
        (
            lambda: declared(processor(lambda self, h: h.listTimers()), TimeMode.NONE),
            UnsupportedQuery,
            "Mine.init lists timers",
        ),
        (
            lambda: declared(
                processor(lambda self, h: [h.getValueState("n", NUMBER) for _ in range(2)]),
                TimeMode.NONE,
            ),
            UnsupportedQuery,
            'Mine.init declares state "n" twice',
        ),
        (
            lambda: declared(
                processor(lambda self, h: h.getValueState("n", NUMBER, 1000)), TimeMode.EVENT
            ),
            UnsupportedQuery,
            'state "n" of Mine has a time to live, which needs time mode "ProcessingTime"',
        ),
        (
            lambda: declared(processor(lambda self, h: 1 / 0), TimeMode.NONE),
            UnsupportedQuery,
            "Mine.init failed with ZeroDivisionError: division by zero",
        ),
        (
            lambda: pool_of().monitor(),
            NotReady,
            "a stage has served nothing yet",
        ),
        (
            lambda: Changes({"op": OperatorState.fresh(1, 4)}, 4).scaled(2, partitioning="uniforn"),
            ConfigError,
            'unknown partitioning "uniforn"; did you mean "uniform"',
        ),
        (
            lambda: consistent(reports(("first",), ("second",)), {"above": 2}, ["below", "above"]),
            EngineError,
            "slots of above read different executions",
        ),
        (
            lambda: consistent(reports(("first",)), {"above": 2}, ["below", "above"]),
            EngineError,
            "1 reports came from 2 slots of above",
        ),
        (
            kafka_columns("t", v=TEXT),
            ConfigError,
            'needs a column "value", as in Spark; the result has v',
        ),
        (
            kafka_columns(None, value=TEXT),
            ConfigError,
            'format "kafka" needs a topic; add .option("t',
        ),
        (
            kafka_columns("t", value=NUMBER_TYPE),
            ConfigError,
            'column "value" is a bigint, and format "kafka" takes string or binary; cast it',
        ),
        (
            kafka_columns("t", value=TEXT, headers=TEXT),
            ConfigError,
            'column "headers" is a string, and format "kafka" takes array<struct<',
        ),
        (
            lambda: sinks.ConsoleSink({"numrows": "many"}),
            ConfigError,
            'option numRows="many" of format "console" is no whole number',
        ),
        (
            lambda: sinks.ConsoleSink({"truncate": "5"}),
            ConfigError,
            'option truncate="5" of format "console" is out of range; use true or false',
        ),
        (
            lambda: pool_of(most=2).ask({"a": 3}),
            ConfigError,
            "replicas=3 exceeds the 2 that the fleet grants a; raise the job's priority",
        ),
        (
            lambda: allocation.follow_slots(None, [], "run", print, "folow"),  # type: ignore[arg-type]
            ConfigError,
            'headgate.executors="folow" is not known; use follow or keep',
        ),
        (lambda: faults._parsed("after-intend:3"), ConfigError, "HEADGATE_CRASH=after-intend:3 is"),
        (lambda: faults._parsed("random:x"), ConfigError, "is not POINT:STEP or random:SEED"),
        (lambda: faults._parsed("random:1:jvm"), ConfigError, "is not POINT:STEP or random:SEED"),
    ],
)
def test_what_makes_no_sense_is_refused_in_its_sentence(
    call: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as refused:
        call()
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_slots_that_read_the_same_execution_agree_and_the_other_is_left_out() -> None:
    kept = consistent(
        reports(("second",), ("second",)), {"above": 2, "below": 1}, ["below", "above"]
    )
    assert [one.token for one in kept] == ["above 0", "above 1", "second"]


def test_a_crash_is_named_by_point_or_seed_and_by_whom_it_takes_along() -> None:
    assert faults._parsed("after-sink:7") == ("after-sink", 7, "group")
    assert faults._parsed("random:7:driver") == ("random", 7, "driver")
    assert faults._parsed("migration-routed:0:group") == ("migration-routed", 0, "group")


def test_an_older_postgres_is_refused_before_anything_is_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec: Any = SimpleNamespace(url="jdbc:postgresql://h/d", table="s.t")
    merge = jdbc_merge.JdbcMerge(None, spec)  # type: ignore[arg-type]
    monkeypatch.setattr(merge, "_asked", contextlib.nullcontext)
    monkeypatch.setattr(merge, "_transaction", lambda: contextlib.nullcontext(OLD_POSTGRES))
    with pytest.raises(ConfigError, match=r"needs PostgreSQL 15 or newer.* is version 14"):
        merge.check(("k", "n"))


@pytest.mark.parametrize(
    ("in_driver", "ids", "kills", "says"),
    [
        (True, [], False, "tasks run in the driver's own process"),
        (False, [], False, "tasks run in the driver's own process"),
        (False, ["9", "10"], False, "the cluster manager did not kill executor 10"),
        (False, ["9", "10"], True, ""),
    ],
)
def test_the_youngest_executor_is_killed_or_it_is_said_why_not(
    monkeypatch: pytest.MonkeyPatch, in_driver: bool, ids: list[str], kills: bool, says: str
) -> None:
    killed = []

    def kill(one: Any) -> bool:
        killed.append(one.id)
        return kills

    living = [SimpleNamespace(id=name, host="h") for name in ids]
    pool = SimpleNamespace(in_driver=in_driver, living=lambda: living, kill=kill)
    monkeypatch.setattr(host_loss, "ExecutorPool", lambda spark: pool)
    if says:
        with pytest.raises(ConfigError, match=says):
            host_loss.kill_executor(None)
    else:
        assert host_loss.kill_executor(None) == "executor 10 on h"
    assert killed == (["10"] if ids else [])


def test_a_console_shows_what_it_is_told_or_as_much_as_sparks() -> None:
    sink = sinks.ConsoleSink({"numrows": "5", "truncate": "FALSE"})
    assert (sink._rows, sink._truncate) == (5, False)
    assert (sinks.ConsoleSink({})._rows, sinks.ConsoleSink({})._truncate) == (20, True)


def test_an_output_file_that_was_altered_is_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimpleNamespace(read_file=lambda kind, name: b"other")
    monkeypatch.setattr(output, "Checkpoint", lambda *given, **known: files)
    with pytest.raises(CheckpointError, match=r"output file 7\.out was altered"):
        list(altered_output())


def test_a_fleet_grants_what_may_be_asked_for() -> None:
    loop = pool_of(most=2)
    loop.ask({"a": 2})
    assert loop.changing()
    loop.between_batches()
    assert (loop.held(), loop.changing()) == ({"a": 2}, False)


async def slow(batch: Any, number: int) -> None:
    """Would never run: nobody awaits it."""


def in_parts(batch: Any, number: int) -> Any:
    yield batch


def ended() -> Any:
    """Return the handle of a query that would take any request."""
    end = SimpleNamespace(refuse_if_over=lambda act: None, wait=lambda timeout: True)
    return SimpleNamespace(_end=end, _do=lambda command: "done", _work=None)


WRONG_THINGS: dict[str, tuple[Any, str]] = {
    "no frame": (lambda: hg.writeStream(None), "hg.writeStream: df=None is not allowed"),  # type: ignore[arg-type]
    "a text": (lambda: hg.explain("counts"), "hg.explain: df='counts' is not allowed"),  # type: ignore[arg-type]
    "no session": (lambda: hg.doctor(None), "hg.doctor: spark=None is not allowed"),  # type: ignore[arg-type]
    "no fleet": (lambda: hg.Fleet("mine"), "hg.Fleet: spark='mine' is not allowed"),  # type: ignore[arg-type]
    "a master": (lambda: hg.session(master=4), "hg.session: master=4 is not allowed"),  # type: ignore[arg-type]
    "no writer": (lambda: hg.adopt(None, "/x"), "hg.adopt: writer=None is not allowed"),  # type: ignore[arg-type]
    "to export": (lambda: hg.export(None, "/x"), "hg.export: writer=None is not allowed"),  # type: ignore[arg-type]
    "a place": (lambda: hg.inspect(3), "hg.inspect: checkpoint=3 is not allowed"),  # type: ignore[arg-type]
    "no place": (lambda: hg.inspect(""), "hg.inspect: checkpoint='' is not allowed"),
    "a listener": (lambda: hg.on_event(None), "hg.on_event: listener=None is not allowed"),  # type: ignore[arg-type]
    "inputs": (
        lambda: hg.stateful(None, None, time="at", schema="n int"),  # type: ignore[arg-type]
        "hg.stateful: inputs=None is not allowed",
    ),
    "swapped": (
        lambda: hg.verify(lambda spark: None, None, checkpoint="/x", output=None),  # type: ignore[arg-type,return-value]
        "hg.verify: spark=<function",
    ),
    "a table": (
        lambda: Writer.toTable(SimpleNamespace(), None),  # type: ignore[arg-type]
        "toTable: tableName=None is not allowed",
    ),
    "two triggers": (
        lambda: Writer.trigger(SimpleNamespace(), once=True, availableNow=True),  # type: ignore[arg-type]
        "trigger() has two kinds; use once=... or availableNow=...",
    ),
    "a row's function": (
        lambda: Writer.foreach(SimpleNamespace(), None),  # type: ignore[arg-type]
        "foreach=None is not allowed; use a function of a row",
    ),
    "a coroutine": (
        lambda: Writer.foreachBatch(SimpleNamespace(), slow),
        "without yield and async",
    ),  # type: ignore[arg-type]
    "a generator": (lambda: Writer.foreachBatch(SimpleNamespace(), in_parts), "without yield"),  # type: ignore[arg-type]
    "a number as duration": (lambda: hg.OperatorPlus.over(1, "3 s"), "1 is not a duration; write"),  # type: ignore[arg-type]
    "a reason": (lambda: hg.Query.scale(ended(), 2, reason=3), "reason=3 is not allowed"),  # type: ignore[arg-type]
    "a long reason": (lambda: hg.Query.rollback(ended(), 0, reason="x" * 10**6), "1,000,000 char"),
    "to hold": (lambda: hg.Query.scale(ended(), 2, hold=10), "10 is not a duration; write"),  # type: ignore[arg-type]
    "a list to move": (lambda: hg.Query.remap(ended(), [1]), "remap: changes=[1] is not allowed"),  # type: ignore[arg-type]
    "texts to move": (lambda: hg.Query.remap(ended(), {"a": "b"}), "use a mapping of key groups"),  # type: ignore[dict-item]
    "no time": (lambda: hg.Query.awaitTermination(ended(), "1"), "timeout='1' is not allowed"),  # type: ignore[arg-type]
    "for ever": (lambda: hg.Query.awaitTermination(ended(), float("inf")), "timeout=inf is not"),
    "before now": (lambda: hg.Query.awaitTermination(ended(), -1), "timeout=-1 is not allowed"),
}


@pytest.mark.parametrize("what", WRONG_THINGS)
def test_a_thing_of_another_kind_is_named_with_what_belongs_there(what: str) -> None:
    call, says = WRONG_THINGS[what]
    with pytest.raises(ConfigError) as refused:
        call()
    assert says in str(refused.value)
