"""Small jobs, scripted policies, and a second simulator that is slow and plain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.control.decision import NOTHING, Change, ChangeKind, Decision
from headgate.control.observation import Observation
from headgate.core.assignment import Assignment
from headgate.loop.settings import OperatorSettings
from headgate.whatif.continuous import ContinuousEngine, ContinuousOperator
from headgate.whatif.decisions import finite
from headgate.whatif.model import OperatorModel, ServiceTime, TreatmentCost
from headgate.whatif.result import RunResult
from headgate.whatif.streams import Inflow
from headgate.workloads.arrivals import ArrivalFeed, ArrivalStream, Chunk

NAME = "count"
SETTINGS = {NAME: OperatorSettings(1.0, 1.0, 16)}


@dataclass
class Given(ArrivalStream):
    """Records at given times."""

    times_s: npt.ArrayLike
    groups: npt.ArrayLike
    of: int = 8

    @property
    def key_groups(self) -> int:
        return self.of

    def chunks(self, generator: np.random.Generator) -> Iterator[Chunk]:
        yield np.array(self.times_s, dtype=np.float64), np.array(self.groups, dtype=np.int64)


@dataclass
class Scripted:
    """Wants given changes, each at the first cycle from its time on."""

    script: list[tuple[float, Change]] = field(default_factory=list)
    name: str = "scripted"

    def decide(self, observation: Observation) -> Decision:
        if self.script and observation.time_s >= self.script[0][0] - 1e-9:
            return Decision({NAME: self.script.pop(0)[1]}, "it was in the script", "script")
        return NOTHING

    def applied(self, operator: str, change: Change, took_s: float) -> None: ...

    def slot_failed(self, operator: str, slot_id: int) -> None: ...


def change_to(
    before: Assignment, slot_of: Sequence[int], survivors: Sequence[int | None]
) -> Change:
    after = Assignment(tuple(slot_of), len(survivors), before.epoch + 1)
    return Change(ChangeKind.RESCALE, after, tuple(survivors))


def make_engine(
    model: OperatorModel,
    arrivals: ArrivalStream,
    *,
    until_s: float,
    delta_s: float = 0.1,
    seed: int = 0,
) -> ContinuousEngine:
    generators = [np.random.default_rng([seed, purpose]) for purpose in range(3)]
    operator = ContinuousOperator(
        NAME,
        model,
        Inflow(model, ArrivalFeed(arrivals, generators[0]), generators[1]),
        generators[2],
        ticks=round(until_s / delta_s),
        delta_s=delta_s,
    )
    return ContinuousEngine({NAME: operator}, delta_s)


def run_engine(
    engine: ContinuousEngine, until_s: float, script: Mapping[int, Change] | None = None
) -> ContinuousOperator:
    """Advance to `until_s`; `script` says what to apply after which tick."""
    operator = engine.operators[NAME]
    ticks = round(until_s / operator.measures.delta_s)
    for tick in range(1, ticks + 1):
        engine.advance()
        if script and tick in script:
            engine.apply(NAME, script[tick])
    return operator


@dataclass(frozen=True)
class Done:
    """A record that the plain simulator completed."""

    group: int
    arrival_s: float
    done_s: float
    slot: int


def simulate_plainly(
    records: Sequence[tuple[float, int, float]],
    slot_of: Sequence[int],
    speeds: Sequence[float],
    move: tuple[float, Mapping[int, int], TreatmentCost] | None = None,
) -> list[Done]:
    """Serve records one by one; at most one change, `move`: when, which groups go where, its cost.

    Slots keep their numbers; a destination that is not in `speeds` is new and of speed 1. Written
    with one queue per key group and no notion of ticks, to share nothing with the real one.
    """
    slot_of, speeds = list(slot_of), list(speeds)
    waiting: dict[int, list[tuple[float, float]]] = {g: [] for g in range(len(slot_of))}
    for arrival_s, group, demand_s in records:
        waiting[group].append((arrival_s, demand_s))
    free_s = [0.0] * len(speeds)
    done: list[Done] = []

    def serve(slot: int, *, before_s: float, arrived_by_s: float = np.inf) -> None:
        """Begin records of `slot` as long as they begin before `before_s`."""
        mine = [g for g in waiting if slot_of[g] == slot]
        while heads := [(waiting[g][0][0], g) for g in mine if waiting[g]]:
            arrival_s, group = min(heads)
            begin_s = max(arrival_s, free_s[slot])
            if begin_s >= before_s or arrival_s > arrived_by_s:
                return
            _, demand_s = waiting[group].pop(0)
            free_s[slot] = begin_s + demand_s / speeds[slot]
            done.append(Done(group, arrival_s, free_s[slot], slot))

    if move is not None:
        at_s, target, cost = move
        involved = {slot_of[g] for g in target} | {s for s in target.values() if s < len(speeds)}
        for slot in involved:
            serve(slot, before_s=at_s)
            if cost.barrier_records:
                serve(slot, before_s=np.inf, arrived_by_s=at_s)
        still_s = max([at_s, *(free_s[slot] for slot in involved)])
        resume_s = still_s + cost.sync_s + cost.delay_s + cost.per_group_s * len(target)
        for slot in range(len(speeds)):
            if slot not in involved:
                serve(slot, before_s=np.inf)
        for group, slot in target.items():
            slot_of[group] = slot
        while len(speeds) <= max(slot_of):
            speeds.append(1.0)
            free_s.append(0.0)
            involved.add(len(speeds) - 1)
        for slot in involved:
            free_s[slot] = max(free_s[slot], resume_s)
    for slot in range(len(speeds)):
        serve(slot, before_s=np.inf)
    return done


def fixed(mean_s: float = 0.01) -> ServiceTime:
    return ServiceTime(mean_s)


def summary(result: RunResult, operator: str) -> dict[str, Any]:
    """All figures of an operator: what JSON has no word for is None."""
    measures = result.operators[operator]
    success = result.success(operator)
    took_s = [applied.took_s for applied in measures.applied]
    slots = float(measures.slots.sum())
    p50_s, p99_s = measures.total_quantiles_s[1:].tolist()
    return {
        "settings": asdict(result.settings[operator]),
        "arrived": int(measures.arrived.sum()),
        "completed": int(measures.completed.sum()),
        "success": finite(success.mean),
        "success_worst": finite(success.worst),
        "records_in_time": finite(
            result.records_in_time(operator, result.settings[operator].bound_s)
        ),
        "success_by_group": [finite(rate) for rate in success.rate.tolist()],
        "windows": success.windows,
        "windows_left_out": success.empty.tolist(),
        "windows_stalled": success.stalled.tolist(),
        "slots_mean": measures.slots_mean,
        "other_slots_share": float(measures.other_slots.sum()) / slots,
        "latency_mean_s": finite(measures.latency_mean_s),
        "latency_p50_s": finite(p50_s),
        "latency_p99_s": finite(p99_s),
        "changes": result.kinds(operator),
        "switching_events": len(took_s),
        "switching_s_mean": sum(took_s) / len(took_s) if took_s else 0.0,
        "switching_share": measures.switching_share,
        "stopped_share": measures.stopped_share,
    }
