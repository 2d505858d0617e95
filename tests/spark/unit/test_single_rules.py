"""Tests small rules of a job: its defaults, rates of slots, counts that come late, groups that move."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_copy_thread import FakeCopyThread

from headgate.core.assignment import Assignment, spread
from headgate.operators.counts import Binned, Counts
from headgate.spark.fleet import probe as probing
from headgate.spark.fleet.flows import Entrance, Graph
from headgate.spark.fleet.probe import Probe
from headgate.spark.job.assignment_request import RequestState
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.move.migrations import Migrations
from headgate.spark.move.placement import Placement
from headgate.spark.steer.metrics import OperatorCounters

GROUPS = 4


def report(**facts: Any) -> Any:
    known = {"slot": 0, "served_rows": 0, "useful_ms": 0.0, "work": 0.0}
    return SimpleNamespace(**(known | facts))


def test_settings_of_a_job_that_names_nothing_but_itself() -> None:
    assert JobConfig("clicks") == JobConfig(
        "clicks", 128, 2, 128, None, "append", None, 4, "auto", False, False, 268_435_456, 60.0,
        None, 0.0, 0.0, None, "", [],
    )  # fmt: skip


# --- rates of slots ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "rows", "useful_ms", "waits", "found"),
    [
        (0.0, 0, 100.0, False, None),  # nothing served, nothing learnt
        (0.0, 800, 100.0, False, 10_000.0),
        (8_000.0, 800, 100.0, False, 9_000.0),
        (5_000.0, 800, 100.0, False, 7_500.0),
        (4_000.0, 800, 100.0, False, 10_000.0),
        (20_000.0, 800, 100.0, False, 15_000.0),
        (30_000.0, 800, 100.0, False, 10_000.0),
        (0.0, 300, 50.0, False, 10_000.0),  # long enough to tell
        (1_000.0, 20, 40.0, False, 1_000.0),  # a short task lowers nothing
        (100.0, 20, 40.0, False, 500.0),
        (1_000.0, 20, 40.0, True, 1_500.0),
        (9_000_000.0, 20, 40.0, True, 10_000_000.0),
        (0.0, 20, 0.0, False, 200_000.0),  # no task takes less than a tenth of a millisecond
    ],
)
def test_a_slots_rate_follows_what_its_tasks_take(
    known: float, rows: int, useful_ms: float, waits: bool, found: float | None
) -> None:
    state = OperatorState.fresh(2, GROUPS)
    if known:
        state.rate_per_s = {1: known}
    if waits:
        state.backlog = {3: [["f", 0, 9, 0]]}
    state._learn_rate(report(slot=1, served_rows=rows, useful_ms=useful_ms))
    if found is None:
        assert state.rate_per_s == {}
    else:
        assert state.rate_per_s == {1: pytest.approx(found)}


def test_rows_that_wait_at_another_slot_raise_no_rate() -> None:
    state = OperatorState.fresh(2, GROUPS)
    state.rate_per_s, state.backlog = {1: 1_000.0}, {0: [["f", 0, 9, 0]]}
    state._learn_rate(report(slot=1, served_rows=20, useful_ms=40.0))
    assert state.rate_per_s == {1: 1_000.0}


# --- counts of time slots that are long over --------------------------------------------------------


def test_counts_of_time_slots_that_are_skipped_are_all_in_the_oldest_that_is_left() -> None:
    counters = OperatorCounters(spread(2, GROUPS), np.zeros(GROUPS), 101)

    def at(tick: int, records: float) -> Binned:
        one = np.array([records])
        return Binned(np.array([tick]), np.array([2]), one, 50.0 * one, one - 1.0)

    for tick in (101, 102, 105):
        counts = Counts(at(tick, 3.0), at(tick, 2.0))
        counters.add(report(slot=1, counts=counts, work=2.0), 0.25)
        counters.add_results(tick, 4.0, 70.0, 3.0)
    samples = counters.until(105 + 1_200)
    (sample, cell), (_, after) = samples[:2]
    assert (len(samples), sample.tick) == (1_201, 6)
    assert (sample.arrived[2], sample.completed[2]) == (9.0, 6.0)
    assert (cell.arrived[2], cell.completed[2], cell.latency_ms[2], cell.within[2]) == (
        9,
        6,
        300,
        3,
    )
    assert cell.results.tolist() == [12.0, 210.0, 9.0]
    assert (cell.useful_s, cell.worked) == ({1: 0.75}, {1: 6.0})
    assert (sample.useful_s.tolist(), after.arrived.sum()) == ([0.0, 0.75], 0.0)


# --- key groups that move ---------------------------------------------------------------------------


def test_while_key_groups_move_each_boundary_says_what_holds_and_which_slots_survive() -> None:
    states = {"op": OperatorState.fresh(2, 12)}
    states["op"].tokens = [f"{g:032x}" for g in range(1, 13)]
    placement: Any = object.__new__(Placement)
    placement._host_of = {}
    placement.hosts_of = lambda slots: placement._wishes(slots, ("a", "b"))
    kind: Any = type("Two", (Placement,), {"active": property(lambda self: True)})
    placement.__class__ = kind
    copies: Any = FakeCopyThread()  # type: ignore[no-untyped-call]
    changes, seen = Changes(states, 12), []
    moves = Migrations(
        states, changes, {"op": placement}, copies, "subscale(groups_min=1)", lambda line: None
    )
    changes.ask(changes.scaled(4), "user")
    for step in range(5, 60):
        before = states["op"].assignment
        found = moves.begin(step).get("op")
        moves.committed(step)
        copies.work(states["op"], step, 2)
        if found is None:
            assert states["op"].assignment == before
            continue
        seen.append(found)
        assert found.assignment == states["op"].assignment
        assert found.before is not None
        if found.state is not RequestState.MOVING:
            break
        assert len(found.survivors) == found.assignment.slots
        kept = [number for number in found.survivors if number is not None]
        assert kept == list(range(min(before.slots, found.assignment.slots)))
    assert len(seen) > 2
    assert {one.state for one in seen[:-1]} == {RequestState.MOVING}
    assert seen[-1].assignment.slots == 4


def test_an_assignment_of_a_request_is_the_one_that_holds() -> None:
    held = Assignment((0, 1, 2, 0), 3, 5)
    made: Any = object.__new__(Migrations)
    made._states = {"op": SimpleNamespace(assignment=held)}
    changes = Changes({"op": OperatorState.fresh(2, GROUPS)}, 4)
    changes.ask(changes.scaled(4), "user")
    request = changes.requested("op")
    assert request is not None
    found = made._with_assignment("op", request, (1, 0, 2), 2)
    assert found == replace(request, assignment=held, survivors=(1, 0, None))


@pytest.mark.parametrize(
    ("running", "routed", "owners", "renumbers", "found"),
    [
        (True, None, (0, 1), False, "moving"),
        (True, {0: 1}, None, False, None),
        (False, None, (0, 1), True, "ended"),
        (False, {0: 1}, (0, 1), False, "moving"),
        (False, {0: 1}, None, True, None),
        (False, {0: 1}, None, False, "ended"),
    ],
)
def test_groups_are_on_their_way_until_a_migration_and_what_is_routed_have_ended(
    running: bool, routed: Any, owners: Any, renumbers: bool, found: str | None
) -> None:
    made: Any = object.__new__(Migrations)
    held = Assignment((0, 1), 2, 5)
    put: list[Any] = []
    migration = SimpleNamespace(
        running=running, hosts=("a",), pass_boundary=lambda *given: owners,
        unserved=lambda: frozenset({1}),
    )  # fmt: skip
    made._migrations, made._states = {"op": migration}, {"op": SimpleNamespace(assignment=held)}
    made._hosts = lambda operator: ("a", "b")
    made._renumbers = lambda operator: renumbers
    made._slots_of = lambda operator, owners: 2
    made._end = lambda operator, migration, before: "ended"
    made._with_assignment = lambda *given: "moving" if given[3] == 2 else "wrong"
    made._changes = SimpleNamespace(put=lambda *given: put.append(given))
    changes = Changes({"op": OperatorState.fresh(2, GROUPS)}, 4)
    changes.ask(changes.scaled(3), "user")
    made._requests = {"op": changes.requested("op")}
    assert made._pass("op", 3, routed) == found
    assert put == ([("op", (0, 1), 2)] if found == "moving" else [])
    assert made._states["op"].held == {1}


def test_while_hosts_are_not_known_only_what_was_routed_goes_on() -> None:
    made: Any = object.__new__(Migrations)
    asked: list[Any] = []
    migration = SimpleNamespace(
        running=True, hosts=("a",), unserved=frozenset,
        pass_boundary=lambda *given: asked.append(given),
    )  # fmt: skip
    state = SimpleNamespace(assignment=Assignment((0, 1), 2, 5))
    made._migrations, made._states = {"op": migration}, {"op": state}
    made._hosts = lambda operator: None
    nothing: list[Any] = [None, {}]
    for routed in nothing:
        assert made._pass("op", 3, routed) is None
    assert asked == []
    assert made._pass("op", 3, {0: 1}) is None
    assert asked == [(3, ("a",), {0: 1})]


# --- a fleet's sensors ------------------------------------------------------------------------------


def test_only_of_joins_records_that_wait_for_the_other_side_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(probing, "flows_of", lambda *given: told.append(given))
    probe: Any = Probe(60.0, 1)
    entrances = [
        Entrance("join", 0, "left"),
        Entrance("join", 1, "right"),
        Entrance("op", 0, "one"),
    ]
    probe._graph, probe._read_s = Graph(tuple(entrances), {}), 5.0
    probe._unserved = {("join", 0): 3, ("join", 1): 4, ("op", 0): 9}
    probe._steps.append(SimpleNamespace(ended_s=1e12, read="a read", waiting={"op": 2, "more": 5}))
    probe._flows()
    [(graph, span, waiting, _)] = told
    assert graph is probe._graph
    assert (span.before, span.reads, span.read_s) == (None, ["a read"], 5.0)
    assert waiting == {("op", 0): 2.0, ("more", 0): 5.0, ("join", 0): 3.0, ("join", 1): 4.0}
