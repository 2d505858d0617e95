"""Runs as they seldom are: in a thread, without a batch, interrupted, or refused."""

from __future__ import annotations

import threading
import types
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import runs
from fakes import AGREES, FakeClock, FakeEngine, FakeQuery

from headgate.core.errors import CheckpointError, ConfigError, EngineError
from headgate.scenario import Scenario, adoption, places, rehearsal, run_scenario
from headgate.scenario import run as scenario_run
from headgate.scenario import spark as spark_side
from headgate.scenario.description import settings_not_taken, to_verify
from headgate.scenario.driver import driver_of
from headgate.scenario.spark import SparkEngine, sparks_errors
from headgate.scenario.workload import Workload


class Life:
    """The life of a JVM that is there."""

    def __init__(self, spark: object) -> None: ...

    def meaning(self, error: Exception) -> str | None:
        return None


class Schema:
    """The schema of a frame; of a reader the call that sets one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __call__(self, schema: Schema) -> Engine:
        self.engine.calls.append(("schema", (), {}))
        return self.engine

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema)

    __hash__ = None  # type: ignore[assignment]


class Engine:
    """headgate's modules for Spark, of which each call is written down."""

    JvmLife = Life

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return self

        return call

    @property
    def schema(self) -> Schema:
        return Schema(self)

    isStreaming = True

    @property
    def read(self) -> Engine:
        return self

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(spark_side, "engine_module", lambda name: made)
    monkeypatch.setattr(adoption, "engine_module", lambda name: made)
    return made


def provide(monkeypatch: pytest.MonkeyPatch, workload: Workload, name: str = "mine") -> None:
    plugin = types.SimpleNamespace(load=lambda wanted, called: workload)
    monkeypatch.setattr(spark_side, "installed", lambda group: {name: plugin})


# --- The engine ---------------------------------------------------------------------------------------


def test_an_engine_has_one_session_and_gives_the_query_back(
    modules: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    provide(monkeypatch, Workload(lambda spark: spark))
    engine = SparkEngine({"a": "b"})
    it = Scenario("mine", checkpoint=tmp_path / "ck").placed()
    assert engine.start(it) is modules
    assert engine.session() is engine.session() is modules
    assert modules.named("session") == [((), {"a": "b"})]
    assert modules.named("register_installed") == [((modules,), {})]
    engine.close()
    engine.close()
    assert modules.named("stop") == [((), {})], "once"


class Beside:
    """Runs beside a query, and takes results of its own format."""

    sink_format = "kafka"
    sink_options: dict[str, str] = {"topic": "counts"}  # noqa: RUF012
    made: list[Beside] = []  # noqa: RUF012

    def __init__(self, place: Path, options: dict[str, Any]) -> None:
        self.options = {"servers": "here:1"}
        self.place, self.did = place, [str(options)]
        self.made.append(self)

    @staticmethod
    def conf(given: dict[str, str]) -> dict[str, str]:
        return {"jars": "a.jar", "mine": "theirs"}

    def begin(self) -> None:
        self.did.append("begin")

    def output(self, spark: Any, schema: Any) -> tuple[str, Any]:
        return "what is in Kafka", schema

    def close(self) -> None:
        self.did.append("close")


@pytest.mark.parametrize(
    ("given", "output", "sink"),
    [
        ({}, ("what is in Kafka", Schema(Engine())), ("kafka", {"topic": "counts"})),
        (
            {"sink_format": "kafka"},
            ("what is in Kafka", Schema(Engine())),
            ("kafka", {"topic": "counts"}),
        ),
        ({"sink_format": "csv"}, None, ("csv", {"path": "file:{}/out"})),
        ({"table": "t"}, None, ("parquet", {})),
        ({"table": "t", "sink_format": "delta"}, None, ("delta", {})),
    ],
)  # fmt: skip
def test_results_of_what_runs_beside_are_written_and_compared_where_they_are(
    modules: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    given: dict[str, Any], output: Any, sink: tuple[str, dict[str, str]],
) -> None:  # fmt: skip
    def build(spark: Engine, *, rate: int, servers: str = "") -> Engine:
        spark.calls.append(("build", (rate, servers), {}))
        return spark

    Beside.made.clear()
    provide(monkeypatch, Workload(build, beside=Beside, options={"rate": 3}))
    (tmp_path / "out").mkdir()
    runs.journal(tmp_path / "ck" / "headgate" / "journal.jsonl", [runs.start()])
    it = Scenario("mine", checkpoint=tmp_path / "ck", output=tmp_path / "out", **given).placed()
    engine = SparkEngine({"mine": "mine"})
    engine.start(it)
    engine.verify(it)
    engine.close()
    assert modules.named("session") == [((), {"jars": "a.jar", "mine": "mine"})]
    assert modules.named("build") == [((3, "here:1"), {})] * 2
    assert modules.named("format")[0] == ((sink[0],), {})
    assert len(modules.named("schema")) == (given == {"sink_format": "csv"})
    options = {key: text.format(tmp_path) for key, text in sink[1].items()}
    assert modules.named("options") == [((), options)]
    (beside,) = Beside.made
    assert beside.place == tmp_path / "ck-beside"
    assert beside.did == ["{'rate': 3}", "begin", "close"]
    ((_, compared),) = modules.named("verify")
    assert compared["output"] == (output or modules)
    assert compared["options"] == {"rate": 3, "servers": "here:1"}


def test_a_run_that_is_not_rehearsed_starts_no_query(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[FakeQuery] = []

    def start(_: SparkEngine, it: Scenario) -> FakeQuery:
        assert it.checkpoint is not None
        started.append(FakeQuery(it.checkpoint.parent / "journal.jsonl"))
        return started[-1]

    monkeypatch.setattr(SparkEngine, "start", start)
    for stateful, seconds in ((True, 29.9), (False, 60.0)):
        provide(monkeypatch, Workload(lambda spark: spark, stateful=stateful))
        it = Scenario("mine", checkpoint=tmp_path, duration_s=seconds)
        SparkEngine().rehearse(it, lambda: False)
        assert started == []
    provide(monkeypatch, Workload(lambda spark: spark))
    changes = ((5.0, 3), (9.0, 1))
    it = Scenario("mine", checkpoint=tmp_path, duration_s=30.0, scale_at=changes)
    SparkEngine().rehearse(it, lambda: False)
    (query,) = started
    assert query.scaled == [(3, "rehearsal"), (1, "rehearsal")]
    assert query.stops == 1


@pytest.mark.parametrize(
    ("given", "batches", "waited_s"),
    [({"fails_after": 1}, 1, 0.0), ({"interrupted": True}, 0, 0.0), ({}, 2, 60.0)],
    ids=["ended", "interrupted", "silent"],
)
def test_a_rehearsal_does_not_wait_for_a_query_that_does_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    given: dict[str, Any], batches: int, waited_s: float,
) -> None:  # fmt: skip
    clock = FakeClock()
    fake = types.SimpleNamespace(monotonic=clock, sleep=clock.sleep)
    monkeypatch.setattr(rehearsal, "time", fake)
    query = FakeQuery(tmp_path / "journal.jsonl", given.get("fails_after"))
    if not given:
        monkeypatch.setattr(FakeQuery, "isActive", True)
    it = Scenario("word-count", scale_at=((1.0, 3),))
    rehearsal.rehearse_changes(query, it, lambda: bool(given.get("interrupted")))
    assert query.scaled == ([] if "fails_after" in given else [(3, "rehearsal")])
    assert clock.now - 100.0 == pytest.approx(2 * waited_s, abs=0.3)


class PySparkError(Exception):
    __module__ = "pyspark.errors"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[A_B.C] it is so. SQLSTATE: 42K02\nat org", "Spark failed: it is so."),
        ("it is so [A_B] SQLSTATE:1 more", "Spark failed: it is so [A_B]"),
        ("\n it is so\nat org", "Spark failed: it is so"),
    ],
)
def test_of_sparks_text_the_sentence_is_told(text: str, says: str) -> None:
    with pytest.raises(EngineError) as failed, sparks_errors():
        raise PySparkError(text)
    assert str(failed.value) == says


def test_what_is_not_sparks_goes_through() -> None:
    for error in (OSError("x"), ConfigError("y")):
        with pytest.raises(type(error), match=r"^[xy]$"), sparks_errors():
            raise error


# --- A run --------------------------------------------------------------------------------------------


def test_a_run_in_a_thread_leaves_signals_alone_and_has_an_end(tmp_path: Path) -> None:
    results: list[Any] = []
    clock, it = FakeClock(), Scenario("word-count", duration_s=1.0, checkpoint=tmp_path / "ck")

    def work() -> None:
        run = run_scenario(
            it, lambda _: None, engine=FakeEngine(), clock_s=clock, sleep=clock.sleep
        )
        results.append(run)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results[0]["workload"] == "word-count"


def test_what_a_comparison_says_of_dropped_records_stands_beside_the_journals() -> None:
    journal = Path("never read")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            scenario_run, "summary", lambda _: {"dropped": {"late": 3, "lost": 1}, "slo": None}
        )
        it = Scenario("word-count")
        told = {**AGREES, "dropped": {"late": 5}, "unknown": 1}
        result = scenario_run._result(it, journal, told)
        assert result["dropped"] == {"late": 5, "lost": 1}
        assert (result["verified"], result["checkpoint"], result["journal"]) == (
            True,
            None,
            str(journal),
        )
        assert "unknown" not in result
        assert "slo_met" not in result
        assert (
            scenario_run._result(it, journal, {**AGREES, "dropped": None})["dropped"]["late"] == 3
        )
        slo = ("mean < 1 s over 1 s",)
        for known, met in ((None, False), ({"met": False}, False), ({"met": True}, True)):
            patch.setattr(
                scenario_run, "summary", lambda _, known=known: {"dropped": {}, "slo": known}
            )
            required = Scenario("word-count", slo=slo, require_slo=True)
            assert scenario_run._result(required, journal, None)["slo_met"] is met


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"checkpoint": Path("/etc/passwd/ck")}, "is not a directory"),
        ({"output": Path("/etc/passwd/out")}, "is not a directory"),
        ({"table": "t", "output": Path("out")}, "leave --table or --out out"),
        ({"output": Path("/")}, '"/" cannot be the output'),
        ({"checkpoint": Path("/")}, '"/" cannot be a checkpoint'),
        ({"checkpoint": Path("s3:/b/ck")}, "has no directory beside it for the output"),
    ],
)
def test_places_that_cannot_be_are_refused_before_a_query_starts(
    tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    engine = FakeEngine()
    it = Scenario("word-count", **{"checkpoint": tmp_path / "ck", **fields})
    with pytest.raises(ConfigError, match=says):
        run_scenario(it, lambda _: None, engine=engine)
    assert (engine.rehearsed, engine.query, engine.closed) == (None, None, 0)


def test_a_failure_has_its_kind_where_it_has_no_text() -> None:
    assert scenario_run._reason(ValueError()) == "ValueError"
    text = "Traceback (most recent call last)\n  File x\na.b.MyError: first\nKeyError: 'k'\nat org"
    assert scenario_run._reason(text) == "KeyError: 'k'"
    assert scenario_run._reason("Traceback (most recent call last)\nnothing") == (
        "Traceback (most recent call last)"
    )


@pytest.mark.parametrize(("there", "says"), [(True, "has no journal"), (False, "does not exist")])
def test_a_copy_of_a_journal_goes_with_its_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: bool, says: str
) -> None:
    at_exit: list[Any] = []
    files = types.SimpleNamespace(is_there=lambda: there)
    copied: list[Path] = []

    class Copy:
        def __init__(self, of: Any, to: Path) -> None:
            assert of is files
            self.to = to

        def refresh(self) -> bool:
            copied.append(self.to)
            runs.journal(self.to, [runs.start()]) if len(copied) == 1 else None
            return len(copied) == 1

    monkeypatch.setattr(places, "JournalCopy", Copy)
    monkeypatch.setattr(places, "Checkpoint", lambda _: types.SimpleNamespace(files=files))
    monkeypatch.setattr(places.atexit, "register", lambda *of, **how: at_exit.append((of, how)))
    monkeypatch.setattr(places.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    assert places.journal_at("s3://b/ck") == copied[0]
    ((remove, place), how) = at_exit[0]
    remove(place, **how)
    assert not tmp_path.exists()
    remove(place, **how)
    with pytest.raises(CheckpointError, match=f"checkpoint s3://b/ck {says}; give"):
        places.journal_at("s3://b/ck")


# --- A driver, and what an inspection shows -----------------------------------------------------------


def test_the_steps_of_a_driver_are_those_of_its_checkpoint(tmp_path: Path) -> None:
    path = checkpoints.of_two_steps(tmp_path / "ck")
    assert (driver_of(path).committed, driver_of(path).begun) == (1, None)
    hg_checkpoint = checkpoints.Checkpoint(path)
    hg_checkpoint.write_intent(2, {"step": 2})
    assert (driver_of(path).committed, driver_of(path).begun) == (1, 2)
    empty = checkpoints.Checkpoint(tmp_path / "new")
    empty.open({"key_groups": 2})
    assert (driver_of(tmp_path / "new").committed, driver_of(tmp_path / "new").begun) == (
        None,
        None,
    )
    empty.write_intent(0, {"step": 0})
    assert (driver_of(tmp_path / "new").committed, driver_of(tmp_path / "new").begun) == (None, 0)
    for nowhere in (tmp_path / "none", "s3://b/ck"):
        seen = driver_of(nowhere)
        assert (seen.holds, seen.owner, seen.committed, seen.begun) == (None, "", None, None)


def test_who_types_no_settings_has_none(tmp_path: Path) -> None:
    named = to_verify(tmp_path, workload="mine:query", output=None, options={"n": 1})
    assert (named.conf, named.options, named.checkpoint) == ({}, {"n": 1}, tmp_path)
    assert settings_not_taken(named) == []
    Scenario(
        "word-count", checkpoint=tmp_path, conf={"spark.b": "1", "spark.a": "2"}
    ).placed().record()
    assert settings_not_taken(named) == ["spark.a", "spark.b"]
    typed = to_verify(tmp_path, workload=None, output=None, options={}, conf={"spark.a": "3"})
    assert (settings_not_taken(typed), typed.workload) == (["spark.b"], "word-count")
    assert typed.output == tmp_path.with_name(f"{tmp_path.name}-output")


# --- A checkpoint that is carried ---------------------------------------------------------------------


def test_what_cannot_be_carried_is_refused_before_spark_starts(
    modules: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workload = Workload(lambda spark, n: spark, output_mode="update", options={"n": 1})
    provide(monkeypatch, workload)
    origin, target = tmp_path / "origin", tmp_path / "target"

    def refused(says: str, act: Any, **more: Any) -> None:
        with pytest.raises(ConfigError, match=says):
            adoption.carry_checkpoint(act, origin, target, "mine", {"n": 2} if more else {}, **more)
        assert modules.named("session") == []

    refused("is no directory with a checkpoint; name the one to adopt", "adopt")
    origin.mkdir()
    refused("is no directory with a checkpoint of headgate's", "export")
    (origin / "headgate").mkdir()
    (origin / "headgate" / "identity.json").mkdir()
    refused("is no directory with a checkpoint of headgate's", "export")
    (origin / "headgate" / "identity.json").rmdir()
    (origin / "headgate" / "identity.json").touch()
    monkeypatch.setattr(adoption, "check_place", modules.check_place)
    monkeypatch.setattr(SparkEngine, "session", lambda self: modules)
    modules.calls.clear()
    with pytest.raises(ConfigError, match='output mode "sideways" is unknown; use append, update'):
        adoption.carry_checkpoint("export", origin, target, "mine", {}, output_mode="sideways")
    modules.calls.clear()
    for act, ours in (("export", origin), ("adopt", target)):
        adoption.carry_checkpoint(act, origin, target, "mine", {"n": 2})  # type: ignore[arg-type]
        looked = [(name, args) for name, args, _ in modules.calls if name not in ("stop",)]
        expected = [
            ("check_place", (target,)),
            ("refuse_used", (target,)),
            ("refuse_within", (target, origin)),
            *([("newest", (origin,)), ("check_types", (origin,))] if act == "adopt" else []),
        ]
        assert looked[: len(expected)] == expected
        assert ("option", ("checkpointLocation", str(ours))) in looked
        modules.calls.clear()
