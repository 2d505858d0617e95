"""Floors and targets against plain formulas: what is left out, which quantile, and what an SLO asks."""

from __future__ import annotations

import math
import random

import pytest

from headgate.core.errors import ConfigError
from headgate.core.slo import ALERT_S, parse_slo
from headgate.loop.batch_floor import STEPS_MIN, BatchFloor
from headgate.loop.floor import Floor
from headgate.loop.steering import LatencyTarget, budget_s, end_to_end_s, settings_of, targets_of


def test_a_floor_is_a_low_decile_of_calm_cycles() -> None:
    """Every cycle is judged again by the words of the docstring, and the last 128 are remembered."""
    dice, floor, calm, least = random.Random(1), Floor(), [], math.inf
    for _ in range(800):
        latency_s, utilisation = (
            dice.choice([0.5, 1.0, 1.5, 2.0, 4.0]),
            dice.choice([0.1, 0.25, 0.26]),
        )
        utilisation = math.nan if dice.random() < 0.05 else utilisation
        waiting_s, period_s = dice.choice([0.0, 1.5, 1.51, 3.0]), dice.choice([0.75, 1.0, math.inf])
        floor.add(latency_s, utilisation, waiting_s, period_s)
        if latency_s > 2 * period_s or waiting_s > 2 * period_s:
            continue
        least = min(least, latency_s)
        if waiting_s > 3 * least or not utilisation <= 0.25:
            continue
        calm.append(latency_s)
        newest = sorted(calm[-128:])
        assert floor.value_s == newest[len(newest) // 10]
        assert floor.least_s == least
    assert len(calm) > 130


def test_a_floor_of_batches_is_measured_or_the_part_beside_the_slots() -> None:
    assert STEPS_MIN == 20
    for seed, busy in ((1, True), (2, False), (3, True)):
        dice, floor, measured = random.Random(seed), BatchFloor(), Floor()
        beside, least, at_ms, before_s = [], math.inf, 0.0, 0.0
        for step in range(1, 200):
            period_s = dice.choice([0.5, 1.0, 2.0])
            at_ms += period_s * 1e3
            busy_s = dice.choice([0.3, 0.6]) if busy else dice.choice([0.01, 0.02, 0.6])
            waiting = dice.random() < (0.95 if seed == 3 and step < 60 else 0.4)
            behind, latency_s = dice.random() < 0.1, dice.choice([None, 0.9, 1.4])
            floor.add(at_ms, latency_s, busy_s, waiting, behind)
            before_s, last_s = busy_s, before_s
            if step > 5 and not behind:
                beside_s = max(0.0, period_s - last_s)
                least = min(least, beside_s)
                beside += [beside_s] * (not waiting)
                if latency_s is not None and not waiting:
                    measured.add(latency_s, busy_s / period_s, period_s=period_s)
            if step < 20:
                expected = 0.0
            elif measured.value_s or math.isinf(least):
                expected = measured.value_s
            elif not beside:
                expected = 1.5 * least
            else:
                newest = sorted(beside[-128:])
                expected = 1.5 * newest[len(newest) // 10]
            assert floor.value_s == pytest.approx(expected), (seed, step)


@pytest.mark.parametrize(
    ("text", "floor_s", "bound_s"),
    [
        ("mean < 3 s over 1 s", 5.0, 3.0),
        ("p50 < 3 s over 1 s", 1.0, 3.0),
        ("p95 < 3 s over 1 s", 0.0, 3.0 / math.log(20)),
        ("p95 < 3 s over 1 s", 1.0, 1.0 + 2.0 / math.log(20)),
        ("p95 < 3 s over 1 s", 9.0, 1.5 + 1.5 / math.log(20)),
        ("max < 3 s over 1 s", 0.0, 3.0 / math.log(1000)),
    ],
)
def test_a_percentile_asks_for_a_mean_below_it(text: str, floor_s: float, bound_s: float) -> None:
    assert LatencyTarget(parse_slo(text)).mean_bound_s(floor_s) == pytest.approx(bound_s)


def test_an_alert_grows_with_the_floor_unless_somebody_chose_it() -> None:
    usual = LatencyTarget(parse_slo("mean < 3 s over 1 s"))
    assert [usual.alert_s(floor_s) for floor_s in (0.0, 0.1, 0.5, 9.0)] == [
        ALERT_S,
        ALERT_S,
        0.25,
        1.5,
    ]
    short = LatencyTarget(parse_slo("mean < 100 ms over 1 s"))
    assert short.alert_s(0.0) == pytest.approx(0.05)
    assert short.alert_s(5.0) == pytest.approx(0.05)


def test_each_operator_has_the_tightest_of_its_slos() -> None:
    slos = [
        parse_slo("operator a: mean < 2 s over 1 s"),
        parse_slo("mean < 3 s over 5 s in 90 % of windows"),
        parse_slo("mean < 4 s over 1 s"),
    ]
    found = targets_of(slos, ["a", "b"])
    assert {name: target.slo for name, target in found.items()} == {"a": slos[0], "b": slos[1]}
    settings = settings_of(found, slots_min=2, slots_max=9, unsplittable={"a": "order counts"})
    a, b = settings["a"], settings["b"]
    assert (a.bound_s, a.window_s, a.slots_min, a.slots_max, a.success) == (2.0, 1.0, 2, 9, 0.99)
    assert (b.bound_s, b.window_s, b.alert_s, b.success) == (3.0, 5.0, ALERT_S, 0.9)
    assert (a.unsplittable, b.unsplittable) == (
        "order counts",
        "the engine does not split key groups",
    )
    for text, says in (
        ("juice >= 0.9", "bounds no latency; a single query is steered by latency only"),
        ("operator aa: mean < 1 s over 1 s", 'names the unknown operator "aa"; did you mean "a"'),
        ("operator zzz: mean < 1 s over 1 s", 'the unknown operator "zzz"; this query has a, b.'),
    ):
        with pytest.raises(ConfigError) as refused:
            targets_of([parse_slo(text)], ["a", "b"])
        assert says in str(refused.value)


def test_the_end_to_end_bound_is_the_tightest_and_only_of_several_operators() -> None:
    slos = [
        parse_slo("end-to-end: mean < 4 s over 1 s"),
        parse_slo("p95 < 3 s over 1 s"),
        parse_slo("mean < 1 s over 1 s"),
    ]
    assert end_to_end_s(slos, ["a", "b"]) == pytest.approx(3.0 / math.log(20))
    assert end_to_end_s(slos, ["a"]) is None
    assert end_to_end_s(slos[2:], ["a", "b"]) is None


def test_the_budget_is_a_share_of_the_tightest_bound() -> None:
    assert budget_s([]) is None
    slos = [parse_slo("mean < 4 s over 1 s"), parse_slo("mean < 3 s over 1 s")]
    found = budget_s(slos)
    assert found == pytest.approx(0.8 * 3.0)


def test_a_floor_of_batches_forgets_what_is_128_steps_ago() -> None:
    """Batches that have become slower, with slots too busy for a measured floor."""
    floor, at_ms = BatchFloor(), 0.0
    for step in range(260):
        at_ms += 500.0 if step < 100 else 2000.0
        floor.add(at_ms, 0.9, 0.3 if step < 100 else 1.2, waiting=False)
        if step == 99:
            assert floor.value_s == pytest.approx(1.5 * (0.5 - 0.3))
        if step == 99 + 128 - 128 // 10 + 1:
            assert floor.value_s == pytest.approx(1.5 * (2.0 - 1.2))
    assert floor.value_s == pytest.approx(1.5 * (2.0 - 1.2))
