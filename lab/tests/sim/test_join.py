"""The simulated join: its work, its latency, what a switch costs, and the loop around it."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.control.decision import Change, ChangeKind
from headgate.control.registry import policy
from headgate.core.assignment import rescale, spread
from headgate.core.errors import ConfigError, ProtocolError
from headgate.workloads.rates import StepRate
from headgate_lab.sim.join import OPERATOR, JoinEngine, JoinModel, simulate_join


def arrivals(*steps: tuple[float, float], until_s: float) -> np.ndarray:
    rate = StepRate(steps)
    return rate.time_of(np.arange(int(rate.count(until_s))))


def test_work_grows_with_the_square_of_the_rate() -> None:
    for rate in (100.0, 200.0):
        arrival_s = arrivals((0.0, rate), until_s=40.0)
        comparisons = JoinModel(10.0, 1e6).comparisons(arrival_s)
        filled = (arrival_s > 20.0) & (arrival_s <= 30.0)
        # R^2 WS / 2 per second.
        assert comparisons[filled].sum() / 10.0 == pytest.approx(rate**2 * 10.0 / 2, rel=0.01)


def test_the_window_fills_from_nothing_and_empties_after_a_pause() -> None:
    model = JoinModel(10.0, 1e6)
    assert model.comparisons(np.array([0.0, 1.0, 2.0, 3.0, 50.0])).tolist() == [0, 0.5, 1, 1.5, 0]


def test_a_given_number_of_stored_records_is_met_whatever_has_arrived() -> None:
    model = JoinModel(10.0, 1e6, stored_records=7.0)
    assert model.comparisons(np.array([0.0, 1.0])).tolist() == [7.0, 7.0]
    assert model.rate_at(2) == pytest.approx(2e6 / 7.0)


def test_the_sustainable_rate_is_the_one_whose_work_is_the_capacity() -> None:
    model = JoinModel(10.0, 1e6)
    rate = model.rate_at(4)
    assert rate**2 * 10.0 / 2 == pytest.approx(4e6)


def test_a_record_is_done_when_the_slot_with_the_most_keys_is() -> None:
    # 10 keys on 3 slots: 4, 3 and 3; 1000 comparisons at 1000/s are 0.4 s for the first.
    model = JoinModel(10.0, 1000.0, slots=3, virtual_keys=10, stored_records=1000.0)
    engine = JoinEngine(model, np.array([0.05, 0.05]), 0.1)
    for _ in range(10):
        engine.advance()
    assert engine.done_s.tolist() == pytest.approx([0.45, 0.85])
    assert engine.served == 2


def stepped(switch_s: float) -> JoinEngine:
    """Two slots, 0.1 s a record and slot; asked at 0.1 s for four."""
    model = JoinModel(
        10.0, 1000.0, slots=2, virtual_keys=4, stored_records=200.0, switch_s=switch_s
    )
    engine = JoinEngine(model, np.array([0.0, 0.05, 0.3, 0.4]), 0.1)
    engine.advance()
    four = rescale(spread(2, 4), 4)
    engine.apply(OPERATOR, Change(ChangeKind.RESCALE, four, (0, 1, None, None)))
    return engine


def test_a_switch_waits_for_the_next_record_and_for_what_is_before_it() -> None:
    engine = stepped(switch_s=0.02)
    applied = [engine.advance() for _ in range(5)]
    # Records 0 and 1 take until 0.2; record 2 comes at 0.3, and is the first of the new epoch.
    assert [round(at, 3) for at in applied if at is not None] == [0.32]
    assert engine.assignment(OPERATOR).slots == 4
    assert engine.done_s[2:].tolist() == pytest.approx([0.37, 0.45])
    (switch,) = engine.switches
    assert (switch.before, switch.after) == (2, 4)
    assert switch.took_s == pytest.approx(0.22)


def test_what_waits_at_the_sources_comes_behind_a_switch() -> None:
    model = JoinModel(
        10.0, 1000.0, 1, virtual_keys=4, stored_records=90.0, switch_s=0.0, buffer_records=2
    )
    engine = JoinEngine(model, np.full(50, 0.0), 0.1)
    engine.advance()
    engine.apply(OPERATOR, Change(ChangeKind.RESCALE, rescale(spread(1, 4), 2), (0, None)))
    applied = [engine.advance() for _ in range(4)]
    # One record is done at 0.09, two more are in the buffer: the others do not delay the switch.
    assert [round(at, 3) for at in applied if at is not None] == [0.27]


def test_in_the_tick_of_a_switch_useful_time_goes_with_the_keys() -> None:
    engine = stepped(switch_s=0.0)
    for _ in range(6):
        engine.advance()
    for sample in engine.collect()[OPERATOR]:
        assert sample.useful_s.tolist() == pytest.approx(
            [sample.useful_s.mean()] * len(sample.slot_ids)
        )


def test_without_a_next_record_there_is_no_switch() -> None:
    model = JoinModel(10.0, 1000.0, slots=1, virtual_keys=4, stored_records=1.0)
    engine = JoinEngine(model, np.array([0.01]), 0.1)
    engine.advance()
    engine.apply(OPERATOR, Change(ChangeKind.RESCALE, rescale(spread(1, 4), 2), (0, None)))
    assert [engine.advance() for _ in range(20)] == [None] * 20


def test_one_switch_at_a_time() -> None:
    engine = stepped(switch_s=0.02)
    with pytest.raises(ProtocolError, match="decide again"):
        engine.apply(OPERATOR, Change(ChangeKind.RESCALE, rescale(spread(2, 4), 3), (0, 1, None)))


def test_counters_never_fall_and_count_each_record_once_over_all_keys() -> None:
    engine = stepped(switch_s=0.0)
    for _ in range(6):
        engine.advance()
    samples = engine.collect()[OPERATOR]
    completed = np.array([sample.completed for sample in samples])
    assert (np.diff(completed, axis=0) >= 0).all()
    assert completed[-1].sum() == pytest.approx(4.0)
    assert samples[-1].arrived.sum() == pytest.approx(4.0)
    assert samples[-1].slot_ids == (0, 1, 2, 3)
    assert engine.collect()[OPERATOR] == []


def test_the_threshold_controller_keeps_a_join_within_its_band() -> None:
    model = JoinModel(5.0, 1e5, slots=1, virtual_keys=60)
    arrival_s = arrivals((0.0, 300.0), until_s=30.0)
    run = simulate_join(model, arrival_s, policy("threshold"), 30.0, slots_max=16)
    # 300^2 x 5 / 2 = 225,000 comparisons/s are 2.25 slots: at most 90 % of 3.
    assert run.slots[-1] == 3
    line = run.timeline(1.0)
    assert line["comparisons_per_s"][-2] == pytest.approx(225_000, rel=0.02)
    assert line["slots"][0] == 1.0
    assert len(line["time_s"]) == 30


def test_nothing_is_decided_before_the_time_that_is_given() -> None:
    model = JoinModel(5.0, 1e5, slots=9, virtual_keys=60)
    arrival_s = arrivals((0.0, 300.0), until_s=12.0)
    run = simulate_join(model, arrival_s, policy("threshold"), 12.0, slots_max=16, from_s=9.0)
    assert min(switch.decided_s for switch in run.switches) >= 9.0


def test_the_same_run_twice_is_the_same() -> None:
    arrival_s = arrivals((0.0, 100.0), (10.0, 300.0), until_s=20.0)
    model = JoinModel(5.0, 1e5, virtual_keys=60)
    one, other = (
        simulate_join(model, arrival_s, policy("predictive(window_s=5)"), 20.0, slots_max=16)
        for _ in range(2)
    )
    assert one.done_s.tolist() == other.done_s.tolist()
    assert one.decisions == other.decisions


@pytest.mark.parametrize("name", ["window_s", "comparisons_per_s", "stored_records"])
def test_a_join_refuses_what_is_out_of_range(name: str) -> None:
    with pytest.raises(ConfigError, match=f"join: {name}="):
        JoinModel(**{"window_s": 1.0, "comparisons_per_s": 1.0, name: 0.0})
