"""Generates loads with very different costs of records: lognormal, Pareto, or bimodal.

They are scaled as in `headgate_lab.workloads.loads`: the mean needs `SLOTS` slots. Half are for building
policies, half are kept aside; the seed of each half was fixed before either was used.
"""

from __future__ import annotations

import numpy as np

from headgate_lab.workloads.loads import (
    F64,
    NamedLoad,
    capped_groups,
    rates_of,
    scaled,
)

COUNT = 20
"""Number of loads in each half."""

SEEDS = (20_261_126, 20_261_127)
"""Seeds of the half for building policies, and of the half that is kept aside."""

COSTS = ("lognormal", "pareto", "bimodal")
_RATES = ("poisson", "mmpp", "sinusoid", "steps", "flash")
_PACES = ((16.0, 60.0, 600.0), (60.0, 150.0, 420.0))
"""Range of the records per second, and length of a load in seconds."""
_BIN_S = 0.1
_MOST = 200.0
"""Largest cost of a record, relative to the median or common cost."""


def tailed(number: int) -> NamedLoad:
    """Return load `number`, from 0 to 2 `COUNT` - 1; the same in every call."""
    draw = np.random.default_rng([SEEDS[number // COUNT], number % COUNT])
    costs, rates = COSTS[number % len(COSTS)], str(draw.choice(_RATES))
    low, high, length_s = _PACES[int(draw.integers(len(_PACES)))]
    rate_per_s = float(draw.uniform(low, high))
    middle_s: F64 = (np.arange(round(length_s / _BIN_S), dtype=np.float64) + 0.5) * _BIN_S
    curve = rates_of(rates, middle_s, draw)
    counts = draw.poisson(curve * (rate_per_s * _BIN_S / curve.mean()))
    arrival_s = np.repeat(middle_s - _BIN_S / 2, counts) + draw.random(counts.sum()) * _BIN_S
    arrival_s.sort()
    cost = _costs(costs, len(arrival_s), draw)
    groups = capped_groups(arrival_s, np.ones(len(cost)), length_s, draw)
    name = f"{costs}-{rates}-{number:02}"
    return NamedLoad(name, costs, scaled(arrival_s, groups, cost, length_s))


def _costs(kind: str, count: int, draw: np.random.Generator) -> F64:
    """Return the cost of each record, relative to the median or common cost."""
    if kind == "lognormal":
        cost = np.exp(draw.uniform(0.8, 1.8) * draw.standard_normal(count))
    elif kind == "pareto":
        cost = 1.0 + draw.pareto(draw.uniform(1.2, 2.2), count)
    else:
        dear = draw.random(count) < draw.choice([0.005, 0.02, 0.05])
        cost = np.where(dear, draw.uniform(10.0, 50.0), 1.0) * draw.normal(1.0, 0.1, count)
    found: F64 = np.clip(cost, 0.05, _MOST)
    return found
