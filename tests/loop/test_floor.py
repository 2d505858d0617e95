"""The floor is what a nearly idle job cannot go below."""

from __future__ import annotations

from headgate.loop.floor import Floor


def test_the_floor_is_unknown_before_an_idle_cycle() -> None:
    floor = Floor()
    floor.add(0.2, utilisation=0.9)
    assert floor.value_s == 0.0


def test_the_floor_is_a_low_quantile_of_idle_cycles() -> None:
    floor = Floor()
    for hundredths in range(40, 60):
        floor.add(hundredths / 100, utilisation=0.1)
    floor.add(0.01, utilisation=0.9)
    assert floor.value_s == 0.42


def test_one_lucky_cycle_is_not_the_floor() -> None:
    floor = Floor()
    for latency_s in [0.4] * 20 + [0.0]:
        floor.add(latency_s, utilisation=0.1)
    assert floor.value_s == 0.4


def test_a_slower_engine_has_a_new_floor_after_a_while() -> None:
    floor = Floor()
    for latency_s in [0.4] * 200 + [0.8] * 128:
        floor.add(latency_s, utilisation=0.1)
    assert floor.value_s == 0.8


def test_a_cycle_whose_utilisation_is_not_known_does_not_count() -> None:
    floor = Floor()
    floor.add(0.2, utilisation=float("nan"))
    assert floor.value_s == 0.0
