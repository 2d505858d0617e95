"""Laws, loads and views that several recordings of decisions share."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
from control_views import view

from headgate.control.estimators import forecast
from headgate.control.fleet.henge import Goal, Henge, HengeParameters
from headgate.control.fleet.unified_fleet import UnifiedFleet, UnifiedFleetParameters
from headgate.control.fleet.view import FleetPolicy
from headgate.control.observation import OperatorView
from headgate.control.pools.psps import Psps
from headgate.control.pools.replicas import ReplicaPolicy
from headgate.control.pools.unified_pools import UnifiedPools
from headgate.core.assignment import Assignment

FLEETS: dict[str, Callable[[], FleetPolicy]] = {
    "henge": lambda: Henge(HengeParameters(observe_s=60.0, blacklist_s=400.0)),
    "henge-max-min": lambda: Henge(
        HengeParameters(goal=Goal.MAX_MIN, observe_s=0.0, settle_s=30.0, blame_falling=False)
    ),
    "unified-fleet": lambda: UnifiedFleet(UnifiedFleetParameters(observe_s=60.0)),
}

SERIES = [
    float(100 + 60 * math.sin(n / 4) + 10 * (n % 3) + 200 * (n in (31, 32))) for n in range(60)
]
POOLS: dict[str, Callable[[], ReplicaPolicy]] = {
    "psps": Psps,
    "psps-blend": lambda: Psps(forecast.daily_blend(6), predecessor_queues=True),
    "unified-pools": lambda: UnifiedPools(0.5, 0.1),
}


def nice_view(dice: random.Random) -> OperatorView:
    """Return a view whose numbers are so round that loads and latencies often are exactly at a bound."""
    groups, slots = dice.choice([2, 4, 6]), dice.choice([1, 2, 3])
    slots = min(slots, groups)
    owners = [*range(slots), *(dice.randrange(slots) for _ in range(groups - slots))]
    split = {}
    if dice.random() < 0.3 and slots > 1:
        group = dice.randrange(groups)
        others = [slot for slot in range(slots) if slot != owners[group]]
        split = {group: (owners[group], *others[: dice.randint(1, len(others))])}
    rates = [float(dice.choice([0, 1, 8, 16, 24, 32, 48, 98, 120])) for _ in range(groups)]
    mu = dice.choice([100.0, 100.0, 50.0, 0.0])
    return view(
        rates, [mu if slot else 100.0 for slot in range(slots)],
        assignment=Assignment(tuple(owners), slots, 2, split),
        latency_s=[dice.choice([0.05, 0.1, 0.5, 3.0, math.nan]) for _ in range(slots)],
        group_latency_s=np.array([dice.choice([0.05, 0.5, math.nan]) for _ in range(groups)]),
        backlog=dice.choice([0.0, 0.0, 4.0, 150.0]), bound_s=dice.choice([1.0, 0.5, 0.02]),
        alert_s=0.1 if dice.random() < 0.8 else 0.01, floor_s=dice.choice([0.0, 0.0, 0.25]),
        slots_min=dice.choice([1, 2]), slots_max=dice.choice([2, 3, 6]),
        unsplittable="" if dice.random() < 0.6 else "order counts", window_s=dice.choice([0.5, 1.0]),
        entry_rate=np.full(groups, 2.0) if dice.random() < 0.5 else None,
    )  # fmt: skip
