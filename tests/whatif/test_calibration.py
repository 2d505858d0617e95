"""What batches cost, found again in the journal of a made-up engine whose costs are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headgate.journal.parts import GroupRecords, Latency, SlotStats
from headgate.journal.schema import Batch, Start
from headgate.whatif.calibration import calibrated, records_of
from headgate.whatif.recording import Recorded

GROUPS = 8
TASK_MS, RECORD_MS, READ_MS, PLAN_MS, STAGE_MS, COMMIT_MS = 12.0, 2.0, 0.3, 5.0, 30.0, 10.0


def engine_run(
    slots=(2,), *, cores=6, machine_cores=2, computing=1.0, batches=120, idle_ms=0.0, factor=None
):
    """Return the run of an engine that serves what came since the batch before, on so many cores."""
    draw = np.random.default_rng(1)
    end_ms, found = 1_000_000.0, []
    for step in range(batches):
        served = draw.integers(20, 120, slots[step % len(slots)])
        dearer = 1.0 if factor is None else factor(step)
        alone_ms = TASK_MS + RECORD_MS * dearer * served
        crowded = max(1.0, len(served) * computing / machine_cores)
        useful_ms = alone_ms * crowded
        free_ms, done_ms = [0.0] * cores, 0.0
        for one, count in zip(useful_ms, served, strict=True):
            core = free_ms.index(min(free_ms))
            free_ms[core] += one
            done_ms += count * (free_ms[core] - (one - TASK_MS * crowded) / 2) / served.sum()
        before_ms = STAGE_MS + READ_MS * served.sum()
        slots_ms = before_ms + max(free_ms)
        period_ms = PLAN_MS + slots_ms + COMMIT_MS
        mean_ms = period_ms / 2 + PLAN_MS + before_ms + done_ms
        end_ms += idle_ms * (step % 10 == 0) + period_ms
        arrivals = GroupRecords("work", list(range(len(served))), served.tolist())
        stats = [
            SlotStats(n, 1, int(count), 0, took, computing_ms=computing * took / crowded)
            for n, (count, took) in enumerate(zip(served, useful_ms, strict=True))
        ]
        found.append(
            Batch(
                step=step, spark_batch=step, epoch=0, slots=len(served),
                duration_ms=PLAN_MS + slots_ms, phases_ms={"slots": slots_ms},
                arrived=int(served.sum()), served=int(served.sum()), emitted=0, late=0,
                backlog=0, backlog_bytes=0, latency_ms=Latency(mean_ms, mean_ms, 250.0, 260.0, 270.0),
                slot_stats=tuple(stats), arrivals=(arrivals,), at_ms=end_ms - COMMIT_MS,
            )
        )  # fmt: skip
    settings = {"policy": "static", "slots_max": 6, "cores": cores, "machine_cores": machine_cores}
    start = Start(job="j", name="q", key_groups=GROUPS, slots=2, parameters=settings, at_ms=1)
    return Recorded(start, tuple(found), {})


@pytest.mark.parametrize("slots", [(1,), (2,), (1, 2, 2)])
def test_slots_say_themselves_what_a_record_takes_however_few_they_are(slots):
    costs = calibrated(engine_run(slots))
    assert costs.record_s == pytest.approx(RECORD_MS / 1e3, rel=0.02)
    assert costs.engine.task_s == pytest.approx(TASK_MS / 1e3, rel=0.1)
    assert costs.engine.read_s == pytest.approx(READ_MS / 1e3, rel=0.1)
    assert costs.engine.plan_s == pytest.approx((PLAN_MS + STAGE_MS) / 1e3, rel=0.1)
    assert costs.engine.commit_s == pytest.approx(COMMIT_MS / 1e3, abs=0.003)


def summed(run, count):
    """Return a run whose lines sum so many batches each, as those of epochs do."""
    lines = []
    for first in range(0, len(run.batches), count):
        parts = run.batches[first : first + count]
        stats = [
            replace(
                slot,
                served=sum(part.slot_stats[n].served for part in parts),
                useful_ms=sum(part.slot_stats[n].useful_ms for part in parts),
                computing_ms=sum(part.slot_stats[n].computing_ms for part in parts),
            )
            for n, slot in enumerate(parts[0].slot_stats)
        ]
        waited_ms = sum(part.latency_ms.mean * part.served for part in parts)
        mean_ms = waited_ms / sum(part.served for part in parts)
        lines.append(
            replace(
                parts[-1],
                epochs=len(parts),
                latency_ms=replace(parts[-1].latency_ms, mean=mean_ms),
                slot_stats=tuple(stats),
                served=sum(part.served for part in parts),
                duration_ms=sum(part.duration_ms for part in parts),
                phases_ms={"slots": sum(part.phases_ms["slots"] for part in parts)},
            )
        )
    return replace(run, batches=tuple(lines))


def test_a_line_of_epochs_costs_what_its_epochs_did():
    single = engine_run((1,), batches=2400)
    apart, together = calibrated(single), calibrated(summed(single, 20))
    pairs = [
        (
            costs.record_s,
            costs.engine.task_s,
            costs.engine.read_s,
            costs.engine.plan_s + costs.engine.commit_s,
        )
        for costs in (apart, together)
    ]
    assert pairs[1] == pytest.approx(pairs[0], rel=0.1)
    epochs = [len(costs.engine.warm_up_s + costs.engine.jitter_s) for costs in (apart, together)]
    assert epochs[1] == pytest.approx(epochs[0], rel=0.02)


def test_tasks_that_compute_have_the_cores_of_the_machine_whatever_spark_was_promised():
    costs = calibrated(engine_run())
    assert (costs.engine.cores, costs.useful) == (2, 2)
    waiting = calibrated(engine_run(computing=0.5))
    assert (waiting.engine.cores, waiting.useful) == (4, 4)
    elsewhere = engine_run()
    del elsewhere.parameters["machine_cores"]
    assert (calibrated(elsewhere).engine.cores, calibrated(elsewhere).useful) == (6, None)


def test_what_a_task_waited_for_a_core_is_no_cost_of_its_records():
    costs = calibrated(engine_run((2, 4)))
    assert costs.record_s == pytest.approx(RECORD_MS / 1e3, rel=0.05)


def test_slots_that_say_how_long_they_waited_for_a_core_are_taken_at_their_word():
    run = engine_run((2, 4))
    told = [
        replace(b, slot_stats=tuple(replace(s, waited_ms=s.useful_ms / 2) for s in b.slot_stats))
        if b.slots == 4
        else b
        for b in run.batches
    ]
    costs = calibrated(replace(run, batches=tuple(told)))
    assert costs.engine.cores == 2
    assert costs.record_s == pytest.approx(RECORD_MS / 1e3, rel=0.05)


def test_where_all_is_computed_before_the_slots_more_of_them_are_of_no_use():
    run = engine_run((1,))
    dear = [
        replace(b, phases_ms={"slots": 40.0 * b.served}, duration_ms=40.0 * b.served)
        for b in run.batches
    ]
    assert calibrated(run).useful == 2
    assert calibrated(replace(run, batches=tuple(dear))).useful == 1


def test_what_was_idle_is_no_cost():
    busy, idle = calibrated(engine_run()), calibrated(engine_run(idle_ms=8_000.0))
    assert max(idle.engine.jitter_s) < 0.2
    assert max(idle.engine.warm_up_s) < 0.2
    assert idle.engine.plan_s == pytest.approx(busy.engine.plan_s, abs=0.005)


def test_records_come_when_the_oldest_of_them_can_have():
    run = engine_run(idle_ms=8_000.0)
    known = records_of(run, np.ones(len(run.batches)))
    assert known is not None
    at_s, groups, cost = known
    assert len(at_s) == len(groups) == len(cost) == sum(batch.arrived for batch in run.batches)
    assert (np.diff(at_s) >= 0.0).all()
    began_s = run.began_s[10] - run.first_s
    assert ((at_s > began_s - 8.0) & (at_s < began_s - 0.28)).sum() == 0
    assert ((at_s > began_s - 0.28) & (at_s < began_s)).sum() == run.batches[10].arrived


def test_records_of_a_dear_batch_are_dear():
    run = engine_run(factor=lambda step: 3.0 if step == 100 else 1.0)
    costs = calibrated(run)
    assert costs.factors is not None
    assert costs.factors[100] == pytest.approx(3.0, rel=0.1)
    assert np.median(costs.factors) == pytest.approx(1.0, rel=0.05)
    known = records_of(run, costs.factors)
    assert known is not None
    assert (known[2] > 2.5).sum() == run.batches[100].arrived


@pytest.mark.parametrize(
    "odd",
    [{"useful_ms": float("nan")}, {"useful_ms": -1.0}, {"served": -5}, {"computing_ms": 1e300}],
)
def test_a_slot_that_did_what_none_can_do_is_damage(odd):
    run = engine_run()
    slot = replace(run.batches[50].slot_stats[0], **odd)
    batches = [*run.batches]
    batches[50] = replace(batches[50], slot_stats=(slot,))
    assert "step 50" in replace(run, batches=tuple(batches))._damage()
    assert not run._damage()


def test_a_run_that_served_nothing_cannot_be_replayed():
    run = engine_run()
    idle = [replace(batch, served=0) for batch in run.batches]
    assert replace(run, batches=tuple(idle))._damage() == "no record was served"


def test_costs_of_many_engines_are_as_recorded(recorded):
    lines = []
    for given in (
        {}, {"slots": (1, 2, 4)}, {"slots": (3,), "computing": 0.4}, {"cores": 2, "slots": (4,)},
        {"idle_ms": 300.0}, {"batches": 25}, {"factor": lambda step: 3.0 if step > 60 else 1.0},
        {"machine_cores": 1, "slots": (2, 5)},
    ):  # fmt: skip
        run = engine_run(**given)
        costs = calibrated(run)
        engine = costs.engine
        figures = [
            costs.record_s, engine.plan_s, engine.read_s, engine.commit_s, engine.task_s,
            engine.moved_group_s, engine.trigger_s, *engine.jitter_s[:5], *engine.warm_up_s[:5],
        ]  # fmt: skip
        lines.append(
            f"{[f'{round(float(x), 9) + 0.0:.6g}' for x in figures]} {engine.cores} {costs.useful}"
        )
        if costs.factors is not None:
            lines.append(
                f"  factors {[f'{round(float(x), 9) + 0.0:.5g}' for x in costs.factors[::10]]}"
            )
            found = records_of(run, costs.factors)
            if found is not None:
                at_s, groups, cost = found
                sums = [at_s.sum(), (at_s * groups).sum(), (at_s * cost).sum(), float(len(groups))]
                lines.append(f"  records {[f'{round(float(x), 9) + 0.0:.6g}' for x in sums]}")
    recorded("calibration", lines)


@pytest.mark.parametrize(("counted", "cores"), [(3, 3), (None, 1)])
def test_an_old_journal_has_the_cores_of_this_machine(monkeypatch, counted, cores):
    run = engine_run()
    del run.parameters["cores"]
    del run.parameters["machine_cores"]
    monkeypatch.setattr("headgate.whatif.calibration.os.cpu_count", lambda: counted)
    assert calibrated(run).engine.cores == cores
