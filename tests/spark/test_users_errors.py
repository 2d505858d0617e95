"""Failures of a user's own code: refused before, told with the user's own line, tried once."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

import headgate as hg
from headgate.core.errors import ConfigError, EngineError
from headgate.operators.failure import explained, withheld
from headgate.spark.step.record import sentence
from headgate.spark.worker.failure import QueryFailed, is_final, told, users_failure
from headgate.spark.worker.user_processor import _rows_of


class Alarm(StatefulProcessor):
    """Registers a timer, and names the parameters of its handler as nobody calls them."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "t bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(1)
        yield Row(k=key[0])

    def handleExpiredTimer(self, key: Any, timers: Any, info: Any) -> Iterator[Row]:  # type: ignore[override]
        yield Row(k=key[0])

    def close(self) -> None: ...


class Later(Alarm):
    """Registers a timer that does not expire while the query runs."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(1 << 50)
        yield Row(k=key[0])


class NoTimers(Alarm):
    """Never registers one, so its handler is never called."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0])


class Silent(StatefulProcessor):
    """As `NoTimers`, without a method that has the name of what registers timers."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "t bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0])

    def handleExpiredTimer(self, key: Any, timers: Any, info: Any) -> Iterator[Row]:  # type: ignore[override]
        yield Row(k=key[0])

    def close(self) -> None: ...


class Catches(Alarm):
    """Takes whatever is given by name."""

    def handleExpiredTimer(self, **given: Any) -> Iterator[Row]:
        yield Row(k=given["key"][0])


class TwoArguments(Silent):
    def handleInputRows(self, key: Any, rows: Any) -> Iterator[Row]:  # type: ignore[override]
        yield Row(k=key[0])


class NoHandle(Silent):
    def init(self) -> None: ...  # type: ignore[override]


class Columns(hg.ArrowProcessor):
    keys = pa.schema([("k", pa.string())])
    inputs = pa.schema([("n", pa.int64())])

    def handleBatch(self, keys: Any, batch: Any, state: Any) -> Any: ...  # type: ignore[override]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> DataFrame:
    rows = [("a", 1, dt.datetime(2026, 1, 1)), ("b", 2, dt.datetime(2026, 1, 1, 0, 1))]
    schema = "k string, n bigint, ts timestamp"
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / "in"))
    read = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    return read.withWatermark("ts", "1 second")


def with_state(stream: DataFrame, processor: Any, mode: str = "EventTime") -> DataFrame:
    return stream.groupBy("k").transformWithState(processor, "k string", "append", mode)


def one_frame(key: Any, frames: Any) -> Iterator[Any]:
    yield from frames


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda df: with_state(df, TwoArguments(), "None"), r"TwoArguments\.handleInputRows in"),
        (
            lambda df: with_state(df, NoHandle(), "None"),
            r"NoHandle\.init in .* called as \(handle\)",
        ),
        (lambda df: with_state(df, Columns(), "None"), r"Columns\.handleBatch in .*timers\)"),
        (
            lambda df: df.groupBy("k").applyInPandasWithState(
                one_frame, "k string", "n bigint", "append", GroupStateTimeout.NoTimeout
            ),
            r"one_frame in test_users_errors\.py line \d+ is called as \(key, frames, state\)",
        ),
    ],
)
def test_a_method_that_cannot_be_called_is_refused_at_the_start(
    stream: DataFrame, made: Callable[[DataFrame], DataFrame], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        hg.writeStream(made(stream)).format("noop").start()


def test_a_handler_of_timers_that_cannot_be_called_is_warned_of_and_fails_when_a_timer_expires(
    stream: DataFrame, tmp_path: Path
) -> None:
    said = (
        r"Alarm\.handleExpiredTimer in test_users_errors\.py line \d+ is called as \(key=\.\.\., "
        r"timerValues=\.\.\., expiredTimerInfo=\.\.\.\), and cannot be: .*; change its parameters, or "
        "the query fails when a timer expires"
    )
    with pytest.warns(UserWarning, match=said) as warned:
        failure, _ = run(with_state(stream, Alarm()), tmp_path / "ck")
    assert {Path(one.filename).name for one in warned if "Alarm" in str(one.message)} == {
        Path(__file__).name
    }
    assert "TypeError in test_users_errors.py line" in str(failure)
    assert "got an unexpected keyword argument 'timerValues'" in str(failure)
    # as under plain Spark it does no harm before
    writer = hg.writeStream(with_state(stream, Later())).format("noop").trigger(availableNow=True)
    with pytest.warns(UserWarning, match=said.replace("Alarm", "Later")):
        query = writer.start()
    assert query.awaitTermination(60)


@pytest.mark.parametrize(
    "made",
    [
        lambda df: with_state(df, Silent()),
        lambda df: with_state(df, Alarm(), "None"),
        lambda df: with_state(df, Catches()),
    ],
)
def test_a_method_that_is_never_called_or_can_be_is_accepted(
    stream: DataFrame, made: Callable[[DataFrame], DataFrame]
) -> None:
    assert "not elastic" not in str(hg.explain(made(stream))).splitlines()[0]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("foreachBatch", lambda df: None),
        ("foreachBatch", lambda df, number, more: None),
        ("foreach", lambda: None),
        ("foreach", type("Rows", (), {"process": lambda self: None})()),
        ("foreach", type("Opens", (), {"process": print, "open": lambda self: True})()),
    ],
)
def test_a_function_of_a_sink_that_cannot_be_called_is_refused(
    stream: DataFrame, tmp_path: Path, name: str, function: Any
) -> None:
    writer = hg.writeStream(stream.groupBy("k").count()).outputMode("update")
    with pytest.raises(ConfigError, match="is called as"):
        getattr(writer, name)(function).start()


def test_an_operator_plus_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match=r"output of the operator in .* called as \(windows\)"):
        hg.OperatorPlus.over("1 s", "1 s", keys=lambda record: [1], output=lambda: [])


def test_what_gives_no_rows_is_told() -> None:
    with pytest.raises(EngineError, match="it returned NoneType, which has no rows"):
        _rows_of(None)


def run(stream: DataFrame, checkpoint: Path, **options: str) -> tuple[QueryFailed, list[Any]]:
    """Run a query that fails; return its failure and its journal."""
    writer = hg.writeStream(stream).format("noop").outputMode("update").options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    with pytest.raises(QueryFailed) as failed:
        query.awaitTermination(120)
    lines = (checkpoint / "headgate/journal.jsonl").read_text().splitlines()
    return failed.value, [json.loads(line) for line in lines]


def test_a_users_exception_is_tried_once_and_its_text_stays_out_of_the_journal(
    stream: DataFrame, tmp_path: Path
) -> None:
    @F.udf("bigint")
    def parse(n: Any) -> Any:
        msg = f"secret {n}"
        raise ValueError(msg)

    counted = stream.withColumn("n", parse("n")).groupBy("k").agg(F.sum("n"))
    failure, journal = run(counted, tmp_path / "ck")
    assert str(failure).startswith("ValueError: secret ")
    assert "(in test_users_errors.py line " in str(failure)
    kinds = [event["event"] for event in journal]
    assert "retry" not in kinds
    (stop,) = [event for event in journal if event["event"] == "stop"]
    assert stop["error"].startswith("ValueError in test_users_errors.py line ")
    assert "secret" not in json.dumps(journal)


def test_the_text_is_in_the_journal_where_somebody_asks_for_it(
    stream: DataFrame, tmp_path: Path
) -> None:
    class Fails(Silent):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            msg = f"secret {key}"
            raise KeyError(msg)

    failure, journal = run(
        with_state(stream, Fails(), "None"),
        tmp_path / "ck",
        **{"headgate.journal.errorText": "true"},
    )
    assert "KeyError in test_users_errors.py line" in str(failure)
    assert "secret" in str(failure)
    assert "secret" in journal[-1]["error"]


WORKER = """
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
{frames}
{kind}: {said}

\tat org.apache.spark.api.python.BasePythonRunner
"""
MINE = '  File "/srv/jobs.py", line 3, in parse\n    raise X'
OURS = f'{MINE}\n  File "/x/site-packages/headgate/state/objects.py", line 3, in f\n    raise X'


@pytest.mark.parametrize(
    ("frames", "kind", "final"),
    [
        (MINE, "ValueError", True),
        (MINE, "mine.errors.Bad", True),
        ("", "TypeError", True),
        (MINE, "ConnectionResetError", False),
        (MINE, "requests.exceptions.ConnectTimeout", False),
        (MINE, "MemoryError", False),
        (MINE, "OSError", False),
        (OURS, "OSError", False),
        (OURS, "ValueError", False),
        (OURS, "headgate.core.errors.CheckpointError", False),
    ],
)
def test_only_what_would_fail_again_is_final(frames: str, kind: str, final: bool) -> None:
    error = PySparkException(WORKER.format(frames=frames, kind=kind, said="x"))
    assert is_final(error) is final


def test_a_lost_worker_or_executor_is_not_final() -> None:
    for text in (
        "Job aborted: ExecutorLostFailure (executor 1 exited)",
        "Python worker exited unexpectedly (crashed)",
        "java.io.IOException: Connection reset",
    ):
        assert not is_final(PySparkException(text))
        assert users_failure(text) is None


def test_what_a_journal_has_of_an_error_quotes_no_record() -> None:
    try:
        raise LookupError("secret 1")
    except LookupError as error:
        ours = explained(error, "Alarm")
        raised = error
    assert "‹secret 1›" in str(ours)
    assert "secret" not in withheld(str(ours))
    cast = PySparkException("[CAST_INVALID_INPUT] The value 'secret' cannot SQLSTATE: 22018")
    full = PySparkException("java.io.IOException: No space left on device")
    worker = PySparkException(WORKER.format(frames=MINE, kind="ValueError", said="secret"))
    for error in (ours, raised, cast, worker, QueryFailed.of(cast, worker)):
        assert "secret" not in sentence(error, texts=False), error
        assert "secret" in sentence(error, texts=True), error
    assert "LookupError in test_users_errors.py line" in sentence(raised, texts=False)
    assert "[CAST_INVALID_INPUT]" in sentence(cast, texts=False)
    assert "No space left" in sentence(full, texts=False)
    assert told(worker) == "ValueError: secret (in jobs.py line 3)"


def test_a_call_that_does_not_fit_names_where_the_method_begins() -> None:
    with pytest.raises(TypeError) as raised:
        Alarm().handleExpiredTimer(key=1, timerValues=2, expiredTimerInfo=3)  # type: ignore[call-arg]
    # no line of the user's ran: what raised it was headgate's own call
    error = raised.value.with_traceback(None)
    said = str(explained(error, "Alarm", Alarm().handleExpiredTimer))
    assert "TypeError in test_users_errors.py line " in said
    assert "got an unexpected keyword argument 'timerValues'›" in said
