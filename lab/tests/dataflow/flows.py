"""Small jobs on the dataflow simulator, random plans, and the answers that they must not change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headgate.core.assignment import Assignment
from headgate_lab.sim.dataflow.behaviours import Behaviour, Held, Pass, Windows
from headgate_lab.sim.dataflow.channel import Network
from headgate_lab.sim.dataflow.coordinator import Method, Scaling, Timing
from headgate_lab.sim.dataflow.dataflow import Arrivals, Dataflow, Job, OperatorModel
from headgate_lab.sim.dataflow.elements import Record
from headgate_lab.sim.dataflow.eventlog import EventLog
from headgate_lab.sim.dataflow.methods import coupled
from headgate_lab.sim.dataflow.methods.bounds import StopRestart
from headgate_lab.sim.dataflow.methods.drrs import Drrs
from headgate_lab.sim.dataflow.methods.meces import Meces

GROUPS = 8
OPERATOR = "count"

DRRS = [
    Drrs(groups_min=2),
    Drrs(scheduling=False, groups_min=2),
    Drrs(division=False),
    Drrs(scheduling=False, division=False),
]
COUPLED = [
    coupled.all_at_once(),
    coupled.fluid(),
    coupled.megaphone(),
    coupled.only_scheduling(),
    coupled.only_subscale(),
]
ORDERED = [*DRRS, *COUPLED, StopRestart(0.2, 1e6)]
"""The methods that keep the order of a key's records."""

EXACT = [*ORDERED, Meces(parts=4)]
"""The methods that give the answer without scaling."""


class Running(Pass):
    """Puts out a running count per key, and whether the record came in its order.

    ``(number, count, in order)``; the order is that of one source slot's records of a key.
    """

    def record(self, held: Held, record: Record) -> Sequence[Record]:
        """Count the record and put it out with the count."""
        count, last = held.values.get(record.key, (0, {}))
        in_order = record.number > last.get(record.origin, -1)
        held.values[record.key] = (count + record.count, {**last, record.origin: record.number})
        value = (record.origin, record.number, in_order)
        return (replace(record, value=value),)


class Sums(Pass):
    """Adds up, per key, the counts that `Windows` put out; its state is its answer."""

    def record(self, held: Held, record: Record) -> Sequence[Record]:
        """Put out ``(windows, sum of counts)`` so far."""
        windows, total = held.values.get(record.key, (0, 0))
        if record.value is not None:
            windows, total = windows + 1, total + record.value[1]
            held.values[record.key] = (windows, total)
        return (replace(record, value=(windows, total)),)


def name_of(method: Method) -> str:
    return repr(method) if isinstance(method, Drrs) else method.name


@dataclass(frozen=True)
class Request:
    """Scale to slots by key group at a time."""

    at_s: float
    slot_of: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """A job and what is asked of it."""

    job: Job
    requests: tuple[Request, ...]
    timing: Timing = field(default_factory=Timing)


def arrivals(
    seed: int, records: int, length_s: float, keys: int, slots: int
) -> tuple[Arrivals, ...]:
    draw = np.random.default_rng(seed)
    return tuple(
        Arrivals(np.sort(draw.uniform(0, length_s, records)), draw.integers(0, keys, records))
        for _ in range(slots)
    )


def job(
    *,
    feed: tuple[Arrivals, ...],
    behaviour: Behaviour | None = None,
    slots: int = 2,
    cost_s: float = 0.01,
    network: Network | None = None,
    watermark_s: float = 0.3,
    state_bytes: Sequence[float] = (2000.0,) * GROUPS,
    command_s: tuple[float, ...] = (0.0,),
) -> Job:
    """Sources that are the predecessors, the scaling operator, a sink."""
    return Job(
        (
            OperatorModel("source", len(feed), 0.0005, arrivals=feed),
            OperatorModel(
                OPERATOR,
                slots,
                cost_s,
                behaviour or Windows(1.0, 0.5),
                ("source",),
                len(state_bytes),
                tuple(state_bytes),
            ),
            OperatorModel("sink", 1, parents=(OPERATOR,)),
        ),
        network or Network(0.003, 1e4, 8, 8, 2e4),
        watermark_s=watermark_s,
        command_s=command_s,
    )


def uniform_request(at_s: float, slots: int, groups: int = GROUPS) -> Request:
    return Request(at_s, tuple(g * slots // groups for g in range(groups)))


def random_trial(seed: int, behaviour: Behaviour | None = None) -> Trial:
    """A job whose caches fill, and one to three requests for any assignment at all."""
    draw = random.Random(seed)
    sources = draw.randint(1, 3)
    slots = draw.randint(1, 4)
    length_s = 3.0
    cost_s = 0.01
    # From half of what the slots can do to somewhat more than all.
    records = int(draw.uniform(0.5, 1.2) * slots / cost_s * length_s / sources)
    feed = arrivals(seed, records, length_s, draw.choice([3, 20, 60]), sources)
    network = Network(
        draw.choice([0.001, 0.02]),
        draw.choice([500.0, 1e5]),
        draw.choice([1, 4, 16]),
        draw.choice([1, 4, 16]),
        draw.choice([5e3, 5e4]),
    )
    state_bytes = [draw.choice([0.0, 500.0, 5000.0]) for _ in range(GROUPS)]
    made = job(
        feed=feed,
        behaviour=behaviour,
        slots=slots,
        network=network,
        watermark_s=draw.choice([0.0, 0.1, 0.5]),
        state_bytes=state_bytes,
        command_s=tuple(draw.choice([0.0, 0.05]) for _ in range(3)),
    )
    requests = []
    for _ in range(draw.randint(1, 3)):
        most = draw.randint(1, 6)
        slot_of = tuple(draw.randrange(most) for _ in range(GROUPS))
        requests.append(Request(draw.uniform(0.3, 2.5), slot_of))
    return Trial(
        made, tuple(sorted(requests, key=lambda r: r.at_s)), Timing(draw.choice([0.0, 0.1]))
    )


def run(
    trial: Trial,
    method: Method | None,
    *,
    log: EventLog | None = None,
    checkpoint_s: float | None = None,
) -> Dataflow:
    """Run a trial to its end."""
    flow = Dataflow(trial.job, {OPERATOR: method.parts} if method else {}, log)
    if method is not None:
        scaling = Scaling(flow, OPERATOR, method, trial.timing)
        for number, request in enumerate(trial.requests, 1):
            target = Assignment(request.slot_of, max(request.slot_of) + 1, number)
            flow.clock.after(request.at_s, scaling.request, target)
    if checkpoint_s is not None:
        flow.clock.after(checkpoint_s, flow.checkpoint, 1)
    flow.run()
    if method is not None:
        assert not scaling.active, f"{scaling.waiting} {scaling.running} {scaling.settling}"
    return flow


def answer(flow: Dataflow) -> Counter[tuple[int, object]]:
    """Return what came out, by key and value."""
    return Counter((record.key, record.value) for _, record in flow.outputs())


def out_of_order(flow: Dataflow) -> list[object]:
    """Return the records that `Running` saw after a later one of their source and key."""
    return [record.value for _, record in flow.outputs() if not record.value[2]]


def placed(flow: Dataflow) -> dict[int, list[int]]:
    """Return the slots at which each unit is."""
    found: dict[int, list[int]] = {}
    for slot in flow.slots[OPERATOR]:
        for unit in slot.store:
            found.setdefault(unit, []).append(slot.index)
    return found


def with_running(trial: Trial) -> Trial:
    """Return a trial whose operator counts records and checks their order."""
    operators = tuple(
        replace(model, behaviour=Running()) if model.name == OPERATOR else model
        for model in trial.job.operators
    )
    return replace(trial, job=replace(trial.job, operators=operators))
