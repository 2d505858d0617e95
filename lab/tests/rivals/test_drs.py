"""DRS: Erlang's formula to the digit, the fewest servers, and unit strategies on the way there."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from control_views import seen, view
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.decision import ChangeKind
from headgate.core.errors import ConfigError
from headgate_lab.rivals.drs import Drs, DrsBalanced, Station, fewest_servers


@pytest.mark.parametrize(
    ("rate", "mu", "servers", "latency_s", "waits"),
    [
        (90.0, 10.0, 10, 0.166873, 0.668732),
        (90.0, 10.0, 12, 0.108868, 0.266035),
        (8000.0, 1000.0, 9, 1.653327e-3, None),
        (1500.0, 200.0, 8, 13.072525e-3, None),
        (5.0, 10.0, 1, 0.2, 0.5),
    ],
)
def test_a_station_has_the_latency_of_erlangs_formula(
    rate: float, mu: float, servers: int, latency_s: float, waits: float | None
) -> None:
    station = Station(rate, mu, servers=servers)
    assert station.latency_s == pytest.approx(latency_s, rel=1e-6, abs=5e-7)
    if waits is not None:
        assert station.waits == pytest.approx(waits, abs=5e-7)


def test_a_station_starts_with_the_fewest_servers_that_keep_up() -> None:
    assert Station(90.0, 10.0).servers == 10
    assert Station(89.0, 10.0).servers == 9


def test_a_station_without_enough_servers_has_no_finite_latency() -> None:
    assert Station(90.0, 10.0, servers=9).latency_s == math.inf
    assert Station(90.0, 10.0, servers=9).waits == 1.0


@given(
    rate=st.floats(0.0, 1e4),
    mu=st.floats(1.0, 1e4),
    servers=st.integers(1, 12),
)
def test_a_station_agrees_with_the_printed_formula(rate: float, mu: float, servers: int) -> None:
    offered = rate / mu
    if offered >= servers * (1 - 1e-9):
        return
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    rest = sum(offered**i / math.factorial(i) for i in range(servers))
    waits = last / (rest + last)
    station = Station(rate, mu, servers=servers)
    assert station.waits == pytest.approx(waits, rel=1e-6, abs=1e-12)
    expected_s = waits / (servers * mu - rate) + 1 / mu
    assert station.latency_s == pytest.approx(expected_s, rel=1e-6)


def test_a_station_of_a_thousand_servers_does_not_overflow() -> None:
    assert 0.1 < Station(9900.0, 10.0, servers=1000).latency_s < 0.2


@given(rate=st.floats(0.0, 1e4), mu=st.floats(1.0, 1e3))
def test_a_server_more_never_raises_latency_and_helps_less_each_time(
    rate: float, mu: float
) -> None:
    station = Station(rate, mu)
    gains = []
    for _ in range(5):
        gains.append(station.gain_s)
        station.add()
    assert all(gain >= -1e-12 for gain in gains)
    assert all(a >= b - 1e-12 for a, b in pairwise(gains[1:]))


def test_fewest_servers_meets_the_target_and_one_fewer_would_not() -> None:
    assert fewest_servers({"a": (90.0, 10.0, 1.0)}, 0.12, 1.0, 30) == {"a": 12}
    assert Station(90.0, 10.0, servers=11).latency_s > 0.12


def test_fewest_servers_adds_where_it_helps_the_whole_network_most() -> None:
    # b is visited ten times per record, so a server there saves ten times as much.
    rates = {"a": (9.0, 10.0, 1.0), "b": (90.0, 100.0, 10.0)}
    found = fewest_servers(rates, 0.6, 1.0, 30)
    assert found is not None
    each = {n: Station(*rates[n], servers=k) for n, k in found.items()}
    assert sum(s.latency_s for s in each.values()) <= 0.6
    assert found["b"] >= found["a"]


def test_fewest_servers_corrects_a_model_that_was_too_optimistic() -> None:
    assert fewest_servers({"a": (90.0, 10.0, 1.0)}, 0.2, 1.0, 30) == {"a": 10}
    assert fewest_servers({"a": (90.0, 10.0, 1.0)}, 0.2, 1.8, 30) == {"a": 12}


@pytest.mark.parametrize(
    ("rate", "target_s", "available"),
    [(90.0, 0.1, 30), (90.0, 0.05, 30), (90.0, 0.12, 5), (1e15, 0.12, 30)],
)
def test_fewest_servers_knows_what_is_infeasible(
    rate: float, target_s: float, available: int
) -> None:
    # A record takes 0.1 s by itself; 12 servers are needed, and at most twice those there are.
    assert fewest_servers({"a": (rate, 10.0, 1.0)}, target_s, 1.0, available) is None


def run(made: Drs, one: object, cycles: int = 4) -> list:
    return [made.decide(seen(float(t), a=one)) for t in range(cycles)]


def test_drs_first_decides_after_two_intervals() -> None:
    busy = view([50.0] * 8, 100.0, slots=2)
    assert [bool(d) for d in run(Drs(0.0, interval_s=1.5), busy)] == [False, False, False, True]


def test_drs_adds_one_slot_at_a_time_until_it_has_what_the_model_wants() -> None:
    made = Drs(0.2, interval_s=1.0)
    slots, seen_slots = 2, []
    for cycle in range(8):
        decision = made.decide(seen(float(cycle), a=view([50.0] * 16, 100.0, slots=slots)))
        if decision:
            change = decision.changes["a"]
            assert change.kind is ChangeKind.SCALE_OUT
            slots = change.assignment.slots
            made.applied("a", change, 0.1)
        seen_slots.append(slots)
    # 800/s at 0.8 x 100/s: floor(10) + 1; the margin makes it eleven, not nine.
    assert seen_slots == [2, 2, 3, 4, 5, 6, 7, 8]
    assert decision.numbers["a.wanted"] == 11


def test_drs_gives_slots_back_by_merging_them() -> None:
    made = Drs(0.2, interval_s=1.0)
    decision = run(made, view([1.0] * 8, 100.0, slots=4))[-1]
    assert decision.changes["a"].kind is ChangeKind.SCALE_IN
    assert decision.changes["a"].assignment.slots == 3


def test_drs_changes_nothing_where_the_target_cannot_be_met() -> None:
    assert not any(run(Drs(0.2, interval_s=1.0), view([500.0] * 8, 100.0, slots_max=4)))


def test_drs_takes_no_more_slots_than_there_are() -> None:
    made = Drs(0.2, interval_s=1.0)
    decision = run(made, view([50.0] * 8, 100.0, slots=3, slots_max=4))[-1]
    assert decision.numbers["a.wanted"] == 4


def test_drs_asks_for_more_when_latency_is_above_what_the_model_says() -> None:
    calm = view([20.0] * 8, 100.0, slots=2, latency_s=0.01, bound_s=0.2)
    slow = view([20.0] * 8, 100.0, slots=2, latency_s=0.3, bound_s=0.2)
    wants = [run(Drs(0.0, interval_s=1.0), one)[2] for one in (calm, slow)]
    assert not wants[0]
    assert wants[1].numbers["a.wanted"] == 3


def test_drs_judges_the_bound_above_the_floor() -> None:
    # Two slots take 278 ms, three 119 ms; 250 ms are left above the floor.
    idle = view([2.0] * 8, 10.0, slots=2, latency_s=0.4, bound_s=0.65, floor_s=0.4)
    decision = run(Drs(0.0, interval_s=1.0), idle)[2]
    assert decision.numbers["a.wanted"] == 3


def test_drs_spends_one_end_to_end_bound_over_a_chain() -> None:
    made = Drs(0.0, interval_s=1.0)
    chain = {"b": ("a",)}
    first = view([25.0] * 8, 100.0, slots=3, latency_s=0.0)
    second = view([25.0] * 8, 300.0, slots=1, latency_s=0.0)
    for time_s in range(3):
        observation = seen(float(time_s), chain, a=first, b=second)
        decision = made.decide(replace(observation, end_to_end_s=0.02))
    # 14.4 ms + 10 ms; a slot more would save 3.6 ms in a and 6.2 ms in b.
    assert list(decision.changes) == ["b"]
    assert decision.changes["b"].assignment.slots == 2


def test_drs_does_not_balance_and_drs_lb_does() -> None:
    # Slot 0 is overloaded, slot 1 idle; two slots are enough for the sum, so DRS is content.
    skewed = view([45.0, 45.0, 0.0, 0.0], 100.0, slots=2, latency_s=0.5)
    assert not any(run(Drs(0.2, interval_s=1.0), skewed))
    decision = run(DrsBalanced(0.2, interval_s=1.0), skewed)[0]
    assert decision.changes["a"].kind is ChangeKind.BALANCE
    assert decision.rule == "drs-lb -> balance"


def test_drs_lb_leaves_an_operator_alone_that_a_balance_would_not_cure() -> None:
    # 210/s are too many for two slots, however they are spread.
    drowned = view([60.0, 90.0, 30.0, 30.0], 100.0, slots=2, latency_s=0.5)
    assert not DrsBalanced(0.2).decide(seen(0.0, a=drowned))


def test_drs_lb_does_not_balance_while_drs_scales() -> None:
    skewed = view([45.0, 45.0, 10.0, 10.0], 100.0, slots=2, latency_s=0.5)
    made = DrsBalanced(0.2)
    assert made.decide(seen(0.0, a=skewed)).changes["a"].kind is ChangeKind.BALANCE
    too_few = replace(skewed, slots_min=3)
    assert made.decide(seen(1.0, a=too_few)).changes["a"].kind is ChangeKind.SCALE_OUT


def test_the_margin_must_leave_something() -> None:
    with pytest.raises(ConfigError, match=r"drs-lb: epsilon=1\.0 is out of range"):
        DrsBalanced(1.0)
