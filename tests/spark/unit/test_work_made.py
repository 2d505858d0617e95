"""Tests what the work of stateful operators is made of; without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from noted_calls import Calls

from headgate.spark.job.job import JobConfig
from headgate.spark.job.ports import Ports
from headgate.spark.step import stateful
from headgate.spark.step.output import Outputs
from headgate.spark.step.stateful import StatefulWork

CONFIG = JobConfig("q", key_groups=16, preaggregate="on", migration="drrs")


def operator(name: str, **facts: Any) -> Any:
    told = {"id": name, "spec": f"spec of {name}", "feeds": (), "shared": False, "columns": {}}
    return SimpleNamespace(**told | facts)


class Job:
    """A job of three operators in two chains, of which the second reads the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **query: Any) -> None:
        self.calls = calls = Calls(monkeypatch)
        a, b = operator("a", columns={"x": "long"}), operator("b", shared=True)
        c = operator("c", feeds=("b",))
        self.operators = [a, b, c]
        told = {
            "operators": self.operators,
            "chains": [[a, b], [c]],
            "sources": [[a]],
            "plan": "plan",
        }
        self.query = SimpleNamespace(**told | query)
        self.spark = SimpleNamespace(sparkContext="context")
        self.changes = SimpleNamespace(name="changes")
        self.ports = Ports()
        self.job = SimpleNamespace(
            query=self.query, states={"a": "A", "b": "B", "c": "C"}, changes=self.changes,
            recorder=SimpleNamespace(write="write"), config=CONFIG, latest=None,
        )  # fmt: skip
        self.sink = SimpleNamespace(inside=True)
        self.checkpoint = SimpleNamespace(path=Path("p"), options={"k": "v"})
        self.unfolded: Any = None
        monkeypatch.setattr(stateful, "time", SimpleNamespace(time=lambda: 8.0))
        monkeypatch.setattr(
            stateful, "ReportChannel", lambda context: SimpleNamespace(sender=f"to {context}")
        )
        monkeypatch.setattr(stateful, "SlotTask", lambda *told, **named: (*told, named))
        monkeypatch.setattr(stateful, "ArrowMap", lambda *told: told)
        monkeypatch.setattr(
            StatefulWork, "_emitted_schema", lambda work, op, task: f"{op.id} emits", raising=False
        )
        monkeypatch.setattr(stateful, "unfolding", lambda *told: self.unfolded)
        monkeypatch.setattr(
            stateful, "exchange", calls.several(streaming_input="a stream")
        )  # fmt: skip
        calls.put(
            stateful,
            Losses="losses", living_executors="living", stages_beside="beside", row_by_row=True,
            Intake="intake", Results="results", Placement="placement", ChainJob="chain",
            Preaggregation="before", CopyThread="copies", Migrations=calls.several(restore=None),
            HostTasks="host tasks",
        )  # fmt: skip

    def work(self) -> Any:
        given: Any = (
            self.spark, "results", self.job, self.checkpoint, "uuid", "run", self.sink, self.ports,
        )  # fmt: skip
        return StatefulWork(*given)


def test_work_has_a_chain_s_job_for_each_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Job(monkeypatch)
    work, did = made.work(), made.calls.did
    slots = {name: ((name, f"spec of {name}", "to context", after, {"into_sink": False,
                     "store": {"k": "v"}}), f"{name} emits")
             for name, after in (("a", "b"), ("b", None), ("c", None))}  # fmt: skip
    placements = dict.fromkeys("abc", "placement")
    a, b, c = made.operators
    alone = {"alone": True}
    places = [("Placement", made.spark)] * 3
    assert did == [
        ("living_executors", made.spark), ("stages_beside", "context"), ("Losses", "living", "beside"),
        ("streaming_input", made.spark, made.query, 16),
        ("Intake", "a stream", Path("p"), "results", {"ticks": True, "stateful": True}),
        ("Results", "results", made.query), *places, ("Preaggregation", a, "on", None),
        ("ChainJob", made.spark, [a, b], slots, made.job.states, placements, "before", 16, alone),
        ("Preaggregation", c, "off", None),
        ("ChainJob", made.spark, [c], slots, made.job.states, placements, "before", 16, alone),
        ("CopyThread", work._host_tasks),
        ("Migrations", {"a": "A", "c": "C"}, made.changes, placements, "copies", "drrs", "write"),
    ]  # fmt: skip
    kept = vars(work)
    assert {name: kept[name] for name in ("spark", "job", "query", "checkpoint", "uuid", "run")} == {
        "spark": made.spark, "job": made.job, "query": made.query, "checkpoint": made.checkpoint,
        "uuid": "uuid", "run": "run",
    }  # fmt: skip
    assert (work.recorder, work.states, work.changes) == (
        made.job.recorder, made.job.states, made.changes,
    )  # fmt: skip
    assert (work._observer, work._executors) == (made.ports.observer, made.ports.executors)
    assert (work._losses, work._quotas, work._agreed_on) == ("losses", {}, [])
    assert (work._served_ms, work._quiet_batches, work._into_sink) == (8000.0, 0, False)
    assert (work.intake, work._results, work.columns) == ("intake", "results", {"a": {"x": "long"}})
    assert (work._chains, work._placements) == (["chain", "chain"], placements)
    assert (work._tasks, work._slots) == ({name: slot[0] for name, slot in slots.items()}, slots)
    assert work._copy_thread == "copies"
    assert work.config is CONFIG


def test_rows_that_are_unfolded_come_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Job(monkeypatch, sources=[["a"], ["b"]])
    made.unfolded = made.calls.several(stream="an unfolded stream")
    made.work()
    did = made.calls.did
    assert "streaming_input" not in made.calls.names()
    assert ("stream",) in did
    [intake] = [one for one in did if one[0] == "Intake"]
    assert intake[1] == "an unfolded stream"
    assert ("Preaggregation", made.operators[0], "on", made.unfolded) in did
    alone = [one[-1] for one in did if one[0] == "ChainJob"]
    assert alone == [{"alone": False}, {"alone": True}]


@pytest.mark.parametrize(
    ("inside", "chains", "by_row", "batches", "into"),
    [
        (True, 1, True, True, True), (False, 1, True, True, False), (True, 2, True, True, False),
        (True, 1, False, True, False), (True, 1, True, False, False),
    ],
)  # fmt: skip
def test_slots_write_into_the_sink_where_their_rows_are_its_rows(
    monkeypatch: pytest.MonkeyPatch,
    inside: bool,
    chains: int,
    by_row: bool,
    batches: bool,
    into: bool,
) -> None:
    made = Job(monkeypatch)
    made.query.chains = made.query.chains[:chains]
    made.query.operators = [one for chain in made.query.chains for one in chain]
    made.sink.inside = inside
    made.calls.put(stateful, row_by_row=by_row)
    monkeypatch.setattr(StatefulWork, "has_batches", batches)
    work = made.work()
    assert work._into_sink is into
    assert {task[-1]["into_sink"] for task in work._tasks.values()} == {into}


def test_a_query_without_operators_has_no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Job(monkeypatch, operators=[], chains=[])
    work = made.work()
    [intake] = [one for one in made.calls.did if one[0] == "Intake"]
    assert intake[-1] == {"ticks": False, "stateful": False}
    assert not work.has_steps
    work.rehearse()
    assert work.columns == work._placements == {}


def test_migrations_go_on_that_the_newest_manifest_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Job(monkeypatch)
    told = {"a": {"migration": {"to": 3}}, "b": {"migration": None}, "c": {}}
    made.job.latest = SimpleNamespace(engine={"operators": told})
    made.work()
    assert made.calls.did[-1] == ("restore", "a", {"to": 3})
    assert made.calls.names().count("restore") == 1


def test_key_groups_are_copied_by_tasks_on_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Job(monkeypatch)
    monkeypatch.setattr(StatefulWork, "_places", lambda work: "places", raising=False)
    work = made.work()
    assert work._host_tasks() == "host tasks"
    specs = {name: f"spec of {name}" for name in "abc"}
    assert made.calls.did[-1] == ("HostTasks", made.spark, specs, "places", "q", {"k": "v"})


def test_an_operator_s_output_is_a_leaf_of_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Job(monkeypatch)
    work = made.work()
    made.calls.put(stateful, leaf="a leaf", internal_rows="rows")
    frame: Any = SimpleNamespace(sparkSession="of the batch")
    placeholder = SimpleNamespace(output=lambda: "its columns")
    assert work._leaf_of(operator("a", placeholder=placeholder), frame) == "a leaf"
    assert made.calls.did[-2:] == [
        ("internal_rows", frame), ("leaf", "of the batch", "its columns", "rows"),
    ]  # fmt: skip


def test_a_result_is_that_of_stored_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Job(monkeypatch)
    made.calls.put(stateful, Results=made.calls.several(stored="a frame"))
    work, outputs = made.work(), Outputs()
    assert work.result(outputs) == "a frame"
    assert made.calls.did[-1] == ("stored", outputs, made.checkpoint)
