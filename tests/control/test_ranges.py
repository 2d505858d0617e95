"""The ends of the range of each parameter are allowed; the next number outside is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from headgate.control.decorators import ActionLimit, Cooldown, Hysteresis
from headgate.control.estimators.forecast import Blend, HoltWinters, LastChange, Naive, Smoothed
from headgate.control.estimators.service_time import ServiceTimeEstimate
from headgate.control.fleet.henge import HengeParameters
from headgate.control.fleet.juice import Flow, job_juice
from headgate.control.fleet.unified_fleet import UnifiedFleetParameters
from headgate.control.limits import window_ticks
from headgate.control.pools.unified_pools import UnifiedPools
from headgate.control.registry import replica_policy
from headgate.control.slots.static import Static
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.control.slots.unified import Unified
from headgate.core.errors import ConfigError
from headgate.whatif.model import (
    MicroBatch,
    OperatorModel,
    ServiceTime,
    SlotPool,
    TreatmentCost,
)
from headgate_lab.rivals.regression import Regression
from headgate_lab.sim.fleet.juice_window import JuiceWindow

INF = math.inf
STATIC = Static(1)


def of(make: Callable[..., object], name: str, **others: Any) -> Callable[[Any], object]:
    return lambda value: make(**others, **{name: value})


CLOSED: list[tuple[str, Callable[[Any], object], float, float]] = [
    ("static: n", of(Static, "n"), 1, INF),
    ("hysteresis: cycles", of(Hysteresis, "cycles", policy=STATIC), 1, INF),
    ("action limit: per_minute", of(ActionLimit, "per_minute", policy=STATIC), 1, INF),
    ("streamswitch: epsilon", of(StreamSwitch, "epsilon"), 0.0, 0.99),
    ("streamswitch: steps", of(StreamSwitch, "steps"), 1, 1024),
    ("streamswitch: split", of(StreamSwitch, "split"), 0, 1),
    ("streamswitch: alert_s", of(StreamSwitch, "alert_s"), 0.0, INF),
    ("unified: epsilon", of(Unified, "epsilon"), 0.0, 0.99),
    ("unified: ahead_s", of(Unified, "ahead_s"), 0.0, INF),
    ("unified: even", of(Unified, "even"), 0, 1),
    ("unified: goal", of(Unified, "goal"), 0.0, 0.9999),
    ("unified: clear", of(Unified, "clear"), 1.0, INF),
    *(
        (f"unified: {name}", of(UnifiedFleetParameters, name), low, INF)
        for low, names in ((0.0, "epsilon ahead_s observe_s settle_s"), (1, "kept"))
        for name in names.split()
    ),
    *(
        (f"henge: {name}", of(HengeParameters, name), 0.0, INF)
        for name in "observe_s fresh_s gain blacklist_s input_change input_steady".split()
    ),
    ("henge: settle_s", of(HengeParameters, "settle_s", settle_max_s=INF), 0.0, INF),
    ("henge: settle_tolerance", of(HengeParameters, "settle_tolerance"), 0.0, 0.99),
    ("henge: settle_max_s", of(HengeParameters, "settle_max_s", settle_s=7.0), 7.0, INF),
    ("henge: stable_rounds", of(HengeParameters, "stable_rounds"), 0, INF),
    ("henge: patience_rounds", of(HengeParameters, "patience_rounds"), 1, INF),
    ("psps: blend", lambda n: replica_policy(f"psps(blend={n})"), 0, 1),
    ("psps: season", lambda n: replica_policy(f"psps(season={n})"), 0, 100_000),
    ("juice window: subwindows", of(JuiceWindow, "subwindows"), 1, INF),
    ("service time: weight", of(ServiceTimeEstimate, "weight", event_s=1.0), 0.0, 1.0),
    ("regression: window", of(Regression, "window"), 2, INF),
    ("last-change: fall", of(LastChange, "fall"), 0.0, 1.0),
    ("smoothed: alpha", of(Smoothed, "alpha"), 0.0, 1.0),
    ("holt-winters: period", of(HoltWinters, "period"), 2, INF),
    *(
        (f"holt-winters: {name}", of(HoltWinters, name, period=2), 0.0, 1.0)
        for name in ("alpha", "beta", "gamma", "damping")
    ),
    ("blend: memory", of(Blend, "memory", forecasters=[Naive()]), 0.0, 1.0),
    ("blend: forecasters", lambda n: Blend([Naive()] * n), 1, INF),
    ("service time: deviation_s", of(ServiceTime, "deviation_s", mean_s=1.0), 0.0, INF),
    ("slot pool: beta", of(SlotPool, "beta"), 0.0, 1.0),
    *(
        (f"treatment cost: {name}", of(TreatmentCost, name), 0.0, INF)
        for name in "sync_s per_group_s group_bytes record_bytes barrier_records delay_s".split()
    ),
    *(
        (f"micro batch: {name}", of(MicroBatch, name), 0.0, INF)
        for name in "plan_s read_s commit_s task_s moved_group_s trigger_s".split()
    ),
    ("micro batch: warm_up_s", lambda s: MicroBatch(warm_up_s=(0.5, s)), 0.0, INF),
    ("micro batch: cores", of(MicroBatch, "cores"), 1, INF),
]
"""Whose parameter, how it is given, the least and the most; a whole number where the least is an int."""

ABOVE_ZERO: list[tuple[str, Callable[[Any], object], float]] = [
    ("cool-down: cooldown_s", of(Cooldown, "cooldown_s", policy=STATIC), INF),
    ("unified: look_back_s", of(Unified, "look_back_s"), INF),
    ("unified: bound_s", of(UnifiedPools, "bound_s"), INF),
    *(
        (f"unified: {name}", of(UnifiedFleetParameters, name), INF)
        for name in ("look_back_s", "catch_up_s", "bound_s")
    ),
    *(
        (f"henge: {name}", of(HengeParameters, name), INF)
        for name in ("round_s", "congestion_threshold", "slots_per_unit")
    ),
    *((f"henge: {name}", of(HengeParameters, name), 0.99) for name in ("reduction", "drop")),
    (
        "juice: weight of b",
        lambda weight: job_juice([Flow("a", "b", 1.0, 1.0, 0.0)], {"b": weight}),
        INF,
    ),
    ("service time: event_s", of(ServiceTimeEstimate, "event_s"), INF),
    ("blend: power", of(Blend, "power", forecasters=[Naive()]), INF),
    ("service time: mean_s", of(ServiceTime, "mean_s"), INF),
    ("service time: cap_per_s", of(ServiceTime, "cap_per_s", mean_s=1.0), INF),
    ("slot pool: alpha", of(SlotPool, "alpha"), INF),
    ("treatment cost: bandwidth_bytes_per_s", of(TreatmentCost, "bandwidth_bytes_per_s"), INF),
    *(
        (f"micro batch: {name}", of(MicroBatch, name), INF)
        for name in "budget_s poll_s backlog_age_max_s initial_rate_per_s slot_rate_per_s".split()
    ),
    ("operator: selectivity", of(OperatorModel, "selectivity", service=ServiceTime(1.0)), INF),
]
"""As above, of what must be more than 0."""


def following(value: float, way: float) -> float:
    if isinstance(value, int):
        return value + int(math.copysign(1, way))
    return math.nextafter(value, way)


def refuse(name: str, make: Callable[[Any], object], value: float) -> str:
    with pytest.raises(ConfigError) as refused:
        make(value)
    where, _, parameter = name.partition(": ")
    text = str(refused.value)
    assert text.startswith(f"{where}: {parameter}={value!r} is out of range; use ")
    return text.partition("; use ")[2]


@pytest.mark.parametrize(("name", "make", "low", "high"), CLOSED, ids=[row[0] for row in CLOSED])
def test_a_parameter_may_have_the_ends_of_its_range_and_nothing_beyond(
    name: str, make: Callable[[Any], object], low: float, high: float
) -> None:
    most = "" if high == INF else f" and at most {high:g}"
    make(low)
    if name != "blend: forecasters":
        assert refuse(name, make, following(low, -INF)) == f"at least {low:g}{most}."
    if high < INF:
        make(high)
        assert refuse(name, make, following(high, INF)) == f"at least {low:g}{most}."


@pytest.mark.parametrize(("name", "make", "high"), ABOVE_ZERO, ids=[row[0] for row in ABOVE_ZERO])
def test_a_parameter_that_must_be_above_zero_may_be_as_small_as_it_likes(
    name: str, make: Callable[[Any], object], high: float
) -> None:
    most = "" if high == INF else f" and at most {high:g}"
    make(5e-324)
    for value in (0.0, -1.0, math.nan):
        assert refuse(name, make, value) == f"more than 0{most}."
    if high < INF:
        make(high)
        assert refuse(name, make, following(high, INF)) == f"more than 0{most}."


def test_a_blend_of_nothing_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"blend: forecasters=0 is out of range; use at least 1\."
    ):
        Blend([])


def test_a_jitter_may_be_negative_but_must_be_a_number() -> None:
    MicroBatch(jitter_s=(-1.0, -INF))
    with pytest.raises(ConfigError, match="jitter_s=nan"):
        MicroBatch(jitter_s=(0.0, math.nan))


def test_a_window_is_kept_in_ticks_rounded_up_and_no_longer_than_memory_allows() -> None:
    assert window_ticks(1.0, 0.1, 1) == 10
    assert window_ticks(1.01, 0.1, 1) == 11
    assert window_ticks(0.3, 0.1, 1) == 3
    assert window_ticks(0.01, 0.1, 1) == 1
    assert window_ticks(5_000_000.0, 0.1, 1) == 50_000_000
    assert window_ticks(1_000_000.0, 0.1, 5) == 10_000_000
    with pytest.raises(ConfigError) as refused:
        window_ticks(1_000_000.1, 0.1, 5)
    assert str(refused.value) == (
        "a window of 1e+06 s is too long to be kept for 5 key groups; use 1e+06 s at most."
    )
    for window_s in (0.0, -1.0, INF, math.nan):
        with pytest.raises(ConfigError, match="is out of range; use a finite length above 0"):
            window_ticks(window_s, 0.1, 1)
