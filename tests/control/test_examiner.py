"""Estimates from counters: hand-made vectors, true latencies, gaps and nonsense.

In a hand-made vector every column is a tick, which ends where its number stands::

    tick       0    1    2    3    4    5
    arrived         4    6    6    9    9
    completed       1    3    6    7    9
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from queues import samples, serve

from headgate.control.estimators.examiner import Examiner
from headgate.control.observation import OperatorView
from headgate.control.sample import Sample
from headgate.core.assignment import Assignment
from headgate.core.errors import ConfigError, NotReady

NAN = float("nan")
ONE = Assignment((0,), 1)
TWO = Assignment((0, 1), 2)


def sample(
    tick: int,
    arrived: Sequence[float],
    completed: Sequence[float],
    useful_s: Sequence[float] = (),
    assignment: Assignment | None = None,
    slot_ids: tuple[int, ...] | None = None,
) -> Sample:
    """Counters of one tick; one slot that is useful half the time unless said."""
    assignment = assignment or Assignment((0,) * len(arrived), 1)
    useful = useful_s or [0.05] * assignment.slots
    ids = slot_ids or tuple(range(assignment.slots))
    return Sample(
        tick, assignment, ids, np.array(arrived), np.array(completed), np.array(useful, dtype=float)
    )


def seen(examiner: Examiner) -> OperatorView:
    return examiner.view(bound_s=1.0, alert_s=0.1)


def why(examiner: Examiner) -> str:
    with pytest.raises(NotReady) as caught:
        seen(examiner)
    return str(caught.value)


def fed(rows: Sequence[tuple[float, float]], window_s: float = 0.5) -> Examiner:
    """One group on one slot; a row is (arrived, completed)."""
    examiner = Examiner(1, 0.1, window_s)
    for tick, (arrived, completed) in enumerate(rows, 1):
        examiner.add(sample(tick, [arrived], [completed]))
    return examiner


def test_latency_is_the_time_between_the_ticks_of_arrival_and_completion() -> None:
    """Record 1 waits 0 ticks, 2-3 wait 1, 4 waits 2, 5-6 wait 1, 7 waits 0, 8-9 wait 1."""
    view = seen(fed([(4, 1), (6, 3), (6, 6), (9, 7), (9, 9)]))
    assert view.latency_s[0] == pytest.approx(8 / 9 * 0.1)
    assert view.group_latency_s[0] == pytest.approx(8 / 9 * 0.1)


def test_only_completions_within_the_window_count() -> None:
    view = seen(fed([(4, 1), (6, 3), (6, 6), (9, 7), (9, 9)], window_s=0.2))
    assert view.latency_s[0] == pytest.approx(2 / 3 * 0.1)


def test_arrival_rate_is_the_count_over_the_window() -> None:
    view = seen(fed([(4, 1), (6, 3), (6, 6), (9, 7), (11, 9)], window_s=0.3))
    assert view.group_rate[0] == pytest.approx((11 - 6) / 0.3)
    assert view.backlog.tolist() == [2.0]


def test_what_nobody_has_read_waits_and_adds_to_the_latency_at_the_pace_of_the_window() -> None:
    """Group 1 completes 10 records in 0.2 s and has 100 more: 2 s; group 0 completes none."""
    examiner = Examiner(2, 0.1, 0.2)
    for tick in (1, 2):
        counted = sample(tick, [0, 5 * tick], [0, 5 * tick], [0.0, 0.05], TWO)
        examiner.add(replace(counted, unread=np.array([30.0, 100.0])))
    view = seen(examiner)
    assert view.backlog.tolist() == [30.0, 100.0]
    assert view.latency_s[1] == pytest.approx(2.0)
    assert np.isnan(view.latency_s[0])
    assert view.group_latency_s[1] == pytest.approx(0.0)
    examiner.add(
        sample(3, [0, 15], [0, 15], [0.0, 0.05], TWO)
    )  # who does not tell takes nothing back
    assert seen(examiner).backlog.tolist() == [30.0, 100.0]
    nothing = replace(sample(4, [0, 20], [0, 20], [0.0, 0.05], TWO), unread=np.zeros(2))
    examiner.add(nothing)
    assert seen(examiner).backlog.tolist() == [0.0, 0.0]
    assert seen(examiner).latency_s[1] == pytest.approx(0.0)


def test_window_is_rounded_up_to_whole_ticks() -> None:
    assert Examiner(1, 0.1, 0.25).window_s == pytest.approx(0.3)
    assert Examiner(1, 0.1, 0.3).window_s == pytest.approx(0.3)


def test_service_rate_is_smoothed_completions_over_useful_time() -> None:
    """10 / 0.05 = 200, then 200 + (100 - 200) / 8."""
    examiner = Examiner(1, 0.1, 0.1)
    examiner.add(sample(1, [10], [10], [0.05]))
    assert seen(examiner).service_rate[0] == pytest.approx(200.0)
    examiner.add(sample(2, [15], [15], [0.05]))
    assert seen(examiner).service_rate[0] == pytest.approx(187.5)
    assert seen(examiner).utilisation[0] == pytest.approx(0.5)


def test_an_idle_slot_keeps_its_service_rate() -> None:
    examiner = Examiner(1, 0.1, 0.1)
    examiner.add(sample(1, [10], [10], [0.05]))
    for tick in range(2, 50):
        examiner.add(sample(tick, [10], [10], [0.0]))
    assert seen(examiner).service_rate[0] == pytest.approx(200.0)


def test_a_record_longer_than_a_tick_is_measured_over_all_of_them() -> None:
    examiner = Examiner(1, 0.1, 0.1)
    for tick in range(1, 9):
        examiner.add(sample(tick, [tick], [tick // 4], [0.1]))
    assert seen(examiner).service_rate[0] == pytest.approx(2.5)


def test_slots_that_have_completed_nothing_take_the_mean_of_the_others() -> None:
    examiner = Examiner(2, 0.1, 0.1)
    examiner.add(sample(1, [10, 0], [10, 0], [0.05, 0.0], TWO))
    assert seen(examiner).service_rate.tolist() == [200.0, 200.0]


def test_without_any_service_rate_there_is_no_view_unless_one_is_given() -> None:
    assert "no service rate" in why(fed([(3, 0)], window_s=0.1))
    examiner = Examiner(1, 0.1, 0.1, initial_service_rate=50.0)
    examiner.add(sample(1, [3], [0], [0.0]))
    assert seen(examiner).service_rate.tolist() == [50.0]


def test_completions_count_for_the_slot_that_owned_the_group_then() -> None:
    """Group 1 waits long on slot 0, moves to slot 1 and is quick there."""
    before, after = Assignment((0, 0), 2), Assignment((0, 1), 2, 1)
    examiner = Examiner(2, 0.1, 0.4)
    examiner.add(sample(1, [5, 5], [5, 0], [0.05, 0.0], before))
    examiner.add(sample(2, [5, 5], [5, 0], [0.05, 0.0], before))
    examiner.add(sample(3, [5, 5], [5, 5], [0.05, 0.0], before))
    examiner.add(sample(4, [5, 9], [5, 9], [0.0, 0.05], after))
    view = seen(examiner)
    assert view.latency_s.tolist() == pytest.approx([0.1, 0.0])
    assert view.group_latency_s.tolist() == pytest.approx([0.0, 5 * 0.2 / 9])


def test_a_slot_keeps_its_window_when_a_scale_in_renumbers_it() -> None:
    three, two = Assignment((0, 1, 2), 3), Assignment((0, 0, 1), 2, 1)
    examiner = Examiner(3, 0.1, 0.3)
    examiner.add(sample(1, [4, 0, 4], [4, 0, 0], [0.01, 0.0, 0.0], three, (7, 8, 9)))
    examiner.add(sample(2, [4, 0, 4], [4, 0, 4], [0.0, 0.0, 0.02], three, (7, 8, 9)))
    examiner.add(sample(3, [4, 0, 4], [4, 0, 4], [0.0, 0.0], two, (7, 9)))
    view = seen(examiner)
    assert view.slot_ids == (7, 9)
    assert view.latency_s.tolist() == pytest.approx([0.0, 0.1])
    assert view.service_rate.tolist() == pytest.approx([400.0, 200.0])


def test_a_new_slot_starts_with_its_sources_service_rate_and_converges_to_its_own() -> None:
    examiner = Examiner(3, 0.1, 0.1)
    two, three = Assignment((0, 1, 1), 2), Assignment((0, 1, 2), 3, 1)
    examiner.add(sample(1, [10, 5, 5], [10, 5, 5], [0.05, 0.1], two))
    examiner.add(sample(2, [10, 5, 5], [10, 5, 5], [0.0, 0.0, 0.0], three))
    assert seen(examiner).service_rate.tolist() == pytest.approx([200.0, 100.0, 100.0])
    for tick in range(3, 60):
        examiner.add(sample(tick, [10, 5, 5.0 * tick], [10, 5, 5.0 * tick], [0, 0, 0.1], three))
    assert seen(examiner).service_rate.tolist() == pytest.approx([200.0, 100.0, 50.0], rel=0.01)


def test_a_new_slot_inherits_nothing_of_one_that_is_gone() -> None:
    """Slot 8 leaves with 0.1 s of latency and 0.1 s of work on a record that it did not finish."""
    one, two = Assignment((0, 0), 1, 1), Assignment((0, 1), 2, 2)
    examiner = Examiner(2, 0.1, 0.5)
    examiner.add(sample(1, [10, 2], [10, 0], [0.05, 0.0], TWO, (7, 8)))
    examiner.add(sample(2, [10, 2], [10, 1], [0.0, 0.01], TWO, (7, 8)))
    examiner.add(sample(3, [10, 2], [10, 1], [0.0, 0.1], TWO, (7, 8)))
    examiner.add(sample(4, [10, 2], [10, 1], [0.0], one, (7,)))
    examiner.add(sample(5, [10, 2], [10, 1], [0.0, 0.0], two, (7, 9)))
    view = seen(examiner)
    assert np.isnan(view.latency_s[1])
    assert view.service_rate.tolist() == pytest.approx([200.0, 200.0])
    examiner.add(sample(6, [10, 10], [10, 10], [0.0, 0.045], two, (7, 9)))
    assert seen(examiner).service_rate.tolist() == pytest.approx([200.0, 200.0])


def test_a_replaced_slot_takes_the_service_rate_of_the_one_that_failed() -> None:
    examiner = Examiner(2, 0.1, 0.1)
    examiner.add(sample(1, [10, 5], [10, 5], [0.05, 0.1], TWO, (0, 1)))
    examiner.add(sample(2, [10, 5], [10, 5], [0.0, 0.0], TWO, (0, 2)))
    assert seen(examiner).service_rate.tolist() == pytest.approx([200.0, 50.0])


def test_missing_samples_are_put_on_the_line_and_nothing_is_seen_meanwhile() -> None:
    """Ticks 3 to 5 are lost; 8 arrived and 4 completed in the four ticks up to 6."""
    rows = [(2.0, 1.0), (4.0, 2.0), (6.0, 3.0), (8.0, 4.0), (10.0, 5.0), (12.0, 6.0)]
    whole, torn = fed(rows), fed(rows[:2])
    assert "2 of 5 ticks" in why(torn)
    torn.add(sample(6, [12], [6]))
    for name in ("latency_s", "group_rate", "backlog"):
        assert getattr(seen(torn), name) == pytest.approx(getattr(seen(whole), name))


def test_a_missing_counter_of_one_group_holds_the_view_back_until_it_is_on_the_line() -> None:
    whole, torn = Examiner(2, 0.1, 0.3), Examiner(2, 0.1, 0.3)
    for tick in range(1, 8):
        arrived, completed = [4.0 * tick, 6.0 * tick], [2.0 * tick, 6.0 * tick]
        whole.add(sample(tick, arrived, completed))
        if tick in {4, 5}:
            completed = [NAN, completed[1]]
            torn.add(sample(tick, arrived, completed))
            assert why(torn) == "tick 4 has no valid counters of key group 0"
        elif tick == 6:
            torn.add(sample(tick, [NAN, arrived[1]], completed))
            assert "tick 6" in why(torn)
        else:
            torn.add(sample(tick, arrived, completed))
    for name in ("latency_s", "group_latency_s", "group_rate", "backlog"):
        assert getattr(seen(torn), name) == pytest.approx(getattr(seen(whole), name))


def test_useful_time_is_not_interpolated() -> None:
    """8 completions in the gap say nothing of the service rate."""
    examiner = Examiner(1, 0.1, 0.1)
    examiner.add(sample(1, [10], [10], [0.05]))
    examiner.add(sample(4, [28], [28], [NAN]))
    assert seen(examiner).service_rate[0] == pytest.approx(200.0)


@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf"), -1.0, 1e300])
@pytest.mark.parametrize("counter", ["arrived", "completed"])
def test_an_absurd_counter_is_missing_and_never_an_error(counter: str, value: float) -> None:
    examiner = fed([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)])
    examiner.add(replace(sample(6, [6], [6]), **{counter: np.array([value])}))
    assert why(examiner) == "tick 6 has no valid counters of key group 0"
    examiner.add(sample(7, [7], [7]))
    assert seen(examiner).group_rate[0] == pytest.approx(10.0)


def test_more_completed_than_arrived_is_missing() -> None:
    examiner = fed([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)])
    examiner.add(sample(6, [6], [7]))
    assert "key group 0" in why(examiner)


@pytest.mark.parametrize("useful", [NAN, float("inf"), -0.1, 0.0, 1e-300, 1e308])
def test_absurd_useful_time_does_not_touch_the_service_rate(useful: float) -> None:
    examiner = fed([(10, 10), (20, 20)], window_s=0.1)
    examiner.add(sample(3, [30], [30], [useful]))
    view = seen(examiner)
    assert view.service_rate[0] == pytest.approx(200.0)
    assert np.isfinite(view.utilisation[0])


def test_a_sample_of_another_shape_is_ignored_and_its_tick_missing() -> None:
    examiner = fed([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)])
    examiner.add(sample(6, [6, 6], [6, 6]))
    assert "tick 6 does not have exactly one counter for each of 1 key groups" in why(examiner)
    examiner.add(sample(7, [7], [7]))
    assert seen(examiner).group_rate[0] == pytest.approx(10.0)


def test_a_late_sample_is_ignored() -> None:
    examiner = fed([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)])
    examiner.add(sample(4, [400], [400]))
    assert seen(examiner).group_rate[0] == pytest.approx(10.0)


def test_one_fallen_counter_is_a_wrong_sample_and_bridged() -> None:
    examiner = fed([(11, 11), (12, 12), (13, 13), (14, 14), (15, 15)])
    examiner.add(sample(6, [3], [3]))
    assert "tick 6" in why(examiner)
    examiner.add(sample(7, [17], [17]))
    assert seen(examiner).group_rate[0] == pytest.approx(10.0)


def test_a_counter_that_starts_again_starts_a_new_window_and_keeps_service_rates() -> None:
    examiner = fed([(100, 100), (200, 200), (300, 300), (400, 400), (500, 500)])
    for tick in range(6, 13):
        examiner.add(sample(tick, [tick], [tick], [0.0]))
        if tick < 11:
            assert why(examiner)
    view = seen(examiner)
    assert view.group_rate[0] == pytest.approx(10.0)
    assert view.service_rate[0] == pytest.approx(2000.0)


def test_ticks_that_start_again_start_a_new_window() -> None:
    examiner = fed([(float(tick), float(tick)) for tick in range(1, 30)])
    for tick in range(1, 6):
        examiner.add(sample(tick, [3.0 * tick], [3.0 * tick]))
    assert seen(examiner).group_rate[0] == pytest.approx(30.0)


def test_a_long_gap_is_not_bridged() -> None:
    examiner = fed([(float(tick), float(tick)) for tick in range(1, 30)])
    examiner.add(sample(10**9, [30.0], [30.0]))
    assert why(examiner) == "1 of 5 ticks have passed"


@pytest.mark.parametrize(("window_s", "longest"), [(0.5, 100), (1.0, 100), (2.0, 200)])
def test_a_gap_of_ten_windows_and_a_hundred_ticks_is_bridged(window_s: float, longest: int) -> None:
    for gap, bridged in ((longest, True), (longest + 1, False)):
        examiner = fed([(float(tick), float(tick)) for tick in range(1, 60)], window_s)
        tick = 59 + gap
        examiner.add(sample(tick, [float(tick)], [float(tick)]))
        if bridged:
            assert seen(examiner).group_rate[0] == pytest.approx(10.0)
        else:
            assert "ticks have passed" in why(examiner)


def test_a_counter_that_never_comes_back_does_not_fill_the_memory() -> None:
    examiner = Examiner(2, 0.1, 0.5)
    for tick in range(1, 2000):
        group_0 = 1.0 if tick == 1 else NAN
        examiner.add(sample(tick, [group_0, tick], [group_0, tick]))
        assert len(examiner._waiting) <= 100
    assert "key group 0" in why(examiner)


def test_a_record_may_wait_far_longer_than_the_window() -> None:
    """One record per tick, none completed for 400 ticks, then all: they waited 400 ... 1 ticks."""
    examiner = Examiner(1, 0.1, 0.2)
    for tick in range(1, 401):
        examiner.add(sample(tick, [tick], [0], [0.1]))
    examiner.add(sample(401, [400], [400], [0.1]))
    assert seen(examiner).latency_s[0] == pytest.approx(0.1 * (1 + 400) / 2)


def test_a_first_sample_of_a_running_job_is_where_counting_begins() -> None:
    examiner = Examiner(1, 0.1, 0.2)
    for tick in range(500, 504):
        examiner.add(sample(tick, [1000 + 2 * tick], [900 + 2 * tick]))
    view = seen(examiner)
    assert view.group_rate[0] == pytest.approx(20.0)
    assert view.backlog[0] == 100.0


def test_nothing_is_seen_before_the_window_is_full() -> None:
    examiner = Examiner(1, 0.1, 0.3)
    assert why(examiner) == "no sample has come yet"
    examiner.add(sample(1, [NAN], [1]))
    assert "the first sample, of tick 1" in why(examiner)
    for tick in (2, 3):
        examiner.add(sample(tick, [tick], [tick]))
        assert why(examiner) == f"{tick - 1} of 3 ticks have passed"
    examiner.add(sample(4, [4], [4]))
    assert seen(examiner).slots == 1


def test_a_new_window_takes_effect_once_it_is_full_and_forgets_no_service_rate() -> None:
    examiner = fed([(10.0 * tick, 10.0 * tick) for tick in range(1, 8)])
    examiner.window_s = 0.2
    assert why(examiner) == "0 of 2 ticks have passed"
    for tick in (8, 9):
        examiner.add(sample(tick, [70.0 + tick], [70.0 + tick], [0.0]))
    view = seen(examiner)
    assert view.window_s == pytest.approx(0.2)
    assert view.group_rate[0] == pytest.approx(9 / 0.2)
    assert view.service_rate[0] == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"key_groups": 0}, "key_groups=0"),
        ({"delta_s": 0.0}, "delta_s=0"),
        ({"window_s": float("inf")}, "window_s=inf"),
        ({"window_s": 3.6e7, "key_groups": 64}, r"of 3\.6e\+07 s .*; use 78125 s at most"),
        ({"eta": 0.0}, "eta=0"),
        ({"initial_service_rate": 0.0}, "initial_service_rate=0"),
    ],
)
def test_parameters_out_of_range_are_refused(changed: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Examiner(**{"key_groups": 1, "delta_s": 0.1, "window_s": 1.0, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(("seed", "load"), [(1, 0.3), (2, 0.7), (3, 0.95), (4, 1.3)])
def test_latency_is_within_a_tick_of_the_true_one(seed: int, load: float) -> None:
    """Every window, every slot and group, also with a growing backlog."""
    rng = np.random.default_rng(seed)
    groups, slots, delta_s, window, ticks = 4, 2, 0.1, 10, 300
    service_s = np.array([0.01, 0.004])
    rates = np.repeat(load / service_s / 2, 2) * rng.uniform(0.7, 1.3, groups)
    served = serve(rng, rates, service_s, ticks * delta_s, slots)
    tick_of = np.ceil(served.end_s / delta_s - 1e-12)
    latency = served.end_s - served.arrival_s
    examiner = Examiner(groups, delta_s, window * delta_s)
    compared = 0
    for counters in samples(served, groups, slots, delta_s, ticks):
        examiner.add(counters)
        if counters.tick < window:
            continue
        view = seen(examiner)
        recent = (tick_of > counters.tick - window) & (tick_of <= counters.tick)
        for estimates, owner in (
            (view.latency_s, served.slot),
            (view.group_latency_s, served.group),
        ):
            for place, estimate in enumerate(estimates):
                mine = latency[recent & (owner == place)]
                assert np.isnan(estimate) == (len(mine) == 0)
                if len(mine):
                    assert abs(estimate - mine.mean()) <= delta_s
                    compared += 1
    assert compared > 1000


def test_service_rates_of_unequal_slots_are_within_five_percent() -> None:
    """Slots of speed 400, 800 and 1,200 records/s, loaded to 70 %."""
    rng = np.random.default_rng(5)
    service_s = 1 / np.array([400.0, 800.0, 1200.0])
    served = serve(rng, 0.7 / service_s, service_s, 60.0, 3)
    examiner = Examiner(3, 0.1, 1.0)
    rates = []
    for counters in samples(served, 3, 3, 0.1, 600):
        examiner.add(counters)
        if counters.tick > 50:
            rates.append(seen(examiner).service_rate)
    assert np.mean(rates, axis=0) == pytest.approx(1 / service_s, rel=0.05)


def test_any_nonsense_leaves_a_valid_view_or_none() -> None:
    """Valid by construction, whatever came."""
    rng = np.random.default_rng(6)
    nonsense = [NAN, np.inf, -np.inf, -1.0, 0.0, 1e-320, 1e308, 2.0**53, 3.5]
    viewed = 0
    for _ in range(60):
        groups = int(rng.integers(1, 6))
        examiner = Examiner(groups, 0.1, float(rng.choice([0.1, 0.3, 1.0])))
        tick, epoch, arrived = 1, 0, np.zeros(groups)
        for _ in range(150):
            slots = int(rng.integers(1, groups + 1))
            assignment = Assignment(tuple(rng.integers(0, slots, groups).tolist()), slots, epoch)
            epoch += 1
            tick += int(rng.choice([1, 1, 1, 1, 1, 1, 2, 0, -3, 7, -500, 4000]))
            arrived = arrived + rng.integers(0, 5, groups)
            spoilt = rng.random((2, groups)) < 0.01
            counters = np.where(spoilt, rng.choice(nonsense, (2, groups)), [arrived, arrived])
            useful = np.where(rng.random(slots) < 0.3, rng.choice(nonsense, slots), 0.05)
            ids = tuple(rng.permutation(8)[:slots].tolist())
            examiner.add(Sample(tick, assignment, ids, counters[0], counters[1], useful))
            try:
                view = seen(examiner)
            except NotReady:
                continue
            viewed += 1
            for values in (view.group_rate, view.service_rate, view.utilisation, view.backlog):
                assert np.all(np.isfinite(values) & (values >= 0.0))
            for values in (view.latency_s, view.group_latency_s):
                assert np.all(np.isnan(values) | (np.isfinite(values) & (values >= 0.0)))
            assert view.service_rate.min() > 0.0
            assert len(view.slot_ids) == len(view.latency_s) == view.slots
    assert viewed > 1000


def test_utilisation_is_over_the_ticks_that_are_known() -> None:
    examiner = Examiner(1, 0.1, 0.2)
    examiner.add(sample(1, [10], [10], [0.05]))
    examiner.add(sample(2, [20], [20], [NAN]))
    assert seen(examiner).utilisation[0] == pytest.approx(0.5)


def test_a_slot_that_has_completed_nothing_is_taken_for_an_average_one() -> None:
    examiner = Examiner(3, 0.1, 0.1)
    assignment = Assignment((0, 1, 2), 3)
    examiner.add(sample(1, [10, 20, 0], [10, 20, 0], [0.05, 0.05, 0.0], assignment))
    assert seen(examiner).service_rate.tolist() == [200.0, 400.0, 300.0]
