"""Tests in what order a plain checkpoint is adopted, and what its state's step is told; without Spark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from noted_calls import Calls

from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.api.sparkwriter import SparkWriter
from headgate.spark.cluster.location import Place
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.plain import adopting, log
from headgate.spark.step.begun import Begun
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.slot import SlotTask

NEWEST = log.LogEntry(7, {"batchWatermarkMs": 5000, "batchTimestampMs": 6000}, ["{1}", "-"], 5500)
CONFIG = JobConfig("q", key_groups=4, slots=2, snapshot_every=10)
BEGUN = Begun(0, 7, 5_000_000, ["{1}", ""], 8000.0, 8000.0, 6000, False, None)
PAIRS = [
    (SimpleNamespace(id=f"op-{n}"), SimpleNamespace(operatorName=f"of {n}", operatorId=str(n)))
    for n in (1, 0)
]


class Adoption:
    """A writer, and the calls of an adoption."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, below: Path) -> None:
        self.calls = calls = Calls(monkeypatch)
        self.plain, self.ours = below / "plain", below / "ours"
        self.where = Place(self.ours)
        self.records: dict[str, Any] = {}
        session = SimpleNamespace(conf=calls.several(set=None), name="a session of its own")
        self.session = session
        self.spark = SimpleNamespace(name="the session")
        df: Any = SimpleNamespace(sparkSession=self.spark)
        self.writer = SparkWriter(df)
        self.writer.settings = replace(self.writer.settings, options={"headgate.ordered": "true"})
        calls.put(
            adopting,
            planned="query", resolved=self.plain, state_metadata="metadata", paired=PAIRS,
            clone_of=session, identity="who", analysed="plan", source_counts=range(1, 3),
            check_name=None, check_order=None, opened=(SimpleNamespace(location="at"), "uuid", None),
            _state_step={"op-1": 6, "op-0": 5},
        )  # fmt: skip
        calls.put(
            log,
            refuse_store=None, check_types=None, check_sources=None, refuse_within=None, begin=None,
            copy_beside=None, commit=None, newest=NEWEST,
        )  # fmt: skip
        calls.within(log, "fresh")
        calls.within(adopting, "state_read")
        monkeypatch.setattr(adopting, "PlainState", lambda *given: given)
        monkeypatch.setattr(adopting, "records", lambda state: state)
        monkeypatch.setattr(adopting, "configured", SimpleNamespace(
            cores_of=lambda spark: 3, job_config=lambda settings, cores: CONFIG,
            checkpoint_place=lambda spark, settings: self.where,
        ))  # fmt: skip
        monkeypatch.setattr(Place, "leave", calls.one("leave"))


@pytest.fixture
def adoption(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Adoption:
    return Adoption(monkeypatch, tmp_path)


def test_a_checkpoint_is_looked_at_before_anything_is_written(adoption: Adoption) -> None:
    told = adopting.adopt(adoption.writer, "s")
    assert told == {
        "checkpoint": "at", "batch": 7, "watermark_ms": 5000,
        "operators": [{"id": "op-1", "entries": 6}, {"id": "op-0", "entries": 5}],
    }  # fmt: skip
    df, spark, plain, ours = adoption.writer.df, adoption.spark, adoption.plain, adoption.ours
    did = adoption.calls.did
    [opened] = [one for one in did if one[0] == "opened"]
    [step] = [one for one in did if one[0] == "_state_step"]
    assert did == [
        ("planned", df, adoption.writer.settings, {"arrivals": False}), ("refuse_store", "s"),
        ("resolved", spark, "s"), ("newest", plain), ("check_types", plain), ("analysed", df),
        ("source_counts", "plan"), ("check_sources", plain, NEWEST, range(1, 3)),
        ("state_metadata", spark, plain), ("paired", "query", "metadata"),
        *(("check_name", operator, row.operatorName) for operator, row in PAIRS),
        ("check_order", spark, df, "query"), ("refuse_within", ours, plain), ("fresh", ours),
        ("state_read", plain), ("clone_of", spark), ("set", "spark.sql.adaptive.enabled", "false"),
        ("identity", spark, "query", CONFIG), opened, ("begin", ours, NEWEST, {"ticks": True}),
        ("copy_beside", plain, ours), ("commit", ours, NEWEST), step, "state_read is left",
        "fresh is left", ("leave", adoption.where, {"failed": False}),
    ]  # fmt: skip
    assert opened[1:4] == (spark, adoption.where, "who")
    _, *given = step
    records = given.pop(3)
    assert given == [spark, "query", CONFIG, NEWEST, SimpleNamespace(location="at"), "uuid"]
    assert list(records) == ["op-1", "op-0"]
    session, operator, load, groups, ordered, watermark_us = records["op-1"]
    assert (session, operator, groups) == (adoption.session, PAIRS[0][0], 4)
    assert (ordered, watermark_us) == (True, 5_000_000)
    assert isinstance(load, partial)
    assert load.args == (adoption.session, plain, 1, 7)


@pytest.mark.parametrize("taken", [{"url": "s3://b/k"}, {"temporary": True}])
def test_a_checkpoint_is_adopted_into_a_directory_alone(
    adoption: Adoption, taken: dict[str, Any]
) -> None:
    adoption.where = replace(adoption.where, **taken)
    with pytest.raises(
        CheckpointError, match="is adopted into a directory; give the writer one to write to"
    ):
        adopting.adopt(adoption.writer, "s")
    assert adoption.calls.names()[-2:] == ["check_order", "leave"], "nothing was opened"


def test_adoption_takes_a_writer_and_a_place(adoption: Adoption) -> None:
    wrong: Any = 3
    with pytest.raises(ConfigError, match=r"hg\.adopt: writer=3"):
        adopting.adopt(wrong, "s")
    with pytest.raises(ConfigError, match=r"hg\.adopt: checkpoint=3"):
        adopting.adopt(adoption.writer, wrong)
    assert adoption.calls.did == []


# --- The step -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Manifested:
    """As much of a manifest as is changed."""

    engine: dict[str, Any]


def operator(name: str, behind_us: int = 0) -> Any:
    return SimpleNamespace(id=name, behind_us=behind_us, spec=f"spec of {name}", shared=False,
                           raw_schema=f"schema of {name}")  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_state_is_served_as_the_records_of_step_0(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    calls, target, spark = Calls(monkeypatch), SimpleNamespace(), SimpleNamespace()
    run = calls.several(end=None, close=None)
    target.commit = calls.one("commit")
    a, b = operator("a"), operator("b")

    def served(*given: Any) -> list[Any]:
        calls.did.append(("served", *given))
        if fails:
            raise OSError("it is full")
        name, state = given[1].id, given[3]
        state.rows = [3, 4, 0, 0]
        return [SimpleNamespace(operator=name, arrived=n) for n in (2, 5)]

    monkeypatch.setattr(adopting, "_served", served)
    calls.put(adopting, _facts="facts", next_manifest=Manifested({"sink_batch": -1, "of": "it"}))
    calls.put(adopting, open_run=run, arena_root="root", _check_all_kept=None)
    monkeypatch.setattr(adopting, "time", SimpleNamespace(time=lambda: 8.0))
    query = SimpleNamespace(operators=[a, b])
    records = {"a": ("rows", "of a"), "b": ("rows", "of b")}
    given: Any = (spark, query, CONFIG, records, NEWEST, target, "uuid")
    if fails:
        with pytest.raises(OSError, match="it is full"):
            adopting._state_step(*given)
        assert calls.names()[-2:] == ["end", "close"]
        assert "commit" not in calls.names()
        return
    assert adopting._state_step(*given) == {"a": 7, "b": 7}
    [made] = [one for one in calls.did if one[0] == "next_manifest"]
    _, begun, uuid, late, states, reports = made
    assert (begun, uuid, late) == (BEGUN, "uuid", 0)
    fresh = OperatorState.fresh(2, 4)
    assert states == dict.fromkeys("ab", replace(fresh, rows=[3, 4, 0, 0]))
    assert [report.operator for report in reports] == ["a", "a", "b", "b"]
    assert calls.did == [
        ("arena_root",), ("open_run", "root"),
        ("_facts", spark, a, states["a"], CONFIG, BEGUN, target, run),
        ("served", spark, a, records["a"], states["a"], "facts", target),
        ("_facts", spark, b, states["b"], CONFIG, BEGUN, target, run),
        ("served", spark, b, records["b"], states["b"], "facts", target),
        ("end",), ("close",), made,
        ("_check_all_kept", "a", reports[:2], 7), ("_check_all_kept", "b", reports[2:], 7),
        ("commit", Manifested({"sink_batch": 7, "of": "it", "adopted": 7})),
    ]  # fmt: skip


@pytest.mark.parametrize("placed", [False, True])
def test_slots_of_the_step_store_no_output(monkeypatch: pytest.MonkeyPatch, placed: bool) -> None:
    calls = Calls(monkeypatch)
    spark = SimpleNamespace(sparkContext=calls.several(setLocalProperty=None))
    channel = SimpleNamespace(sender="sender", drain=calls.one("drain", "reports"))
    monkeypatch.setattr(adopting, "ReportChannel", lambda context: channel)
    monkeypatch.setattr(adopting, "exchange", calls.several(to_slots="slots"))
    monkeypatch.setattr(
        adopting, "ArrowMap", lambda *made: SimpleNamespace(apply=lambda rows: (*made, rows))
    )
    calls.put(adopting, run_through=None, consistent="chosen")
    a, state = operator("a"), OperatorState.fresh(2, 4)
    spec: Any = "placed" if placed else a.spec
    rows: Any = "rows"
    facts: Any = SimpleNamespace(to_json=lambda: "{}")
    target: Any = SimpleNamespace(options={"key": "k"})
    session: Any = spark
    answer: Any = adopting._served(session, a, (rows, spec), state, facts, target)
    assert answer == "chosen"
    schema = adopting._NOTHING if placed else "schema of a"
    task = SlotTask("a", spec, "sender", into_sink=True, store={"key": "k"})
    assert adopting._NOTHING.simpleString() == "struct<nothing:int>"
    assert calls.did == [
        ("setLocalProperty", SlotFacts.PROPERTY + "a", "{}"),
        ("to_slots", "rows", state.assignment, {"shared": False}),
        ("run_through", (task, schema, "slots")), ("drain", 0, 1),
        ("consistent", "reports", {"a": 2}, ["a"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("master", "behind_us", "root", "watermark_us"),
    [("local[2]", 1_000_000, "/runs", 4_000_000), ("spark://h:7077", 6_000_000, None, 0)],
)
def test_slots_of_the_step_serve_all_without_a_limit(
    master: str, behind_us: int, root: str | None, watermark_us: int
) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    run: Any = SimpleNamespace(path=Path("/runs/one"), run_id="one")
    target: Any = SimpleNamespace(location="at")
    state = OperatorState.fresh(2, 4)
    a = operator("a", behind_us)
    assert adopting._facts(spark, a, state, CONFIG, BEGUN, target, run) == SlotFacts(
        step=0, attempt=1, arena_root=root, run_id="one", checkpoint="at", watermark_us=watermark_us,
        slot_of=(0, 0, 1, 1), held=(), tokens=state.tokens, steps=[-1] * 4, emitted_us=[0] * 4,
        due_us=state.due_us, snapshots=state.due_for_snapshot(0, 10), backlog={}, waiting_crc32={},
        quotas=None, next_slots=0, keep_late=False, delta_ms=0.0, bound_ms=0.0, timestamp_ms=6000,
        time_limit_s=0.0, arrived_ms=8000.0, faults=(),
    )  # fmt: skip
