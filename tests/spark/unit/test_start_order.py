"""In which order a query begins, and what is undone if it does not; with parts that only say so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.api import start as starting
from headgate.spark.job.job import JobConfig
from headgate.spark.job.ports import NoObserver
from headgate.spark.settings.query_settings import QuerySettings

FRAME: Any = SimpleNamespace(sparkSession="the session", schema="k int")
PARAMETERS = {"slots": 2}


class Part:
    """Says of each call that it was made; `gives` is what calls return, by their names."""

    def __init__(self, name: str, did: list[str], gives: dict[str, Any]) -> None:
        self._name, self._did, self._gives = name, did, gives

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{self._name}.{name}"
        return self._gives[whole] if whole in self._gives else Part(whole, self._did, self._gives)

    def __call__(self, *given: Any, **named: Any) -> Any:
        self._did.append(self._name)
        self._gives.setdefault("given", {})[self._name] = (given, named)
        made = self._gives.get(f"{self._name}()", Part(self._name, self._did, self._gives))
        if isinstance(made, Exception):
            raise made
        return made

    def __repr__(self) -> str:
        return self._name


class Starting:
    """A start, of which all parts are made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        self.did: list[str] = []
        self.gives: dict[str, Any] = {}
        self.config = JobConfig("q", slots=2)
        self.where = self.part("where")
        self.gives |= {
            "where.url": None, "where.path": place,
            "configured.checkpoint_place()": self.where,
            "configured.job_config()": self.config,
            "configured.parameters()": PARAMETERS,
            "configured.sink()": self.part("sink"),
            "opened()": (self.part("checkpoint"), "a uuid", self.part("unlock")),
            "_steering()": (self.part("controller"), self.part("commands")),
            "Recorder.operators()": ["held"], "EpochRecorder.operators()": [],
            "arena_root()": "arena", "spill_root()": "spill",
            "_newest()": "the newest", "checkpoint.latest()": "the newest", "identity()": {"of": "it"},
            "clone_of()": "a clone",
            "source_limits()": {"maxFilesPerTrigger": "1"},
            "register_run()": "the query",
            "_needs_records()": "held back",
            "show_metrics()": self.part("hide"),
            "LiveJob.begin.query": SimpleNamespace(operators=[]), "LiveJob.begin.states": "the states",
        }  # fmt: skip
        for name in (
            "configured", "opened", "sweep", "open_run", "show_metrics", "follow_slots", "LiveJob",
            "_steering", "StatefulWork", "RealTimeWork", "StepMachine", "source_limits", "launched",
            "giving_back", "register_run", "Recorder", "EpochRecorder", "Query", "RealTimeQuery",
            "clone_of", "arena_root", "spill_root", "analysed", "identity", "_newest", "_check_store",
            "_needs_records", "read_pipeline", "check_brokers", "check_name", "PoolRecorder",
            "PoolLoop", "PoolWork", "PoolQuery", "warm_workers",
        ):  # fmt: skip
            monkeypatch.setattr(starting, name, self.part(name))

    def part(self, name: str) -> Part:
        return Part(name, self.did, self.gives)

    def given(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found: tuple[tuple[Any, ...], dict[str, Any]] = self.gives["given"][name]
        return found

    def slots(self, settings: QuerySettings, flow: Any = None) -> Any:
        plan: Any = SimpleNamespace(operators=[SimpleNamespace(spec="a spec")])
        warming: Any = self.part("warming")
        return starting._start_slots(FRAME, settings, plan, self.part("watch"), warming, flow)  # type: ignore[arg-type]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Starting:
    return Starting(monkeypatch, tmp_path)


SLOTS = [
    "configured.checkpoint_place", "_check_store", "configured.sink", "opened", "sweep", "open_run",
    "sink.begin", "_newest", "Recorder", "show_metrics", "follow_slots", "LiveJob.begin", "_steering",
    "StatefulWork", "StepMachine", "warming.load", "StatefulWork.rehearse", "Recorder.started",
    "Recorder.progress.begin", "StepMachine.steps.redeliver_drained", "controller.start",
    "commands.restore", "warming.wait", "configured.inner_writer", "launched", "giving_back", "Query",
    "register_run",
]  # fmt: skip


def test_a_query_of_slots_begins_in_its_order(made: Starting) -> None:
    assert made.slots(QuerySettings()) == "the query"
    assert [what for what in made.did if what in SLOTS] == SLOTS
    assert made.given("follow_slots")[0][1] == ["a spec"]
    assert str(made.given("follow_slots")[0][4]) == "follow"
    assert made.given("open_run")[0] == ("arena", None)
    assert made.given("sweep")[0] == ("arena",)
    machine, more = made.given("StepMachine")
    assert (machine[3], more) == ("the newest", {"held": "held back"})
    assert made.given("Recorder")[1] == {"texts": False}
    assert made.given("Recorder.progress.begin")[1] == {"counted": True}
    assert made.given("launched")[1] == {"finite": False}
    assert made.given("Query")[1]["finite"] is False
    assert str(made.given("Query")[1]["release"]) == "giving_back"
    assert str(machine[5].observer) == "watch"
    given = [str(one) for one in made.given("giving_back")[0][2:]]
    assert given == [
        "hide", "open_run.close", "open_run.end", "follow_slots.leave", "unlock", "StepMachine.close",
    ]  # fmt: skip


def test_a_query_in_real_time_holds_its_executors_and_begins_by_its_flow(made: Starting) -> None:
    made.config = made.gives["configured.job_config()"] = JobConfig("q", memory_max=2**30)
    flow = made.part("flow")
    made.slots(QuerySettings(trigger={"realTime": "5 minutes"}), flow)
    assert made.given("follow_slots")[0][4] == "keep"
    assert made.given("open_run")[0] == ("arena", "spill")
    assert made.given("EpochRecorder.progress.begin")[1] == {"counted": False}
    assert "launched" not in made.did
    assert made.did.index("flow.begin_sink") < made.did.index("opened")
    assert made.did.index("warming.wait") < made.did.index("flow.begin")
    assert [made.given("flow.begin")[0][n] for n in (0, 1)] != [None, None]
    assert "RealTimeWork" in made.did
    assert "RealTimeQuery" in made.did


def test_the_journal_begins_with_settings_limits_and_what_cannot_be_split(made: Starting) -> None:
    spec = SimpleNamespace(unsplittable="it is one value")
    made.gives["LiveJob.begin.query"] = SimpleNamespace(
        operators=[SimpleNamespace(id="a", spec=spec)]
    )
    made.slots(
        QuerySettings(
            options={"headgate.workload": '{"name": "w"}', "headgate.journal.errorText": "true"}
        )
    )
    given, named = made.given("Recorder.started")
    assert given[0] == "a uuid"
    assert given[2:4] == ("the states", "the newest")
    assert given[4] == PARAMETERS | {
        "source_limits": {"maxFilesPerTrigger": "1"},
        "unsplittable": {"a": "it is one value"},
    }
    assert named["workload"] is not None
    assert made.given("Recorder")[1] == {"texts": True}


def test_what_runs_once_or_to_the_end_of_its_sources_is_finite(made: Starting) -> None:
    made.slots(QuerySettings(trigger={"availableNow": True}))
    assert made.given("launched")[1] == {"finite": True}
    assert made.given("Query")[1]["finite"] is True


def test_a_query_without_a_controller_starts_none_and_is_watched_by_nobody(made: Starting) -> None:
    made.gives["_steering()"] = (None, made.part("commands"))
    made.gives["watch()"] = None
    made.slots(QuerySettings())
    assert "controller.start" not in made.did
    ports = made.given("StepMachine")[0][5]
    assert isinstance(ports.observer, NoObserver)


@pytest.mark.parametrize(
    ("fails", "undone"),
    [
        ("configured.sink", []),
        ("sink.begin", ["open_run.close"]),
        ("_steering", ["follow_slots.leave", "hide", "open_run.close"]),
        (
            "warming.wait",
            ["controller.stop", "StepMachine.close", "follow_slots.leave", "hide", "open_run.close"],
        ),
    ],
)  # fmt: skip
def test_a_start_that_fails_undoes_what_it_did_the_last_first(
    made: Starting, fails: str, undone: list[str]
) -> None:
    made.gives[f"{fails}()"] = OSError("it is stuck")
    with pytest.raises(OSError, match="it is stuck"):
        made.slots(QuerySettings())
    assert made.did[made.did.index(fails) + 1 :] == [*undone, "where.leave"]
    assert made.given("where.leave") == ((), {"failed": False})


def test_what_has_started_is_not_undone_by_a_start(made: Starting) -> None:
    made.slots(QuerySettings())
    for undo in ("where.leave", "StepMachine.close", "controller.stop", "hide"):
        assert undo not in made.did


# --- Pools ---------------------------------------------------------------------------------------------

POOLS = [
    "read_pipeline", "check_brokers", "check_name", "configured.pool_config",
    "config.groupings.check", "configured.checkpoint_place", "configured.sink", "opened", "sink.begin",
    "PoolRecorder", "show_metrics", "PoolLoop", "PoolRecorder.begin_with", "PoolWork", "watch",
    "StepMachine", "warm_workers", "PoolRecorder.started", "PoolRecorder.progress.begin",
    "StepMachine.steps.redeliver_drained", "configured.inner_writer", "launched", "giving_back",
    "PoolQuery", "register_run",
]  # fmt: skip


def pools(made: Starting, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Any:
    schema = SimpleNamespace(jsonValue=lambda: "its schema")
    stages = [
        SimpleNamespace(id=name, raw_schema=schema, parents=parents)
        for name, parents in {"map-0": [], "udf-1": ["map-0"]}.items()
    ]
    pipeline = SimpleNamespace(stages=stages, plan="above", sources=stages[:1], last=["udf-1"])
    made.gives |= {"read_pipeline()": pipeline, "configured.pool_config()": made.part("config")}
    monkeypatch.setattr(starting, "asdict", lambda config: {"most": 4})
    policy: Any = SimpleNamespace(name="psps")
    return starting._start_pools(FRAME, QuerySettings(**given), policy, made.part("watch"))  # type: ignore[arg-type]


def test_a_query_of_pools_begins_in_its_order(
    made: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pools(made, monkeypatch, options={"headgate.arrival": "at"}) == "the query"
    assert [what for what in made.did if what in POOLS] == POOLS
    assert made.given("read_pipeline")[0] == (FRAME, "psps", "at")
    assert list(made.given("config.groupings.check")[0][0]) == ["map-0", "udf-1"]
    assert made.given("opened")[0][2] == {"stages": {"map-0": "its schema", "udf-1": "its schema"}}
    assert made.given("PoolLoop")[0][0] == ["map-0", "udf-1"]
    assert made.given("PoolLoop")[0][5] == {"map-0": [], "udf-1": ["map-0"]}
    assert made.given("PoolRecorder.begin_with")[0] == (["map-0"], ["udf-1"])
    started = made.given("PoolRecorder.started")[0]
    assert started[:2] == ("a uuid", "udf-1")
    assert {key: started[4][key] for key in ("policy", "most")} == {"policy": "psps", "most": 4}
    assert made.given("launched")[1] == {"finite": False}
    assert made.given("PoolQuery")[1]["finite"] is False
    assert str(made.given("PoolQuery")[1]["release"]) == "giving_back"
    observer: Any = made.given("StepMachine")[0][1]
    assert str(observer.observer) == "watch"


def test_a_query_of_pools_has_its_name_and_undoes_a_start_that_fails(
    made: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.gives["launched()"] = OSError("it is stuck")
    with pytest.raises(OSError, match="it is stuck"):
        pools(made, monkeypatch, name="clicks", trigger={"availableNow": True})
    assert made.given("PoolRecorder.started")[0][1] == "clicks"
    assert made.given("PoolRecorder")[1] == {"texts": False}
    assert made.given("where.leave") == ((), {"failed": False})
    assert made.given("launched")[1] == {"finite": True}
    assert made.did[made.did.index("launched") + 1 :] == [
        "StepMachine.close",
        "hide",
        "where.leave",
    ]
    made.did.clear()
    del made.gives["launched()"]
    pools(made, monkeypatch)
    assert "where.leave" not in made.did
    given = [str(one) for one in made.given("giving_back")[0][2:]]
    assert given == ["hide", "unlock", "StepMachine.close"]
