"""Drawn runs, by what an engine measures of them: their costs and their replays as recorded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from headgate.core.errors import HeadgateError
from headgate.journal.parts import GroupRecords, Latency, SloState, SlotStats
from headgate.journal.schema import Batch, Start
from headgate.whatif.calibration import Costs, calibrated, records_of
from headgate.whatif.recording import Recorded as RecordedRun
from headgate.whatif.replay import replayed

pytestmark = pytest.mark.usefixtures("one_process")

Recorded = Callable[[str, Iterable[str]], None]
GROUPS = 6


def shown(value: Any) -> str:
    """Return a value as text, numbers to five digits: least squares have their own last ones."""
    if isinstance(value, float):
        return f"{round(value, 7) + 0.0:.5g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple | np.ndarray):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value)


def state(success: float) -> SloState:
    return SloState(
        "steady", False, success, success / 2, 0, "counts", 9, 0, 0.99, 1e3, 150.0, 0.5, 1
    )


def run(
    seed: int, count: int = 90, slots: Callable[[int], int] = lambda step: 1 + step % 4,
    stats: str = "useful", epochs: int = 1, **settings: Any,
) -> RecordedRun:  # fmt: skip
    """Return a run whose batches take 0.2 s, 10 ms a slot and 1 ms a record; one in 15 pauses."""
    dice, batches, end_ms = random.Random(seed), [], 1_000_000.0
    for step in range(count):
        used = slots(step)
        records = [dice.randint(0, 40) * (step % 20 != 7) for _ in range(GROUPS)]
        served = sum(records)
        shares = [sum(records[slot::used]) for slot in range(used)]
        tasks_ms = [10.0 + share * dice.uniform(0.8, 1.3) * (1.0 + (step > 60)) for share in shares]
        slots_ms = max(tasks_ms) + 3.0 * used + 0.05 * served + 300.0 * (step % 15 == 14)
        slots_ms *= epochs
        between_ms = 80.0 + 2_000.0 * (step % 30 == 22) - 5.0 * (step % 9 == 4)
        duration_ms = slots_ms + 90.0 * (1.0 + 2.0 * (step < 5))
        end_ms += between_ms + duration_ms
        done = [
            SlotStats(
                slot, 2, share * epochs, 0, task_ms * epochs,
                computing_ms=0.8 * task_ms * epochs if stats != "useful" else None,
                waited_ms=0.1 * task_ms * epochs if stats == "waited" and slot else None,
            )
            for slot, (share, task_ms) in enumerate(zip(shares, tasks_ms, strict=True))
        ]  # fmt: skip
        mean_ms = 200.0 + slots_ms / 2
        latency = (
            None if step % 20 == 7 else Latency(mean_ms, mean_ms, mean_ms, mean_ms, 2 * mean_ms)
        )
        batches.append(
            Batch(
                step=step, spark_batch=step, epoch=0, slots=used, duration_ms=duration_ms,
                phases_ms={"slots": slots_ms}, arrived=served * epochs, served=served * epochs,
                emitted=0, late=0, backlog=50 * (step % 25 == 3), backlog_bytes=0,
                latency_ms=latency, at_ms=round(end_ms), epochs=epochs if epochs > 1 else 0,
                arrivals=[
                    GroupRecords("counts", [*range(GROUPS)], [n * epochs for n in records])
                ] if served else [],
                slot_stats=tuple(done) if stats != "none" else (),
                slo=state(0.9 + step / 1000),
            )
        )  # fmt: skip
    parameters = {
        "slo": ["mean < 1 s over 1 s"], "policy": "static", "slots_max": 5, "cores": 2, **settings,
    }  # fmt: skip
    start = Start(job="j", name="q", key_groups=GROUPS, slots=1, parameters=parameters, at_ms=1)
    return RecordedRun(start, tuple(batches), {"scale-out": 2})


RUNS: dict[str, Callable[[], RecordedRun]] = {
    "useful times": lambda: run(1),
    "no slots measured": lambda: run(2, stats="none"),
    "computing": lambda: run(3, stats="computing", machine_cores=2),
    "waited": lambda: run(4, stats="waited", machine_cores=2, cores=4),
    "more cores than slots": lambda: run(5, stats="computing", machine_cores=9, cores=9),
    "one core": lambda: run(6, stats="waited", machine_cores=1, cores=4),
    "always three slots": lambda: run(7, slots=lambda step: 3),
    "epochs of a second": lambda: run(8, epochs=5, stats="waited", machine_cores=2),
    "a limited rate": lambda: run(9, slot_rate=400.0, budget_s=0.5),
    "a budget": lambda: run(10, budget_s=0.5, count=45),
}


def figures(costs: Costs) -> list[str]:
    engine = asdict(costs.engine)
    series = {name: engine.pop(name) for name in ("warm_up_s", "jitter_s")}
    lines = [f"  {shown(engine)}", f"  record {shown(costs.record_s)}, of use {costs.useful}"]
    lines += [f"  {name}: {len(all_s)}, {shown(all_s[::6])}" for name, all_s in series.items()]
    factors = None if costs.factors is None else shown(costs.factors[::5])
    return [*lines, f"  factors {factors}"]


def test_what_the_batches_of_drawn_runs_cost(recorded: Recorded) -> None:
    lines = []
    for name, make in RUNS.items():
        of = make()
        costs = calibrated(of)
        lines += [name, *figures(costs)]
        known = records_of(of, np.ones(len(of.batches)) if costs.factors is None else costs.factors)
        assert known is not None
        at_s, groups, each = known
        trace = of.trace()
        assert (
            int(trace.counts.sum())
            == len(at_s)
            == sum(sum(a.records) for b in of.batches for a in b.arrivals)
        )
        lines.append(
            f"  {len(at_s)} records {shown([at_s[::200], groups[::200].tolist(), each[::200]])}"
        )
        seconds = np.arange(len(trace.counts))
        middle = (trace.counts * seconds[:, None]).sum(axis=0) / trace.counts.sum(axis=0)
        lines.append(f"  {trace.counts.shape} slices, by group in the mean at {shown(middle)}")
        whole = [of.slots_mean, of.latency_mean_ms, of.first_s, of.operator, of._damage()]
        lines.append(f"  {shown(whole)}")
    recorded("costs-of-runs", lines)


ASKED: dict[str, dict[str, Any]] = {
    "as it was": {}, "part": {"whole": False, "oracle": True}, "fewer": {"slots_max": 1},
    "law": {"policy_text": "streamswitch(0.2)", "slots_max": 4, "oracle": True},
    "other SLO": {"slo_text": "mean < 300 ms over 2 s, 90 %"}, "p99": {"slo_text": "p99 < 1 s over 5 s"},
    "long": {"slo_text": "mean < 1 s over 1 h"}, "none": {"slots_max": 0},
    "no law": {"policy_text": "zz"},
}  # fmt: skip


@pytest.mark.parametrize("name", ["useful times", "a limited rate"])
def test_replays_of_drawn_runs(name: str, recorded: Recorded) -> None:
    of = RUNS[name]()
    of = replace(of, batches=of.batches[:60])
    lines, costs = [], calibrated(of)
    for asked, given in ASKED.items():
        try:
            found = replayed(of, costs, **given)
        except HeadgateError as error:
            lines.append(f"{asked}: {error}")
            continue
        lines += [asked, *(f"  {part}: {shown(value)}" for part, value in found.items())]
    others: dict[str, Mapping[str, Any]] = {
        "no law of ours": {"policy": "somebodys"}, "advice": {"policy": "unified", "advise": True},
        "two SLOs": {"slo": ["mean < 1 s over 1 s"] * 2}, "floor": {"floor_s": 0.5, "slots_min": 3},
    }  # fmt: skip
    for other, settings in others.items():
        start = replace(of.start, parameters={**of.parameters, **settings})
        try:
            lines.append(f"{other}: {shown(replayed(replace(of, start=start), costs)['model'])}")
        except HeadgateError as error:
            lines.append(f"{other}: {error}")
    recorded(f"replays-{name.replace(' ', '-')}", lines)


DAMAGES: dict[str, list[Any]] = {
    "slots_max": [0, 1, 32767, 32768, True, "5", None], "slots_min": [0, 1, 2.5],
    "cores": [0, 1, 10**6, 10**7],
    "machine_cores": [0, 1], "budget_s": [1e-6, 9e-7, 4e9, math.nan], "slot_rate": [1e-6, 0, 1e10],
    "floor_s": [0, -1, 1.5], "policy": [5], "slo": ["x", [3], ["x"]],
}  # fmt: skip


def test_runs_that_no_query_can_have_written(recorded: Recorded) -> None:
    of, lines = run(11, count=42), []

    def judge(name: str, of: RecordedRun) -> None:
        try:
            of._check("here")
            lines.append(f"{name}: fine")
        except HeadgateError as error:
            lines.append(f"{name}: {error}")

    for name, values in DAMAGES.items():
        for value in values:
            start = replace(of.start, parameters={**of.parameters, name: value})
            judge(f"{name}={value!r}", replace(of, start=start))
    judge("39 batches", replace(of, batches=of.batches[:39]))
    judge("40 batches", replace(of, batches=of.batches[:40]))
    last = of.batches[-1]
    arrived = last.arrivals[0]
    many = {
        "more groups than counts": [replace(arrived, groups=[0])],
        "group 6": [replace(arrived, groups=[6, *arrived.groups[1:]])],
        "group -1": [replace(arrived, groups=[-1, *arrived.groups[1:]])],
        "8 million": [replace(arrived, records=[8_000_000, *arrived.records[1:]])],
        "more": [replace(arrived, records=[8_000_001, *arrived.records[1:]])],
        "-1 records": [replace(arrived, records=[-1, *arrived.records[1:]])],
        "two operators": [arrived, replace(arrived, operator="other")],
    }
    for name, arrivals in many.items():
        judge(name, replace(of, batches=(*of.batches[:-1], replace(last, arrivals=arrivals))))
    for name, changed in {
        "no slots": replace(last, slots=0),
        "a slot of -1": replace(last, slot_stats=(SlotStats(0, 1, -1, 0, 1.0),)),
        "a slot of -1 ms": replace(last, slot_stats=(SlotStats(0, 1, 1, 0, -1.0),)),
        "a slot of 200 years": replace(
            last, slot_stats=(SlotStats(0, 1, 1, 0, 1.0, waited_ms=7e12),)
        ),
        "a year later": replace(last, at_ms=last.at_ms + 31_000_000_000),
        "stages": replace(
            last, slo=replace(state(1.0), by_operator={"a": state(1.0), "b": state(1.0)})
        ),
    }.items():
        judge(name, replace(of, batches=(*of.batches[:-1], changed)))
    nothing = tuple(replace(batch, arrivals=[]) for batch in of.batches)
    judge("nothing arrived", replace(of, batches=nothing))
    unserved = tuple(replace(batch, served=0) for batch in of.batches)
    judge("nothing served", replace(of, batches=unserved))
    recorded("refused-runs", lines)
