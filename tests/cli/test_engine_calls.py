"""Every setting of a scenario, and of a fleet's description, reaches the engine as it is meant."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import CheckpointError, ConfigError
from headgate.journal.fleet import FleetDecided, FleetJobState, FleetRound
from headgate.scenario import Scenario
from headgate.scenario import fleet as fleet_run
from headgate.scenario import spark as spark_side
from headgate.scenario.fleet_file import read_fleet
from headgate.scenario.spark import SparkEngine
from headgate.scenario.workload import Workload


class Recorder:
    """Notes the calls of a fluent interface; attributes are calls, too."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Recorder:
            self.calls.append((name, *args, *([kwargs] if kwargs else [])))
            return self

        return call

    def names(self, *left_out: str) -> list[str]:
        return [call[0] for call in self.calls if call[0] not in left_out]


class Frame:
    """What a workload's function returns: it has a schema, and its options."""

    isStreaming = True
    schema = "the schema"

    def __init__(self, **options: Any) -> None:
        self.options = options


class Session(Recorder):
    """A session whose reader notes what is read."""

    @property
    def read(self) -> Recorder:
        return self


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(spark_side, "engine_module", lambda name: recorder)
    monkeypatch.setattr(fleet_run, "engine_module", lambda name: recorder)
    monkeypatch.setattr(SparkEngine, "session", lambda self: Session())
    workload = Workload(
        lambda spark, **options: Frame(**options), arrival="at", output_mode="update",
        options={"hot": "2"},
    )  # fmt: skip
    plugin = types.SimpleNamespace(load=lambda wanted, called: workload)
    monkeypatch.setattr(spark_side, "installed", lambda group: {"word-count": plugin})
    return recorder


def started(engine: Recorder, place: Path, **given: Any) -> list[tuple[Any, ...]]:
    it = Scenario("word-count", checkpoint=place / "ck", **given).placed()
    SparkEngine().start(it)
    return engine.calls[1:]


def test_a_plain_scenario_sets_nothing_that_it_does_not_say(
    engine: Recorder, tmp_path: Path
) -> None:
    assert started(engine, tmp_path) == [
        ("slots", {"max": "auto", "start": 2}),
        ("keyGroups", 128),
        ("outputMode", "update"),
        ("format", "parquet"),
        ("options", {"path": f"file:{tmp_path}/ck-output"}),
        ("option", "checkpointLocation", f"file:{tmp_path}/ck"),
        ("queryName", "word-count"),
        ("option", "headgate.workload", "word-count"),
        ("option", "headgate.arrival", "at"),
        ("start",),
    ]


def test_a_scenario_sets_all_that_it_says(engine: Recorder, tmp_path: Path) -> None:
    calls = started(
        engine, tmp_path, slots=3, slots_max=9, key_groups=64, output_mode="append",
        budget="800 ms", slo=("mean < 1 s over 1 s", "p99 < 3 s over 1 s"), advise=True,
        policy="static(3)", migration="subscale", slot_rate=5.0, floor="0 s", memory_max="1 GB",
        real_time=True, arrival="ts", table="db.t", sink_format="delta",
    )  # fmt: skip
    assert calls == [
        ("slots", {"max": 9, "start": 3}),
        ("keyGroups", 64),
        ("outputMode", "append"),
        ("format", "delta"),
        ("options",),
        ("option", "checkpointLocation", f"file:{tmp_path}/ck"),
        ("queryName", "word-count"),
        ("option", "headgate.workload", "word-count"),
        ("budget", "800 ms"),
        ("slo", "mean < 1 s over 1 s", "p99 < 3 s over 1 s"),
        ("advise", True),
        ("policy", "static(3)"),
        ("migration", "subscale"),
        ("option", "headgate.slotRate", 5.0),
        ("option", "headgate.floor", "0 s"),
        ("option", "headgate.state.memoryMax", "1 GB"),
        ("trigger", {"realTime": "5 minutes"}),
        ("option", "headgate.arrival", "ts"),
        ("toTable", "db.t"),
    ]


def compared(engine: Recorder, monkeypatch: pytest.MonkeyPatch, place: Path, **given: Any) -> Any:
    session = Session()
    monkeypatch.setattr(SparkEngine, "session", lambda self: session)
    (place / "ck/headgate").mkdir(parents=True)
    (place / "ck/headgate/journal.jsonl").touch()
    (place / "out").mkdir()
    it = Scenario("word-count", checkpoint=place / "ck", **given)
    SparkEngine().verify(it)
    ((_, spark, _, settings),) = [call for call in engine.calls if call[0] == "verify"]
    assert spark is session
    assert settings.pop("output") is session
    return session.calls, settings


def test_files_are_compared_with_the_schema_of_the_query(
    engine: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = {"output": tmp_path / "out"}
    calls, settings = compared(engine, monkeypatch, tmp_path, **out, options={"a": 1}, seed=4)
    place = f"file:{tmp_path}/out"
    assert calls == [("schema", "the schema"), ("format", "parquet"), ("load", place)]
    assert settings == {
        "checkpoint": str(tmp_path / "ck"), "mode": "update", "reference": None,
        "options": {"hot": "2", "seed": 4, "a": 1},
    }  # fmt: skip


def test_a_table_format_is_not_told_a_schema(
    engine: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"output": tmp_path / "out", "sink_format": "delta", "output_mode": "append"}
    calls, settings = compared(engine, monkeypatch, tmp_path, **given)
    assert calls == [("format", "delta"), ("load", f"file:{tmp_path}/out")]
    assert settings["mode"] == "append"


def test_a_table_is_compared_by_its_name(
    engine: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls, _ = compared(engine, monkeypatch, tmp_path, table="db.t")
    assert calls == [("table", "db.t")]


def test_what_is_not_there_cannot_be_compared(engine: Recorder, tmp_path: Path) -> None:
    for given in ({}, {"checkpoint": tmp_path / "none"}):
        with pytest.raises(ConfigError, match="there is no checkpoint at"):
            SparkEngine().verify(Scenario("word-count", **given))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there is no output at"):
        SparkEngine().verify(Scenario("word-count", checkpoint=tmp_path))
    with pytest.raises(CheckpointError, match="has no journal"):
        SparkEngine().verify(Scenario("word-count", checkpoint=tmp_path, output=tmp_path))


def test_an_explanation_knows_mode_memory_and_place(engine: Recorder, tmp_path: Path) -> None:
    it = Scenario("word-count", output_mode="complete", memory_max="1 GB", checkpoint=tmp_path)
    it = replace(it, real_time=True)
    SparkEngine().explain(it)
    SparkEngine().explain(Scenario("word-count"))
    (_, first, *mode_and), (_, second, *bare) = [c for c in engine.calls if c[0] == "explain"]
    place = {"memoryMax": "1 GB", "checkpointLocation": str(tmp_path)}
    assert mode_and == ["complete", {**place, "realTime": True}]
    assert bare == [None, {"memoryMax": None, "checkpointLocation": None, "realTime": False}]
    assert first.options == second.options == {"hot": "2", "seed": 1}


# --- Fleets -------------------------------------------------------------------------------------------

PLAIN = """
[fleet]
slots = 9
[jobs.a]
query = "word-count"
slo = ["mean < 1 s over 1 s"]
"""
FULL = """
[fleet]
slots = 12
round = "5 s"
observe = "20 s"
max_actions_per_minute = 3
hang = "30 s"
cooldown = "7 s"
policy = "henge"
goal = "max-min"
[[fleet.budget]]
at = "1 s"
slots = 20
[[fleet.budget]]
at = "1900 ms"
slots = 30
[jobs.a]
query = "word-count"
priority = 7
slo = ["mean < 1 s over 1 s", "p99 < 4 s over 1 s"]
key_groups = 32
checkpoint = "/ck/a"
slot_rate = 50
policy = "psps"
interval = "3 s"
options = { fast = true, rate = 5 }
slots = { min = 2, max = 6, start = 3 }
sink = { format = "csv", outputMode = "append", path = "/out/a", header = "true" }
trigger = { processingTime = "2 seconds" }
"""


def described(text: str, place: Path) -> Any:
    (place / "fleet.toml").write_text(text)
    return read_fleet(place / "fleet.toml")


def test_a_job_that_says_little_has_the_defaults(engine: Recorder, tmp_path: Path) -> None:
    job = described(PLAIN, tmp_path).jobs["a"]
    fleet_run.writer_of(SparkEngine(), "a", job, tmp_path / "work")
    (_, frame), *calls = engine.calls
    assert frame.options == {"hot": "2"}
    assert calls == [
        ("queryName", "a"),
        ("slo", "mean < 1 s over 1 s"),
        ("slots", 1, 128, 1),
        ("keyGroups", 128),
        ("format", "parquet"),
        ("outputMode", "update"),
        ("option", "checkpointLocation", f"file:{tmp_path}/work/a/checkpoint"),
        ("option", "headgate.workload", "word-count"),
        ("options", {"path": f"file:{tmp_path}/work/a/output"}),
        ("option", "headgate.arrival", "at"),
    ]


def test_a_job_is_started_with_all_that_it_says(engine: Recorder, tmp_path: Path) -> None:
    job = described(FULL, tmp_path).jobs["a"]
    fleet_run.writer_of(SparkEngine(), "a", job, tmp_path)
    (_, frame), *calls = engine.calls
    assert frame.options == {"hot": "2", "fast": "true", "rate": "5"}
    assert calls == [
        ("queryName", "a"),
        ("slo", "mean < 1 s over 1 s", "p99 < 4 s over 1 s"),
        ("slots", 2, 6, 3),
        ("keyGroups", 32),
        ("format", "csv"),
        ("outputMode", "append"),
        ("option", "checkpointLocation", "/ck/a"),
        ("option", "headgate.workload", "word-count"),
        ("options", {"path": "/out/a", "header": "true"}),
        ("trigger", {"processingTime": "2 seconds"}),
        ("option", "headgate.slotRate", 50),
        ("policy", "psps"),
        ("option", "headgate.replicas.interval", "3 s"),
        ("option", "headgate.arrival", "at"),
    ]


@pytest.mark.parametrize(("text", "advise"), [(PLAIN, False), (FULL, True)])
def test_a_fleet_is_made_with_its_settings(
    engine: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, advise: bool
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        fleet_run, "fleet_policy", lambda *given, **more: asked.append((*given, more)) or "policy"
    )
    fleet_run._fleet(SparkEngine(), described(text, tmp_path), tmp_path, advise=advise)
    ((_, _, slots, given),) = [call for call in engine.calls if call[0] == "Fleet"]
    ((_, _, added),) = [call for call in engine.calls if call[0] == "add"]
    policy, journal = given.pop("policy"), given.pop("journal")
    assert journal == tmp_path / "fleet.jsonl"
    plain = (9, 10.0, 6, 60.0, 0.0)
    full = (12, 5.0, 3, 30.0, 7.0)
    keys = ("round_s", "actions_per_minute", "hang_s", "cooldown_s")
    assert given.pop("advise") is advise
    assert (slots, *(given.pop(key) for key in keys)) == (full if advise else plain)
    assert given == {}
    assert policy == "policy"
    few = ("henge", 10.0, {"observe_s": None, "goal": "total"})
    assert asked == [("henge", 5.0, {"observe_s": 20.0, "goal": "max-min"}) if advise else few]
    assert added["priority"] == (7 if advise else described(PLAIN, tmp_path).jobs["a"].priority)


def seen(time_s: float, slots_max: int, utilities: dict[str, float | None]) -> FleetRound:
    jobs = tuple(
        FleetJobState(
            name, "running", utility, 10.0, utility == 10.0, (0.5,), {"op": 2, "other": 1},
            {"op": 0.5}, 5.0, {"op": 3}, {"op": 4},
        )
        for name, utility in utilities.items()
    )  # fmt: skip
    total = sum(utility or 0.0 for utility in utilities.values())
    return FleetRound(time_s, jobs, total, 10.0 * len(jobs), 6, slots_max, False)


class FakeFleet:
    """A fleet of two jobs whose rounds were written down."""

    def __init__(self) -> None:
        self.rounds = [
            seen(1.0, 8, {"a": None, "b": None}),
            seen(2.0, 8, {"a": 5.0, "b": 10.0}),
            seen(2.5, 8, {"a": 5.0, "b": 5.0}),
            seen(3.0, 9, {"a": 10.0, "b": 10.0}),
            seen(4.0, 9, {"a": None, "b": None}),
        ]
        self.jobs = {"a": "running", "b": "failed", "c": "waiting"}
        self.failures = {"b": "no room"}
        last = {"op": 2}
        self.actions = [
            FleetDecided("henge", "reduction", "r", "why", True, {"a": last, "b": last}, {}, 2.0),
            FleetDecided("henge", "reversion", "r", "back", False, {"b": last}, {}, 3.0),
        ]
        self.limits = types.SimpleNamespace(slots=9)
        self.policy: Any = types.SimpleNamespace(name="henge")
        self.budgets: list[int] = []
        self.did: list[str] = []

    def set_budget(self, slots: int) -> None:
        self.budgets.append(slots)

    def start(self) -> None:
        self.did.append("start")

    def stop(self) -> None:
        self.did.append("stop")


def test_the_result_of_a_fleet_is_its_rounds_jobs_and_actions() -> None:
    found = fleet_run.fleet_result(FakeFleet())
    jobs = found.pop("jobs")
    assert found == {
        "policy": "henge", "rounds": 5, "utility": 20.0, "utility_max": 20.0,
        "satisfaction_mean": 0.75, "budgets": [[1.0, 8], [3.0, 9]], "slots": 6, "slots_max": 9,
        "rows": [
            {"time_s": 2.0, "action": "reduction", "jobs": "a,b", "acts": True, "reason": "why"},
            {"time_s": 3.0, "action": "reversion", "jobs": "b", "acts": False, "reason": "back"},
        ],
        "touched": {"b": 2, "a": 1}, "oversubscribed": None,
    }  # fmt: skip
    assert jobs["a"] == {
        "utility_max": 10.0, "utility": [[1.0, None], [2.0, 5.0], [2.5, 5.0], [3.0, 10.0], [4.0, None]],
        "slots": {"op": 2, "other": 1}, "values": [0.5], "met": False, "granted": {"op": 3},
        "requested": {"op": 4}, "held": [[1.0, 3], [2.0, 3], [2.5, 3], [3.0, 3], [4.0, 3]],
        "state": "running",
    }  # fmt: skip
    assert (jobs["b"]["state"], jobs["b"]["failure"]) == ("failed", "no room")
    assert jobs["c"] == {"utility": [], "state": "waiting"}


def test_a_fleet_without_a_round_has_no_utility() -> None:
    fleet = FakeFleet()
    fleet.rounds, fleet.actions = fleet.rounds[:1], []
    fleet.policy = types.SimpleNamespace(
        name="henge", indicators=types.SimpleNamespace(oversubscribed=True)
    )
    found = fleet_run.fleet_result(fleet)
    unknown = ("utility", "utility_max", "satisfaction_mean", "slots")
    assert [found[key] for key in unknown] == [None] * 4
    assert found["oversubscribed"] is True


class Time:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now_s, self.slept = 50.0, []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(fleet_run, "time", made)
    return made


def ran(place: Path, monkeypatch: pytest.MonkeyPatch, fleet: FakeFleet, **given: Any) -> Any:
    (place / "fleet.toml").write_text(FULL)
    monkeypatch.setattr(fleet_run, "_fleet", lambda *_, **settings: fleet)
    monkeypatch.setattr(SparkEngine, "close", lambda self: fleet.did.append("close"))
    return fleet_run.run_fleet_file(
        place / "fleet.toml", duration_s=2.6, work=place / "deep/work", **given
    )


def test_a_fleet_runs_for_its_time_with_its_budgets_and_is_stopped(
    engine: Recorder, clock: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, looks = FakeFleet(), []
    result = ran(tmp_path, monkeypatch, fleet, on_progress=looks.append)
    assert fleet.budgets == [20, 30]
    assert looks[-3:] == [fleet] * 3, "progress is shown each second"
    assert fleet.did == ["start", "stop", "close"]
    assert sum(clock.slept) == pytest.approx(2.6)
    assert max(clock.slept) == fleet_run.PROGRESS_S
    assert (result["work"], result["duration_s"]) == (str(tmp_path / "deep/work"), 2.6)
    assert (tmp_path / "deep/work").is_dir()
    assert "killed" not in result
    ran(tmp_path, monkeypatch, FakeFleet())  # where its directory is there already


def test_a_host_is_killed_once_and_when_it_is_time(
    engine: Recorder, clock: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_s: list[float] = []

    def kill(session: object) -> str:
        killed_s.append(clock.now_s - 50.0)
        return "executor 1"

    modules: dict[str, Callable[..., Any]] = {"kill_executor": kill}
    monkeypatch.setattr(fleet_run, "engine_module", lambda name: types.SimpleNamespace(**modules))
    result = ran(tmp_path, monkeypatch, FakeFleet(), kill_host_at_s=1.0)
    assert killed_s == [pytest.approx(1.0, abs=fleet_run.PROGRESS_S)]
    assert killed_s[0] >= 1.0
    assert result["killed"] == "executor 1"
    assert ran(tmp_path, monkeypatch, FakeFleet(), kill_host_at_s=5.0)["killed"] == ""
