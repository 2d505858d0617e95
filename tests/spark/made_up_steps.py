"""Steps of two operators, a join and counts behind it, whose session, chains and ports are made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headgate.spark.job.changes import Changes
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.step.begun import Begun
from headgate.spark.step.stateful import StatefulWork

GROUPS = 4
CONFIG = JobConfig(
    "clicks",
    GROUPS,
    budget_s=2.0,
    attempts=3,
    keep_late=True,
    delta_ms=50.0,
    processor_limit_s=7.0,
    faults=[{"kind": "any"}, {"operator": "join"}, {"operator": "counts"}],
)


def begun(number: int = 8, **facts: Any) -> Begun:
    told = {"spark_batch": 6, "watermark_us": 1000, "sources": ["9"], "read_ms": 40.0}
    told |= {"started_ms": 5000.0, "timestamp_ms": 41, "drain": False, "latest": None}
    return Begun(number=number, **told | facts)  # type: ignore[arg-type]


def operator(name: str, **facts: Any) -> Any:
    told = {"id": name, "behind_us": 0, "shared": False, "parents": (), "feeds": ()}
    return SimpleNamespace(**told | {"spec": SimpleNamespace(by_clock=False)} | facts)


class Spark:
    """A session's context, as far as steps use it: local properties, and where it runs."""

    def __init__(self, master: str = "local[2]") -> None:
        self.properties: dict[str, str] = {}
        self.sparkContext = SimpleNamespace(
            master=master,
            setLocalProperty=self.properties.__setitem__,
            statusTracker=lambda: SimpleNamespace(getStageInfo=lambda _: None),
        )


class Steps:
    """The work of a join and of counts behind it, whose chains, slots and ports are made up."""

    def __init__(self, kind: type[StatefulWork] = StatefulWork, **config: Any) -> None:
        self.said: list[Any] = []
        self.work: Any = object.__new__(kind)
        join, counts = operator("join"), operator("counts", behind_us=300, parents=("join",))
        self.states = {name: OperatorState.fresh(2, GROUPS) for name in ("join", "counts")}
        work: Any = self.work
        work.spark = Spark()
        work.states = self.states
        work.changes = Changes(self.states, 8)
        work.query = SimpleNamespace(
            operators=[join, counts], chains=[[join], [counts]], sources=[[join]], last=[counts]
        )
        work.job = SimpleNamespace(
            config=replace(CONFIG, **config),
            latest=None,
            slots_in_use=lambda name: {"join": 5, "counts": 3}[name],
        )
        work.run = SimpleNamespace(path=Path("/arenas/run-1"), run_id="run-1", spill=None)
        work.checkpoint = SimpleNamespace(location="/checkpoint")
        work.migrations = SimpleNamespace(
            running=False,
            governs=lambda _: False,
            begin=lambda step: {},
            committed=lambda step: self.said.append(f"committed {step}"),
        )
        work.recorder = SimpleNamespace(
            begun=lambda _: None,
            batch=lambda outcome, *_: self.said.append(f"out {outcome.emitted}"),
            retry=lambda step, attempt, _: self.said.append(f"retry {step}, {attempt}"),
            assignment=lambda *told: self.said.append(("assignment", *told)),
            write=self.said.append,
            stateless=lambda *told: self.said.append(("stateless", *told)),
            progress=SimpleNamespace(observe=lambda *told: self.said.append(("observed", *told))),
        )
        work._observer = SimpleNamespace(
            assigned=lambda name, request: self.said.append(("told", name, request)),
            quiet=lambda read_ms: self.said.append(f"quiet {read_ms}"),
            lost=lambda name, slot: self.said.append(f"lost {name} {slot}"),
            committed=lambda *told: self.said.append(("committed", *told[1:])),
            bound_ms={"join": 100.0, "counts": 200.0}.get,
            asks_origins=lambda: True,
            state=lambda: None,
        )
        work._executors = SimpleNamespace(
            cores=2, settled=lambda slots, hosts: self.said.append(("settled", slots, hosts()))
        )
        self.chains = {name: Chain(op) for name, op in (("join", join), ("counts", counts))}
        work._chains = list(self.chains.values())
        work._tasks = {
            "join": SimpleNamespace(next_operator="counts"),
            "counts": SimpleNamespace(next_operator=None),
        }
        work._results = SimpleNamespace(observed=lambda: "metrics", straight=lambda rows: rows)
        work._losses = SimpleNamespace(in_step=lambda _: [], in_attempt=lambda *_: [])
        work._placements = {
            name: SimpleNamespace(active=False, hosts_of=lambda n: [f"host{i}" for i in range(n)])
            for name in self.states
        }
        work._quiet_batches, work._served_ms, work._agreed_on = 0, 3000.0, []
        work._quotas = dict.fromkeys(self.states)
        work._into_sink = False


class Chain:
    """The job of one operator; keeps what it was asked."""

    def __init__(self, op: Any) -> None:
        self.chain = [op]
        self.asked: list[tuple[Any, bool]] = []
        self.learned: list[Any] = []
        self.forgotten = self.counted = 0
        self.into_slots: list[str] = []
        self.preaggregation = SimpleNamespace(learn=lambda *told: self.learned.append(told))

    def forget(self) -> None:
        self.forgotten += 1

    def rows(self, frame: Any, *, first: bool = False) -> Any:
        self.asked.append((frame, first))
        return SimpleNamespace(count=self._count)

    def _count(self) -> None:
        self.counted += 1


def report(name: str, slot: int, **facts: Any) -> Any:
    told = {"operator": name, "slot": slot, "token": f"{name}{slot}", "consumed": ()}
    return SimpleNamespace(**told | {"holds_us": 700, "stage": 1, "output_rows": 2} | facts)
