"""Henge and `unified` over a fleet on Spark, to its end: who got slots, in which order, and why.

Slots serve a fixed rate, so that who is short of slots does not hang on the machine: two jobs get more
than one slot serves, a third one less. What is judged is juice, the share of the input that is served,
which a slow machine leaves as it is. Nothing is asserted about times.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.control.fleet import registry as fleet_registry
from headgate.control.fleet.henge import ClusterState
from headgate.journal import AssignmentChange, FleetDecided, read
from headgate_lab.bench.fleets import touched

pytestmark = pytest.mark.timeout(600)

SLOT_RATE, ROUND_S = 100.0, 1.0
RATES = {"gold": 220, "silver": 220, "calm": 20}
WANTED = 0.7
"""Of juice. One slot serves less than half of what gold and silver get, two serve nine tenths."""

PRIORITIES = {"gold": 90.0, "silver": 10.0, "calm": 50.0}
SLOTS_MAX, BUDGET = 4, 9
DEADLINE_S = 200.0


def writer(spark, folder, name):
    rows = spark.readStream.format("rate").option("rowsPerSecond", RATES[name]).load()
    return (
        hg.writeStream(rows.groupBy((F.col("value") % 640).alias("key")).count())
        .queryName(name)
        .slo(f"juice >= {WANTED} over 6 s")
        .slots(max=SLOTS_MAX, start=1)
        .keyGroups(8)
        .format("noop")
        .outputMode("update")
        .trigger(processingTime="1 second")
        .option("headgate.slotRate", SLOT_RATE)
        .option("checkpointLocation", str(folder / name))
    )


def lived(spark, folder, policy, ended):
    """Run the three jobs under a policy until `ended` says so, and stop them; return what happened."""
    limits = {"round_s": ROUND_S, "actions_per_minute": 60, "hang_s": 100.0}
    fleet = hg.Fleet(spark, BUDGET, policy=policy, journal=folder / "fleet.jsonl", **limits)
    for name, priority in PRIORITIES.items():
        fleet.add(writer(spark, folder, name), priority=priority)
    try:
        fleet.start()
        queries = {name: fleet.query(name) for name in RATES}
        until_s = time.monotonic() + DEADLINE_S
        while not (over := ended(fleet)) and time.monotonic() < until_s:
            time.sleep(0.1)
        slots = {name: sum(a.slots for a in q.assignment().values()) for name, q in queries.items()}
    finally:
        fleet.stop()
    changes = {
        name: [e for e in read(query.journal) if isinstance(e, AssignmentChange)]
        for name, query in queries.items()
    }
    decided = [e for e in read(folder / "fleet.jsonl") if isinstance(e, FleetDecided)]
    return SimpleNamespace(fleet=fleet, over=over, slots=slots, changes=changes, decided=decided)


def all_met(fleet):
    seen = fleet.rounds[-1:]
    return bool(seen) and len(seen[0].jobs) == len(RATES) and all(j.met for j in seen[0].jobs)


def check_the_end(found):
    """What holds at the end under any policy that serves all: those who were short have slots now."""
    assert found.over
    assert found.fleet.failures == {}
    assert {str(state) for state in found.fleet.jobs.values()} == {"gone"}
    assert found.slots["calm"] == 1
    assert found.changes["calm"] == []
    for name in ("gold", "silver"):
        assert SLOT_RATE * found.slots[name] > WANTED * RATES[name]
        assert {change.by for change in found.changes[name]} == {found.fleet.policy.name}
        before = [r for r in found.fleet.rounds if r.time_s < found.fleet.actions[0].time_s][-1]
        assert not next(job for job in before.jobs if job.job == name).met
    assert all(seen.slots <= BUDGET for seen in found.fleet.rounds)


def test_henge_gives_slots_to_the_jobs_that_miss_their_slo_by_priority_and_comes_to_rest(
    spark, tmp_path
):
    policy = fleet_registry.henge(
        ROUND_S, observe_s=4 * ROUND_S, fresh_s=2 * ROUND_S, slots_per_unit=1.0
    )
    ended = lambda fleet: policy.state is ClusterState.CONVERGED and all_met(fleet)  # noqa: E731
    found = lived(spark, tmp_path, policy, ended)
    check_the_end(found)
    actions = found.fleet.actions
    assert list(dict.fromkeys(touched(actions))) == ["gold", "silver"]
    assert {act.rule for act in actions} == {"miss -> reconfiguration"}
    for name in ("gold", "silver"):
        act = next(act for act in actions if name in act.slots)
        assert act.reason.startswith(f"{name} has ")
        assert f" of {PRIORITIES[name]:g} utility and congested operators: " in act.reason
        assert found.changes[name][0].reason == act.reason
    assert policy.indicators.oversubscribed is False
    assert found.fleet.rounds[-1].utility == found.fleet.rounds[-1].utility_max
    assert found.decided[-1].rule == "converged"


@pytest.mark.thorough
def test_unified_gives_slots_to_all_jobs_that_need_more_and_takes_none_from_the_others(
    spark, tmp_path
):
    policy = fleet_registry.unified(ROUND_S, observe_s=4 * ROUND_S)
    since = []

    def ended(fleet):
        met = all_met(fleet) and set(touched(fleet.actions)) >= {"gold", "silver"}
        since.append(time.monotonic()) if met else since.clear()
        return met and since[-1] - since[0] > 3 * ROUND_S

    found = lived(spark, tmp_path, policy, ended)
    check_the_end(found)
    actions = found.fleet.actions
    assert set(touched(actions)) == {"gold", "silver"}
    assert {act.rule for act in actions} == {"forecast -> reconfiguration"}
    for act in actions:
        short = act.reason.partition(" will need more slots")[0].split(", ")
        assert set(act.slots) <= set(short)
    assert "observing" in {each.rule for each in found.decided}
