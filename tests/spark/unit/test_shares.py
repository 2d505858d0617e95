"""Shares of split key groups, in slots without a JVM: nothing is lost, doubled, late or early for it."""

from __future__ import annotations

import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
from share_slots import GROUPS, NAME, Slots

from headgate.core.assignment import Assignment
from headgate.core.errors import EngineError
from headgate.operators.spec import Aggregate, AggregateSpec, Kind, Leaf, Op, OutputMode, TimeKey
from headgate.spark.steer.controller import _waiting
from headgate.spark.steer.entries import EntryRates
from headgate.spark.step.stateful import StatefulWork

INTEGER = Leaf(Kind.INTEGER)
MERGED = (
    Aggregate(Op.COUNT, (INTEGER,)),
    Aggregate(Op.SUM_INTEGER, (INTEGER,)),
    Aggregate(Op.MAX, (INTEGER,)),
)
TIMES = {"none": None, "tumbling": TimeKey(10, 10)}
DELAY, NEVER = 6, 10**9
SEEDS = [s if s in {1, 11} else pytest.param(s, marks=pytest.mark.thorough) for s in range(12)]


def key_of(draw):
    return "hot" if draw.random() < 0.6 else f"k{draw.randrange(6)}"


def group_of(key):
    return 1 if key == "hot" else sum(map(ord, key)) % GROUPS


def rows_of(draw, step):
    """Rows around ``5 step``, some of them older than any watermark allows."""
    rows = []
    for _ in range(draw.randrange(60)):
        key = key_of(draw)
        behind = 25 if draw.random() < 0.1 else 0
        time = max(0, step * 5 + draw.randrange(5) - behind)
        rows.append((group_of(key), time, key, draw.randrange(-9, 99)))
    return rows


def ends(time, spec):
    """Return the ends of the windows that a record is in."""
    if spec is None:
        return [None]
    last_start = time - time % spec.advance_us
    starts = range(last_start, time - spec.size_us, -spec.advance_us)
    return [start + spec.size_us for start in starts]


def change(slots, draw):
    """Put some other assignment in force: more or fewer shares, other owners, more or fewer slots."""
    held = slots.state.assignment
    count = draw.randint(1, 4)
    slot_of = [
        s if s < count and draw.random() < 0.8 else draw.randrange(count) for s in held.slot_of
    ]
    split = {}
    for group in {1, draw.randrange(GROUPS)}:
        others = [s for s in range(count) if s != slot_of[group]]
        shares = draw.randint(0, len(others))
        if shares:
            split[group] = (slot_of[group], *draw.sample(others, shares))
    slots.split(split, slot_of, count)


def run(spec, path, seed, *, quota=False):
    """Serve twelve steps and what is left; return slots, all rows, and what must have been late."""
    draw = random.Random(seed)
    slots, seen, late, latest, judged = Slots(spec, path), [], [], 0, 0
    for step in range(12):
        rows = rows_of(draw, step)
        watermark = max(judged, latest - DELAY)
        if draw.random() < 0.5:
            change(slots, draw)
        if step and draw.random() < 0.3:
            slots.restart()
        lost = [draw.randrange(slots.state.assignment.slots)] if draw.random() < 0.3 else []
        few = draw.randint(3, 15) if quota and draw.random() < 0.8 else None
        slots.step(rows, watermark, draw, few, lost)
        seen += rows
        if spec.time is not None:
            late += [row for row in rows if max(ends(row[1], spec.time)) <= judged]
        judged, latest = watermark, max([latest, *(row[1] for row in rows)])
    while slots.waits():
        slots.step([], judged, draw)
    for _ in range(3):
        slots.step([], NEVER, draw)
    return slots, seen, late


def expected(rows, time, modes_of_late):
    """Return count, sum and maximum by window and key."""
    found = defaultdict(list)
    late = list(modes_of_late)
    for row in rows:
        if row in late:
            late.remove(row)
            continue
        for end in ends(row[1], time):
            found[(row[2],) if end is None else (row[2], end)].append(row[3])
    return {key: (len(v), sum(v), max(v)) for key, v in found.items()}


def late_of(slots):
    return sorted((row["k0"], row["v1"]) for row in slots.late)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        (OutputMode.APPEND, "tumbling"),
        (OutputMode.UPDATE, "tumbling"),
        (OutputMode.UPDATE, "none"),
    ],
)
def test_split_groups_put_out_what_whole_ones_would(tmp_path, seed, shape, mode):
    spec = AggregateSpec((Leaf(Kind.BYTES),), TIMES[shape], MERGED, mode)
    slots, rows, late = run(spec, tmp_path, seed)
    # the same records are late as of plain Spark: those behind the watermark of the step before
    assert late_of(slots) == sorted((row[2], row[3]) for row in late)
    found = {key: row[len(key) :] for key, row in slots.last.items()}
    assert found == expected(rows, spec.time, late)
    if mode is OutputMode.APPEND:
        assert max(slots.out.values()) == 1
        assert len(slots.out) == len(slots.last)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])
def test_rows_that_wait_for_shares_are_served_once_and_hold_their_windows_open(
    tmp_path, seed, mode
):
    spec = AggregateSpec((Leaf(Kind.BYTES),), TIMES["tumbling"], MERGED, mode)
    slots, rows, _ = run(spec, tmp_path, seed, quota=True)
    late = [(row["k0"], row["v1"]) for row in slots.late]
    kept = []
    for row in rows:
        if (row[2], row[3]) in late:
            late.remove((row[2], row[3]))
        else:
            kept.append(row)
    # which of several equal late rows it was makes no difference to sums over all windows
    counts, totals = defaultdict(int), defaultdict(int)
    for (key, _), (_, _, count, total, _) in slots.last.items():
        counts[key] += count
        totals[key] += total
    assert counts == {k: sum(row[2] == k for row in kept) for k in counts}
    assert totals == {k: sum(row[3] for row in kept if row[2] == k) for k in totals}
    served = sum(report.served for reports in slots.reports for report in reports)
    assert served == len(kept)


def test_a_share_merges_before_its_rows_come_to_the_owner(tmp_path):
    spec = AggregateSpec((Leaf(Kind.BYTES),), None, MERGED, OutputMode.UPDATE)
    slots, draw = Slots(spec, tmp_path, slots=3), random.Random(1)
    slots.split({1: (0, 1, 2)}, [0] * GROUPS)
    slots.step([(1, 0, "hot", 1)] * 300, 0, draw)
    helpers = [report for report in slots.reports[0] if report.slot]
    assert all(report.served > 50 for report in slots.reports[0])
    assert slots.state.waiting_rows() == 2  # one row of each other slot
    assert _waiting(slots.state)[1] == sum(report.served for report in helpers)
    assert all(not report.counts.completions.records.sum() for report in helpers)
    slots.step([], 0, draw)
    assert slots.last[("hot",)] == ("hot", 300, 300, 1)
    merged = [report.merged_rows for report in slots.reports[1]]
    assert sorted(merged) == [0, 0, 2]
    completed = sum(r.counts.completions.records.sum() for s in slots.reports for r in s)
    assert completed == 300
    assert not slots.waits()


def test_what_shares_would_leave_to_be_merged_is_measured_before_a_split_and_after(tmp_path):
    spec = AggregateSpec((Leaf(Kind.BYTES),), None, MERGED, OutputMode.UPDATE)
    slots, draw, rates = Slots(spec, tmp_path, slots=3), random.Random(1), EntryRates(GROUPS)
    rows = [(1, 0, f"k{n % 5}", 1) for n in range(300)] + [(2, 0, f"x{n}", 1) for n in range(90)]
    for step in range(30):
        if step == 15:
            assert rates.per_s == pytest.approx([0.0, 10.0, 180.0, 0.0], rel=0.1)
            slots.split({1: (0, 1, 2), 2: (0, 1, 2)}, [0] * GROUPS)
        slots.step(rows, 0, draw)
        rates.add(slots.reports[-1], 500.0 * step)
    assert rates.per_s[1] == pytest.approx(10.0, rel=0.2)
    # hardly two records of group 2 have a key in common: its owner merges nearly all of them again
    assert rates.per_s[2] > 100.0


CHAIN = [SimpleNamespace(id=NAME)]


def work_whose_stage(attempts, split):
    """Return a query's steps as far as reports are agreed on; Spark has begun stage 7 so often."""
    work = object.__new__(StatefulWork)
    assignment = Assignment((0,) * GROUPS, 2, 1, split)
    work.states = {NAME: SimpleNamespace(assignment=assignment)}
    stages = {7: SimpleNamespace(currentAttemptId=attempts - 1)}
    tracker = SimpleNamespace(getStageInfo=stages.get)
    work.spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    return work


def test_behind_a_quiet_batch_an_operator_is_as_late_as_what_it_reads():
    heard = {}
    ops = [SimpleNamespace(id=name, behind_us=us) for name, us in (("join", 0), ("counts", 30))]
    work = object.__new__(StatefulWork)
    work.query = SimpleNamespace(operators=ops)
    work.states = {
        op.id: SimpleNamespace(nothing_due=lambda us, of=op.id: heard.update({of: us}))
        for op in ops
    }
    work._quiet_batches = 0
    work._observer = SimpleNamespace(quiet=lambda read_ms: None)
    assert not work.quiet(100, 0.0, 5.0)
    assert heard == {"join": 100, "counts": 70}


def reports_of(stage):
    return [
        SimpleNamespace(operator=NAME, slot=slot, token=str(slot), consumed=(), stage=stage)
        for slot in range(2)
    ]


def test_a_step_runs_again_where_spark_repeated_a_stage_while_groups_are_split():
    """Rows that are read again may come in another order, and be dealt to other slots than before."""
    with pytest.raises(
        EngineError, match="were lost and read again while key groups are split"
    ) as e:
        work_whose_stage(2, {1: (0, 1)})._agreed(CHAIN, reports_of(7))
    assert e.value.transient


@pytest.mark.parametrize(
    ("attempts", "split", "stage"),
    [
        (2, {}, 7),  # whole groups go where their key says, in whatever order
        (1, {1: (0, 1)}, 7),
        (2, {1: (0, 1)}, 8),  # Spark has forgotten the stage
    ],
)
def test_other_steps_do_not_run_again_for_it(attempts, split, stage):
    found = work_whose_stage(attempts, split)._agreed(CHAIN, reports_of(stage))
    assert len(found) == 2
