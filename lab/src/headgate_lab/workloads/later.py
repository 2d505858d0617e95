"""Generates loads that were made after the policy was finished: parts of real traces, and markets.

They are scaled as in `headgate_lab.workloads.loads`: the mean needs `SLOTS` slots. Nothing was tuned on
these loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headgate.workloads.traces import groups_of_keys
from headgate_demo.generators.draws import zipf_shares
from headgate_lab.workloads.loads import KEY_GROUPS, REQUESTS, Minutes, NamedLoad, column, scaled

_SEED = 20_261_124
_DAYS = "web_logs_1995.per_minute.csv.gz"
_CUP = "worldcup98.per_minute.csv.gz"
_CUP_MINUTES = (30_000, 125_000)
_LENGTH_S = 900.0
_BIN_S = 0.1
_SYMBOLS = 0.8
"""Zipf exponent of a market's symbols."""


@dataclass(frozen=True)
class Market:
    """Generates a market's orders: each triggers others of its symbol (Hawkes); the day is U-shaped.

    Attributes
    ----------
    rate_per_s : float
        Approximate mean rate; orders that would follow after the end are missing.
    symbols : int
        Number of keys, Zipf-distributed.
    branching : float
        Mean number of orders that an order triggers, in [0, 1).
    within_s : float
        Mean time from an order to a triggered one, in seconds.
    """

    rate_per_s: float
    symbols: int
    branching: float
    within_s: float

    def load(self, directory: Path, name: str, draw: np.random.Generator) -> NamedLoad:
        """Return the load; it needs no file."""
        bin_s = np.arange(0.0, _LENGTH_S, _BIN_S)
        day = 1.0 + 1.5 * (2.0 * bin_s / _LENGTH_S - 1.0) ** 2
        first_per_s = self.rate_per_s * (1.0 - self.branching)
        counts = draw.poisson(first_per_s * _BIN_S * day / day.mean())
        at_s = np.repeat(bin_s, counts) + draw.random(counts.sum()) * _BIN_S
        symbol = draw.choice(self.symbols, len(at_s), p=zipf_shares(self.symbols, _SYMBOLS))
        times, symbols = [at_s], [symbol]
        while len(at_s):
            brings = draw.poisson(self.branching, len(at_s))
            at_s = np.repeat(at_s, brings) + draw.exponential(self.within_s, brings.sum())
            symbol = np.repeat(symbol, brings)[at_s < _LENGTH_S]
            at_s = at_s[at_s < _LENGTH_S]
            times.append(at_s)
            symbols.append(symbol)
        arrival_s = np.concatenate(times)
        order = np.argsort(arrival_s)
        groups = groups_of_keys(np.concatenate(symbols)[order], KEY_GROUPS)
        cost = np.maximum(draw.normal(1.0, 0.125, len(order)), 0.25)
        return NamedLoad(name, "market", scaled(arrival_s[order], groups, cost, _LENGTH_S))


@dataclass(frozen=True)
class Requests:
    """Replays the requests of one day, `speed` times as fast, keyed by column `key`, with equal cost."""

    key: str
    speed: float

    def load(self, directory: Path, name: str, draw: np.random.Generator) -> NamedLoad:
        """Return the load."""
        second = column(directory, REQUESTS, "t_s")
        keys = column(directory, REQUESTS, self.key).astype(np.int64)
        arrival_s = (second + draw.random(len(second))) / self.speed
        order = np.argsort(arrival_s)
        groups = groups_of_keys(keys[order], KEY_GROUPS)
        length_s = 86_400.0 / self.speed
        return NamedLoad(
            name, "requests", scaled(arrival_s[order], groups, np.ones(len(order)), length_s)
        )


def _cups() -> Mapping[str, Minutes]:
    """Return ten parts of the World Cup trace, each with a speed and a rate."""
    draw = np.random.default_rng(_SEED)
    found = {}
    for number in range(10):
        minute_s = (0.1, 0.3, 1.0, 2.0)[number % 4]
        minutes = int(_LENGTH_S / minute_s)
        first = int(draw.integers(_CUP_MINUTES[0], _CUP_MINUTES[1] - minutes))
        rate_per_s = (60.0, 200.0, 500.0, 900.0)[int(draw.integers(4))]
        found[f"cup-{number}"] = Minutes(_CUP, "requests", first, minutes, minute_s, rate_per_s)
    return found


_LATER: Mapping[str, Minutes | Market | Requests] = {
    **_cups(),
    "epa-fast": Minutes(_DAYS, "epa_requests", 0, 1440, 0.4, 200.0),
    "sdsc-often": Minutes(_DAYS, "sdsc_requests", 0, 1440, 0.8, 400.0),
    "market-few-symbols": Market(88.0, 40, 0.7, 2.0),
    "market-sudden": Market(55.0, 400, 0.8, 0.5),
    "market-slow": Market(88.0, 2000, 0.6, 10.0),
    "market-large": Market(956.0, 5000, 0.5, 20.0),
    "market-crowds": Market(533.0, 60, 0.7, 5.0),
    "market-small": Market(55.0, 30, 0.5, 1.0),
    "hosts-fast": Requests("host_id", 240.0),
    "paths": Requests("path_id", 60.0),
    "paths-fast": Requests("path_id", 240.0),
}
LATER = len(_LATER)


def later(number: int, directory: Path) -> NamedLoad:
    """Return load `number`, from 0 to `LATER` - 1; `directory` has the real traces."""
    name, what = list(_LATER.items())[number]
    return what.load(directory, name, np.random.default_rng([_SEED, number]))
