"""A scenario's checks, its schedule, and how it ends."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import fakes
import pytest
import runs
from fakes import DIFFERS, FakeClock, FakeEngine, FakeQuery

from headgate.cli.answer import exit_code
from headgate.core import installed
from headgate.core.errors import ConfigError, EngineError, HeadgateError
from headgate.core.installed import WORKLOADS
from headgate.journal import JournalWriter
from headgate.report import Run
from headgate.report.finish import verification_lines
from headgate.scenario import (
    Scenario,
    explain_workload,
    recorded,
    run_scenario,
    to_verify,
    verify_scenario,
)
from headgate.scenario import run as scenario_run
from headgate.scenario import spark as spark_side
from headgate.scenario.rehearsal import rehearse_changes
from headgate.scenario.spark import SparkEngine, engine_module, query_name, user_function
from headgate.scenario.workload import Workload


def scenario(tmp_path: Path, **fields: Any) -> Scenario:
    given = {"workload": "nexmark-q5", "duration_s": 10.0, "checkpoint": tmp_path / "ck"}
    return Scenario(**{**given, **fields})


def ran(it: Scenario, engine: FakeEngine, on_progress: Any = lambda journal: None) -> Any:
    clock = FakeClock()
    return run_scenario(it, on_progress, engine=engine, clock_s=clock, sleep=clock.sleep)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": 0}, "rate=0 is out of range; use a number above 0"),
        ({"rate": float("nan")}, "rate=nan is out of range"),
        ({"workload": "sdsc", "speed": -1}, "speed=-1 is out of range"),
        ({"duration_s": 0}, "duration_s=0 is out of range"),
        ({"key_groups": 0}, "key_groups=0 is out of range"),
        ({"slots": 0}, "slots=0 is out of range; use 1 to 128"),
        ({"slots": 200}, "slots=200 is out of range"),
        ({"scale_at": ((5.0, 129),)}, "slots=129 is out of range"),
        ({"scale_at": ((10.0, 4),)}, "scale_at 10 s is outside the run of 10 s"),
        ({"budget": "800"}, 'has no unit at "800"'),
        ({"workload": "sdsc", "rate": 5}, 'workload "sdsc" takes no rate'),
        ({"speed": 5}, 'workload "nexmark-q5" takes no speed'),
    ],
)
def test_a_setting_out_of_range_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        scenario(tmp_path, **fields)
    assert message in str(refused.value)


def test_a_workload_gets_its_own_options() -> None:
    assert Scenario("nexmark-q5", rate=2e4, seed=7).build_options() == {"seed": 7, "rate": 20000}
    sine = "sine(base=100, amplitude=650, period=60s)"
    assert Scenario("nexmark-q5", rate=sine).build_options()["rate"] == sine
    assert Scenario("stock-exchange", rate=5.0).build_options() == {"seed": 1, "rate": 5}
    assert Scenario("word-count").build_options() == {"seed": 1}
    assert Scenario("sdsc", speed=3600.0).build_options() == {"speed": 3600.0}
    assert Scenario("nexmark-q5", options={"hot": 2}).build_options() == {"seed": 1, "hot": 2}
    assert Scenario("my.jobs:counts", options={"a": 1}).build_options() == {"a": 1}


def test_changes_are_asked_for_in_order_and_the_query_is_stopped(tmp_path: Path) -> None:
    engine = FakeEngine()
    seen: list[Path] = []
    it = scenario(tmp_path, scale_at=((7.0, 3), (3.0, 4)))
    result = ran(it, engine, seen.append)
    assert engine.query is not None
    assert engine.query.scaled == [(4, "--scale-at"), (3, "--scale-at")]
    assert (engine.query.stops, engine.closed) == (1, 1)
    assert result["slots_seen"] == [2, 4, 3]
    assert result["workload"] == "nexmark-q5"
    assert result["checkpoint"] == str(tmp_path / "ck")
    assert result["verified"] is None
    assert set(seen) == {tmp_path / "ck" / "journal.jsonl"}
    assert len(seen) > 40


class LateQuery(FakeQuery):
    """Commits its first batch 5 s after its start, or never."""

    first_s = 5.0
    clock: FakeClock

    @property
    def isActive(self) -> bool:
        if self.clock.now - 100.0 < self.first_s:
            return True
        return super().isActive


@pytest.mark.parametrize(
    ("first_s", "ended_s"), [(5.0, 15.0), (1e9, 70.0)], ids=["late", "no batch at all"]
)
def test_times_count_from_the_first_committed_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_s: float, ended_s: float
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(LateQuery, "clock", clock, raising=False)
    monkeypatch.setattr(LateQuery, "first_s", first_s)
    monkeypatch.setattr(fakes, "FakeQuery", LateQuery)
    asked_s: list[float] = []
    monkeypatch.setattr(LateQuery, "scale", lambda *_, **__: asked_s.append(clock.now - 100.0))
    it = scenario(tmp_path, scale_at=((3.0, 4),))
    engine = FakeEngine()
    run_scenario(it, lambda _: None, engine=engine, clock_s=clock, sleep=clock.sleep)
    assert clock.now - 100.0 == pytest.approx(ended_s, abs=0.5)
    assert asked_s == [pytest.approx(ended_s - 7.0, abs=0.5)]


def test_start_up_is_told_apart_and_the_load_begins_behind_a_rehearsal(tmp_path: Path) -> None:
    engine = FakeEngine()
    result = ran(scenario(tmp_path), engine)
    assert engine.rehearsed == engine.scenario
    assert result["startup_s"] == 0.0


def test_a_rehearsal_has_each_change_of_slots_that_will_come(tmp_path: Path) -> None:
    query = FakeQuery(tmp_path / "journal.jsonl")
    it = scenario(tmp_path, scale_at=((5.0, 4), (2.0, 3)))
    rehearse_changes(query, it, lambda: False)
    assert query.scaled == [(3, "rehearsal"), (4, "rehearsal")]
    run = Run.read(query.journal)
    # two batches each; the fake one writes another where it is asked whether a change may come
    assert [change.step for change in run.changes] == [2 + 1, 4 + 1]
    assert len(run.rows) == 6


@pytest.mark.parametrize(
    ("fields", "rehearsed"),
    [
        ({"duration_s": 60.0}, True),
        ({"duration_s": 10.0}, False),
        ({"duration_s": 60.0, "table": "t"}, False),
        ({"duration_s": 60.0, "workload": "numpy:array"}, False),
        ({"duration_s": 60.0, "workload": "kafka-clicks"}, False),
    ],
)
def test_only_what_belongs_to_the_run_alone_is_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], rehearsed: bool
) -> None:
    started: list[Scenario] = []

    def start(_: SparkEngine, it: Scenario) -> FakeQuery:
        started.append(it)
        assert it.checkpoint is not None
        return FakeQuery(it.checkpoint.parent / "journal.jsonl")

    monkeypatch.setattr(SparkEngine, "start", start)
    it = scenario(tmp_path, **fields)
    SparkEngine().rehearse(it, lambda: False)
    assert bool(started) == rehearsed
    for scratch in started:
        assert scratch.checkpoint != it.checkpoint
        assert scratch.output != it.output
        assert scratch.checkpoint is not None
        assert not scratch.checkpoint.parent.exists()


def test_an_earlier_runs_batches_are_not_the_first(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal.jsonl")
    batches = scenario_run._Batches(tmp_path / "journal.jsonl")
    writer.write(runs.start())
    writer.write(runs.batch(0))
    writer.write(runs.start())
    assert not batches.any()
    writer.write(runs.batch(1))
    assert batches.any()


SPARKS_WORDS = """[STREAM_FAILED] Query [id = 1] terminated with exception: Return Message: \
Traceback (most recent call last):
  File "x.py", line 1, in f
    raise ValueError("no")
pyarrow.lib.ArrowInvalid: Schema at index 1 was different:
g: int32
\tat org.apache.spark.Foo
"""


def test_of_a_python_traceback_the_end_is_the_reason() -> None:
    assert scenario_run._reason(SPARKS_WORDS) == "ArrowInvalid: Schema at index 1 was different:"
    assert scenario_run._reason("disk is full\nat x") == "disk is full"


def test_verification_fills_its_keys(tmp_path: Path) -> None:
    result = ran(scenario(tmp_path, verify=True), FakeEngine(DIFFERS))
    found = {key: result[key] for key in ("verified", "rows_compared", "missing", "extra")}
    assert found == {"verified": False, "rows_compared": 900, "missing": 3, "extra": 0}
    assert result["dropped"] == {"late": 0}


def test_a_query_that_fails_is_an_engine_error_in_one_sentence(tmp_path: Path) -> None:
    engine = FakeEngine(fails_after=3)
    with pytest.raises(
        EngineError, match=r'"nexmark-q5" failed: disk is full; journal: '
    ) as failed:
        ran(scenario(tmp_path), engine)
    assert "\n" not in str(failed.value)
    assert engine.query is not None
    assert (engine.query.stops, engine.closed) == (1, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_the_run_early_and_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    engine = FakeEngine()
    calls: list[Path] = []

    def interrupt(journal: Path) -> None:
        calls.append(journal)
        if len(calls) == 3:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    result = ran(scenario(tmp_path, verify=True), engine, interrupt)
    assert result["batches"] < 10
    assert engine.query is not None
    assert engine.query.stops == 1
    assert engine.closed == 1
    assert signal.getsignal(number) is before
    # who sends SIGTERM waits for seconds
    assert (result["verified"] is None) is (number == signal.SIGTERM)
    assert exit_code(result) == 0


def test_an_interrupt_while_the_engine_starts_ends_the_run_cleanly_too(tmp_path: Path) -> None:
    engine = FakeEngine()
    start = engine.start

    def interrupted_start(it: Scenario) -> FakeQuery:
        os.kill(os.getpid(), signal.SIGINT)
        return start(it)

    engine.start = interrupted_start  # type: ignore[method-assign]
    result = ran(scenario(tmp_path), engine)
    assert engine.query is not None
    assert (engine.query.stops, engine.closed, result["workload"]) == (1, 1, "nexmark-q5")


def test_the_second_interrupt_interrupts(tmp_path: Path) -> None:
    engine = FakeEngine()

    def interrupt(journal: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ran(scenario(tmp_path), engine, interrupt)
    assert engine.closed == 1


def test_a_scenario_without_checkpoint_gets_a_directory_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[Callable[[], object]] = []
    monkeypatch.setattr("atexit.register", lambda f, *args: ends.append(lambda: f(*args)))
    placed = Scenario("my.jobs:counts").placed()
    assert placed.checkpoint is not None
    assert placed.checkpoint.parent.is_dir()
    assert placed.output == placed.checkpoint.with_name("checkpoint-output")
    placed.checkpoint.mkdir()
    ends[0]()
    assert placed.checkpoint.is_dir()
    placed.checkpoint.rmdir()
    ends[0]()
    assert not placed.checkpoint.parent.exists(), "of a run that was refused nothing stays"


def test_what_the_checkpoint_records_is_what_verify_compares(tmp_path: Path) -> None:
    it = scenario(tmp_path, seed=9, rate=50, scale_at=((1.0, 3),)).placed()
    assert it.checkpoint is not None
    it.checkpoint.mkdir()
    it.record()
    assert stat.S_IMODE((it.checkpoint / "scenario.json").stat().st_mode) == 0o600
    again = recorded(it.checkpoint)
    assert (again.build_options(), again.output) == (it.build_options(), it.output)
    assert again.scale_at == (), "no comparison needs it"
    other = to_verify(it.checkpoint, workload=None, output=tmp_path / "o", options={"hot": 1})
    assert (other.options, other.rate, other.output) == ({"hot": 1}, 50, tmp_path / "o")
    named = to_verify(it.checkpoint, workload="sdsc", output=None, options={})
    assert (named.workload, named.checkpoint) == ("sdsc", it.checkpoint)


def test_a_run_leaves_in_its_checkpoint_what_verify_needs(tmp_path: Path) -> None:
    it = scenario(tmp_path, seed=9)
    assert it.checkpoint is not None
    it.checkpoint.mkdir()
    ran(it, FakeEngine())
    assert recorded(it.checkpoint).build_options() == it.build_options()


@pytest.mark.parametrize("text", [None, "{", "{}", '{"scale_at":[],"output":"o","new":1}'])
def test_a_checkpoint_without_a_workload_asks_for_it(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "scenario.json").write_text(text)
    with pytest.raises(ConfigError, match="records no workload; name it"):
        recorded(tmp_path)


def test_verify_scenario_closes_the_engine(tmp_path: Path) -> None:
    engine = FakeEngine(DIFFERS)
    assert verify_scenario(scenario(tmp_path), engine)["missing"] == 3
    assert engine.closed == 1


class Recorder:
    """Notes the calls of a fluent interface; every call returns the recorder itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Recorder:
            self.calls.append((name, args, kwargs))
            return self

        return call


@pytest.fixture
def engine_calls(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    workload = Workload(
        lambda spark, **options: ("frame", options),
        arrival="at",
        options={"rate": "20000", "hot": "2"},
    )
    modules = {
        "headgate": recorder,
        "headgate.spark.cluster.session": recorder,
        "headgate.spark.api.verify": recorder,
        "headgate.spark.cluster.sources": recorder,
    }
    monkeypatch.setattr(spark_side, "engine_module", modules.__getitem__)
    provide(monkeypatch, workload)
    return recorder


def provide(monkeypatch: pytest.MonkeyPatch, workload: Workload) -> None:
    """Install a workload as nexmark-q5."""
    plugin = types.SimpleNamespace(load=lambda wanted, called: workload)
    monkeypatch.setattr(spark_side, "installed", lambda group: {"nexmark-q5": plugin})


def test_a_plugin_that_is_no_workload_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", "os:getcwd", WORKLOADS)
    monkeypatch.setattr(installed, "entry_points", lambda group: [entry])
    with pytest.raises(
        ConfigError, match=r'workload "mine" .* is no Workload but <built-in'
    ) as error:
        SparkEngine().workload("mine")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["nexmark-q5", "sdsc", "no-such"])
def test_without_the_demo_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(installed, "entry_points", lambda group: [])
    with pytest.raises(
        ConfigError,
        match=rf'"{name}" is not installed: in a checkout of headgate, pip install \./demo brings',
    ):
        SparkEngine().workload(name)


class FakeBeside:
    """Something that runs beside a query, and takes its results."""

    sink_format = "kafka"
    sink_options: ClassVar = {"topic": "counts"}
    made: ClassVar[list[Any]] = []

    def __init__(self, place: Path, options: dict[str, Any]) -> None:
        self.options = {"servers": "here:1"}
        self.did: list[str] = [place.name, str(options["rate"])]
        self.made.append(self)

    @staticmethod
    def conf(given: dict[str, str]) -> dict[str, str]:
        return {"spark.jars": "a.jar"}

    def begin(self) -> None:
        self.did.append("begin")

    def output(self, spark: Any, schema: Any) -> str:
        self.did.append("output")
        return "what is in Kafka"

    def close(self) -> None:
        self.did.append("close")


def test_what_runs_beside_a_query_is_there_before_it_and_closed_after_it(
    tmp_path: Path, engine_calls: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = SparkEngine().workload("nexmark-q5")
    provide(monkeypatch, dataclasses.replace(workload, beside=FakeBeside))
    it = scenario(tmp_path, rate=5).placed()
    engine = SparkEngine({"a": "b"})
    engine.start(it)
    calls = {name: kwargs for name, _, kwargs in engine_calls.calls}
    assert calls["session"] == {"a": "b", "spark.jars": "a.jar"}
    assert calls["options"] == {"topic": "counts"}
    built = next(args for name, args, _ in engine_calls.calls if name == "writeStream")
    assert built[0][1]["servers"] == "here:1"
    engine._spark = None  # there is no JVM behind it
    engine.close()
    (beside,) = FakeBeside.made
    assert beside.did == [f"{it.checkpoint.name}-beside", "5", "begin", "close"]


def test_the_engine_is_called_as_agreed(tmp_path: Path, engine_calls: Recorder) -> None:
    it = scenario(tmp_path, budget="800 ms", rate=5, slots=3).placed()
    SparkEngine().start(it)
    calls = [(name, args) for name, args, _ in engine_calls.calls]
    frame = ("frame", {"seed": 1, "rate": 5, "hot": "2"})
    assert [name for name, _ in calls[:2]] == ["session", "register_installed"]
    assert calls[2:] == [
        ("writeStream", (frame,)),
        ("slots", ()),
        ("keyGroups", (128,)),
        ("outputMode", ("append",)),
        ("format", ("parquet",)),
        ("options", ()),
        ("option", ("checkpointLocation", f"file:{it.checkpoint}")),
        ("queryName", ("nexmark-q5",)),
        ("option", ("headgate.workload", "nexmark-q5")),
        ("budget", ("800 ms",)),
        ("option", ("headgate.arrival", "at")),
        ("start", ()),
    ]
    assert engine_calls.calls[3][2] == {"max": "auto", "start": 3}
    assert engine_calls.calls[7][2] == {"path": f"file:{it.output}"}


@pytest.mark.parametrize("fails", [False, True])
def test_an_engine_that_explained_a_workload_or_could_not_is_closed(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    done: list[object] = []

    class Engine:
        def __init__(self, conf: object) -> None:
            done.append(conf)

        def explain(self, scenario: Scenario) -> str:
            done.append((scenario.workload, scenario.options, scenario.output_mode))
            if fails:
                raise HeadgateError("no")
            return "elastic"

        def close(self) -> None:
            done.append("closed")

    monkeypatch.setattr(scenario_run, "SparkEngine", Engine)
    with pytest.raises(HeadgateError) if fails else nullcontext():
        found = explain_workload("nexmark-q5", {"n": 1}, {"a": "b"}, output_mode="append")
        assert found == "elastic"
    assert done == [{"a": "b"}, ("nexmark-q5", {"n": 1}, "append"), "closed"]


def test_an_unknown_workload_is_refused_with_the_nearest_name(engine_calls: Recorder) -> None:
    with pytest.raises(
        ConfigError, match='unknown workload "nexmark-5"; did you mean "nexmark-q5"'
    ):
        explain_workload("nexmark-5", {})
    with pytest.raises(ConfigError, match="use one of nexmark-q5, or module:function"):
        explain_workload("zzz", {})


def test_a_users_function_is_loaded_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clicks_of_mine.py").write_text("def counts(spark):\n    return spark\nn = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert user_function("clicks_of_mine:counts")("s") == "s"
    with pytest.raises(ConfigError, match="is not a function"):
        user_function("clicks_of_mine:n")
    for missing in ("clicks_of_mine:other", "no_such_module:f", ":f"):
        with pytest.raises(ConfigError, match="cannot load"):
            user_function(missing)


def test_a_session_does_not_take_the_handler_of_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with spark_side._own_interrupts():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_asks_and_the_second_is_raised(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with scenario_run.interrupts() as asked:
        assert not asked.is_set()
        signal.raise_signal(number)
        assert asked.is_set()
        assert asked.terminated == (number == signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("jvm_is_gone", [True, False])
def test_a_session_whose_jvm_is_gone_is_closed_in_silence_and_another_failure_is_told(
    jvm_is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("it cannot be stopped")

    meaning = "the JVM has ended" if jvm_is_gone else None
    life = types.SimpleNamespace(JvmLife=lambda _: types.SimpleNamespace(meaning=lambda _: meaning))
    monkeypatch.setattr(spark_side, "engine_module", lambda name: life)
    engine = SparkEngine()
    engine._spark = types.SimpleNamespace(stop=fail)
    outcome = nullcontext() if jvm_is_gone else pytest.raises(OSError, match="stopped")
    with outcome:
        engine.close()
    engine.close()  # nothing is left to be closed


def test_a_query_is_named_after_its_workload() -> None:
    assert query_name("nexmark-q5") == "nexmark-q5"
    assert query_name("my.jobs:counts") == "my-jobs-counts"


def test_a_missing_engine_is_one_sentence() -> None:
    with pytest.raises(HeadgateError, match="this installation cannot load"):
        engine_module("headgate.none")


def test_the_column_of_arrival_is_the_users(tmp_path: Path, engine_calls: Recorder) -> None:
    it = scenario(tmp_path, arrival="ts", conf={"spark.ui.enabled": "true"}).placed()
    SparkEngine(it.conf).start(it)
    assert ("option", ("headgate.arrival", "ts"), {}) in engine_calls.calls
    assert engine_calls.calls[0] == ("session", (), {"spark.ui.enabled": "true"})


def test_what_a_users_function_raises_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = {
        "raises": "raise ZeroDivisionError('x\\ny')",
        "leaves": "raise SystemExit(3)",
        "number": "return 5",
    }
    text = "".join(f"def {name}(spark):\n    {body}\n" for name, body in functions.items())
    (tmp_path / "queries_of_theirs.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SparkEngine, "session", lambda self: None)
    monkeypatch.setattr("headgate.spark.cluster.shipping.ship", lambda spark, function: None)
    for name, says in (("raises", r"ZeroDivisionError: x\\ny"), ("leaves", "3"), ("number", "int")):
        with pytest.raises(ConfigError, match=says):
            explain_workload(f"queries_of_theirs:{name}", {})
    with pytest.raises(ConfigError, match='no option "n"; it takes none'):
        explain_workload("queries_of_theirs:number", {"n": 1})


@pytest.mark.parametrize(
    "place", ["/etc/passwd/x", "/etc/passwd", "s3:/bucket/x", "a\0b", "x" * 300]
)
def test_a_place_that_cannot_be_made_is_refused_before_anything_starts(
    tmp_path: Path, place: str
) -> None:
    engine = FakeEngine()
    it = scenario(tmp_path, output=Path(place))
    with pytest.raises(ConfigError):
        run_scenario(it, lambda journal: None, engine=engine)
    assert engine.query is None


def test_without_output_there_is_nothing_to_verify(tmp_path: Path) -> None:
    it = scenario(tmp_path, checkpoint=tmp_path, output=tmp_path / "none").placed()
    with pytest.raises(ConfigError, match="there is no output at"):
        verify_scenario(it)


def test_what_spark_refuses_is_one_sentence_without_its_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AnalysisException(Exception):
        __module__ = "pyspark.errors"

    def refuse(self: SparkEngine) -> Any:
        text = "[DATA_SOURCE_NOT_FOUND] Failed to find nosuch. SQLSTATE: 42K02\nat org.apache"
        raise AnalysisException(text)

    monkeypatch.setattr(SparkEngine, "session", refuse)
    with pytest.raises(ConfigError) as refused:
        SparkEngine().start(scenario(tmp_path, sink_format="nosuch").placed())
    assert str(refused.value) == "Spark refuses it: Failed to find nosuch."


@pytest.mark.parametrize(
    ("place", "said"),
    [(Path("/ck"), "/local/journal.jsonl"), (Path("s3://b/ck"), "s3://b/ck")],
    ids=["disk", "store"],
)
def test_of_a_checkpoint_on_a_store_the_journal_is_found_by_its_address(
    tmp_path: Path, place: Path, said: str
) -> None:
    it = dataclasses.replace(scenario(tmp_path), checkpoint=place)
    assert scenario_run._journal_said(it, Path("/local/journal.jsonl")) == said


class Ended(FakeQuery):
    """Was stopped before its first batch."""

    @property
    def isActive(self) -> bool:
        return False


def test_a_run_without_a_batch_had_nothing_to_compare(tmp_path: Path) -> None:
    class Engine(FakeEngine):
        def start(self, scenario: Scenario) -> FakeQuery:
            assert scenario.checkpoint is not None
            scenario.checkpoint.mkdir(parents=True, exist_ok=True)
            return Ended(scenario.checkpoint / "journal.jsonl")

        def verify(self, scenario: Scenario) -> Any:
            raise AssertionError("there is nothing to compare")

    result = ran(scenario(tmp_path, verify=True), Engine())
    assert (result["verified"], result["rows_compared"]) == (None, 0)
    assert exit_code(result) == 0
    assert "nothing to compare" in verification_lines(result)[0]


def test_rows_that_differ_are_shown_side_by_side() -> None:
    row = {"k": "1", "average": "2.5\x1b[2J"}
    found = {
        "verified": False, "rows_compared": 9, "missing": 1, "extra": 0, "dropped": {"late": 0},
        "differing": [{"want": row, "got": None}], "within_tolerance": ["average"],
        "settings_not_taken": ["spark.sql.session.timeZone"],
    }  # fmt: skip
    lines = verification_lines(found)
    assert lines[1:3] == ["  want     k=1, average=2.5\\x1b[2J", "  got      no row"]
    assert lines[3].endswith(": average")
    assert "spark.sql.session.timeZone" in lines[4]
