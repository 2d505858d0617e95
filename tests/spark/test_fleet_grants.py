"""A fleet grants, jobs spend: StreamSwitch and a pool of PSPS under one budget, on Spark.

Slots serve a fixed rate, so that who would like how many does not hang on the machine. What is granted
is scripted. Nothing is asserted about times.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.control.fleet.view import Action, FleetDecision
from headgate.core.errors import ConfigError
from headgate.journal import AssignmentChange, FleetGranted, GrantChange, SlotRequest, read

pytestmark = pytest.mark.timeout(400)

BUDGET = 6
ROWS, FILES = 25_600, 160


class Grants:
    """A fleet policy that grants what it is told."""

    name = "grants"

    def __init__(self):
        self.wants = {}

    def decide(self, view):
        wants = {
            job: {op: n for op, n in slots.items() if view.slots[job][op] != n}
            for job, slots in self.wants.items()
            if job in view.jobs
        }
        wants = {job: slots for job, slots in wants.items() if slots}
        return FleetDecision(Action.RECONFIGURATION, wants, "the test wants it", "script")


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"w": pa.array([2 * v for v in batch.column("v").to_pylist()])})


def written(folder):
    """Write small files, of which a batch reads one: more rows than a slot serves meanwhile."""
    for n in range(FILES):
        values = list(range(n * ROWS // FILES, (n + 1) * ROWS // FILES))
        pq.write_table(pa.table({"v": values}), folder / f"{n:03d}.parquet")


def stream(spark, folder, files):
    reader = spark.readStream.schema("v long").option("maxFilesPerTrigger", files)
    return reader.parquet(str(folder))


def sums(rows):
    key = (F.col("v") % 64).alias("key")
    return rows.groupBy(key).agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def writer(df, folder, name, policy):
    return (
        hg.writeStream(df)
        .queryName(name)
        .slo("mean < 8 s over 2 s")
        .policy(policy)
        .slots(max=5, start=1)
        .keyGroups(16)
        .trigger(processingTime="300 milliseconds")
        .option("headgate.slotRate", 20)
        .option("headgate.replicas.interval", "1 s")
        .option("checkpointLocation", str(folder / name))
    )


def wait_for(condition, deadline_s=90):
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def run(spark, tmp_path_factory):  # noqa: PLR0915 - one life, told from its beginning to its end
    """A fleet of an aggregate and a pool: too few slots, then some, then some taken back."""
    folder = tmp_path_factory.mktemp("grants")
    (folder / "in").mkdir()
    written(folder / "in")
    rows = stream(spark, folder / "in", 1)
    counted: dict[int, tuple[int, int]] = {}

    def keep(frame, batch):
        counted.update({r.key: (r.n, r.total) for r in frame.collect()})

    policy = Grants()
    fleet = hg.Fleet(
        spark,
        BUDGET,
        policy=policy,
        journal=folder / "fleet.jsonl",
        round_s=0.5,
        actions_per_minute=1000,
    )
    fleet.add(
        writer(sums(rows), folder, "sums", "streamswitch(0.2)")
        .outputMode("update")
        .foreachBatch(keep)
    )
    pool = writer(rows.mapInArrow(doubled, "w long"), folder, "pool", "psps").format("parquet")
    fleet.add(pool.option("path", str(folder / "out")))
    found = SimpleNamespace(most=0, over=[])
    try:
        fleet.start()
        queries = {name: fleet.query(name) for name in ("sums", "pool")}
        held = {name: query._slots.held for name, query in queries.items()}
        found.operators = {name: next(iter(held[name]())) for name in held}

        def slots(name):
            return held[name]()[found.operators[name]]

        def grant(**slots):
            policy.wants = {name: {found.operators[name]: n} for name, n in slots.items()}

        found.asked = wait_for(lambda: all(q._slots.requests() for q in queries.values()))
        found.held_first = {name: slots(name) for name in held}
        with pytest.raises(ConfigError) as refused:
            queries["sums"].scale(3)
        found.refused = [str(refused.value)]
        with pytest.raises(ConfigError) as refused:
            queries["pool"].activate(3)
        found.refused.append(str(refused.value))
        grant(sums=3, pool=3)
        found.spent = wait_for(lambda: slots("sums") == 3 and slots("pool") == 3)
        grant(sums=1, pool=5)
        until = time.monotonic() + 60
        while time.monotonic() < until and slots("pool") < 5:
            found.most = max(found.most, slots("sums") + slots("pool"))
            time.sleep(0.005)
        found.moved = (slots("sums"), slots("pool"))
        found.begun = queries["sums"]._progress()[0]
        grant(sums=5, pool=1)
        found.back = wait_for(lambda: slots("pool") == 1 and slots("sums") > 1)
        fleet.set_budget(2)
        found.shrunk = wait_for(lambda: slots("sums") == 1)
        found.grants = fleet.grants
    finally:
        fleet.stop()
    rest = stream(spark, folder / "in", FILES)
    for df, name in ((sums(rest), "sums"), (rest.mapInArrow(doubled, "w long"), "pool")):
        last = hg.writeStream(df).queryName(name).keyGroups(16).trigger(availableNow=True)
        last = last.option("checkpointLocation", str(folder / name))
        if name == "sums":
            last.outputMode("update").foreachBatch(keep)
        else:
            last.policy("psps").format("parquet").option("path", str(folder / "out"))
        last.start().awaitTermination()
    found.counted = counted
    out = spark.read.parquet(str(folder / "out")).collect()
    found.put_out = Counter(row["w"] for row in out)
    found.fleet = list(read(folder / "fleet.jsonl"))
    found.journals = {name: list(read(query.journal)) for name, query in queries.items()}
    return found


def test_each_policy_asks_for_more_than_it_is_granted_and_holds_no_more(run):
    assert run.asked
    assert run.held_first == {"sums": 1, "pool": 1}


def test_by_hand_there_is_no_more_than_granted_either(run):
    for said in run.refused:
        assert "exceeds the 1 that the fleet grants" in said


def test_what_is_granted_is_spent_by_the_jobs_own_policies(run):
    assert run.spent
    changes = [e for e in run.journals["sums"] if isinstance(e, AssignmentChange)]
    assert changes[0].by == "streamswitch(0.2)"
    assert "severe" in changes[0].reason or "split over" in changes[0].reason
    sizes = [e for e in run.journals["pool"] if isinstance(e, AssignmentChange)]
    assert sizes[0].by == "psps(naive)"


def test_slots_that_move_from_one_job_to_another_are_never_held_by_both(run):
    assert run.moved == (1, 5)
    assert run.most <= BUDGET


def test_a_grant_that_is_taken_back_is_given_up_and_the_other_job_gets_it(run):
    assert run.back
    given_up = [
        e
        for e in run.journals["sums"]
        if isinstance(e, AssignmentChange) and e.slots_after < e.slots_before
    ]
    assert (given_up[0].slots_before, given_up[0].slots_after) == (3, 1)
    assert "no longer granted" in given_up[0].reason or given_up[0].by == "grants"


def test_a_smaller_budget_is_kept_by_all_together(run):
    assert run.shrunk
    assert sum(n for slots in run.grants.values() for n in slots.values()) == 2


def test_grants_and_requests_are_in_the_journals(run):
    told = [e for e in run.fleet if isinstance(e, FleetGranted) and e.job == "sums"]
    operator = run.operators["sums"]
    assert [e.granted[operator] for e in told[:3]] == [1, 3, 1]
    assert told[2].held == {operator: 3}
    assert told[1].requested[operator] > 1
    for name in ("sums", "pool"):
        assert any(isinstance(e, SlotRequest) and e.requested for e in run.journals[name])
        first = next(e for e in run.journals[name] if isinstance(e, GrantChange))
        assert first.granted == {run.operators[name]: 1}


def test_the_answers_are_sparks(run):
    wanted = {k: (ROWS // 64, sum(range(k, ROWS, 64))) for k in range(64)}
    assert run.counted == wanted
    assert run.put_out == Counter(2 * v for v in range(ROWS))
