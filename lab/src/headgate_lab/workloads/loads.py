"""Generates two hundred loads of all kinds by seed, and scales real traces alike.

Every load needs 4.0 slots on average. Half of the generated loads are for building policies, the others
are kept aside; the split is fixed by a seed that was chosen before anything was tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyarrow import csv

from headgate.core.errors import ConfigError
from headgate.whatif.oracle import Load
from headgate.workloads.traces import groups_of_keys
from headgate_demo.generators.draws import zipf_shares
from headgate_lab.workloads.arrivals import group_shares

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

COUNT = 200
SLOTS = 4.0
KEY_GROUPS = 64
WARM_UP_S = 60.0
_SPLIT_SEED = 20_261_122
_LOW, _HIGH = (16.0, 90.0), (500.0, 1000.0)
_LENGTH_S = {"low": 1200.0, "high": 600.0}
_BIN_S = 0.1
_HOTTEST_SLOTS = 0.8
"""Slots that the hottest key group needs in the busiest 10 s, so that one slot can serve it."""


@dataclass(frozen=True)
class NamedLoad:
    """Holds a load with its name.

    Attributes
    ----------
    name : str
        Name such as ``flash-017``, or that of a trace.
    """

    name: str
    kind: str
    load: Load

    @property
    def rate_per_s(self) -> float:
        """Mean rate, records per second."""
        return len(self.load.arrival_s) / self.load.duration_s


def _ones(time_s: F64, draw: np.random.Generator) -> F64:
    return np.ones(len(time_s))


def _mmpp(time_s: F64, draw: np.random.Generator) -> F64:
    """Return the rate of a Poisson process whose rate is a Markov chain's."""
    rates = draw.choice([0.2, 0.5, 1.0, 2.0, 4.0], size=int(draw.integers(2, 5)), replace=False)
    dwell_s = float(draw.choice([5.0, 20.0, 60.0]))
    edges = np.cumsum(draw.exponential(dwell_s, int(3 * time_s[-1] / dwell_s) + 50))
    state = draw.integers(0, len(rates), len(edges) + 1)
    found: F64 = rates[state[np.searchsorted(edges, time_s)]].astype(np.float64)
    return found


def _pareto(time_s: F64, draw: np.random.Generator) -> F64:
    """Return a rate with bursts whose lengths are heavy-tailed, down to parts of a second."""
    rate = np.full(len(time_s), 0.4)
    at_s = 0.0
    gap_s = float(draw.choice([4.0, 15.0, 40.0]))
    while True:
        at_s += float(draw.exponential(gap_s))
        if at_s >= time_s[-1]:
            return rate
        length_s = min(0.3 * (1.0 + float(draw.pareto(1.3))), 60.0)
        rate[(time_s >= at_s) & (time_s < at_s + length_s)] += float(draw.uniform(1.0, 4.0))


def _sinusoid(time_s: F64, draw: np.random.Generator) -> F64:
    period_s = float(draw.choice([40.0, 120.0, 300.0, 600.0]))
    depth = float(draw.uniform(0.3, 0.9))
    return 1.0 + depth * np.sin(2 * np.pi * (time_s / period_s + float(draw.random())))


def _steps(time_s: F64, draw: np.random.Generator) -> F64:
    edges = np.sort(draw.uniform(0.0, time_s[-1], int(draw.integers(2, 8))))
    return draw.uniform(0.2, 3.0, len(edges) + 1)[np.searchsorted(edges, time_s)]


def _ramp(time_s: F64, draw: np.random.Generator) -> F64:
    knots = np.linspace(0.0, time_s[-1], int(draw.integers(2, 6)))
    return np.interp(time_s, knots, draw.uniform(0.2, 3.0, len(knots)))


def _flash(time_s: F64, draw: np.random.Generator) -> F64:
    """Return a calm rate with flash crowds: a steep rise, and a slow decay."""
    rate = np.ones(len(time_s))
    for _ in range(int(draw.integers(1, 5))):
        at_s = float(draw.uniform(0.1, 0.9)) * time_s[-1]
        rise_s, fall_s = float(draw.uniform(1.0, 15.0)), float(draw.uniform(10.0, 90.0))
        high = float(draw.uniform(2.0, 6.0))
        since = time_s - at_s
        rising = np.clip(since / rise_s, 0.0, 1.0)
        rate += high * rising * np.exp(-np.maximum(since - rise_s, 0.0) / fall_s)
    return rate


def _silence(time_s: F64, draw: np.random.Generator) -> F64:
    """Return a rate that is 0 in some periods."""
    rate = np.ones(len(time_s))
    for _ in range(int(draw.integers(1, 5))):
        at_s = float(draw.uniform(0.1, 0.9)) * time_s[-1]
        rate[(time_s >= at_s) & (time_s < at_s + float(draw.uniform(20.0, 150.0)))] = 0.0
    return rate


_RATES: Mapping[str, Callable[[F64, np.random.Generator], F64]] = {
    "poisson": _ones,
    "mmpp": _mmpp,
    "pareto": _pareto,
    "sinusoid": _sinusoid,
    "steps": _steps,
    "ramp": _ramp,
    "flash": _flash,
    "heavy": _ones,
    "drift": _ramp,
    "wander": _ones,
    "silence": _silence,
}
KINDS = tuple(_RATES)


def rates_of(kind: str, time_s: F64, draw: np.random.Generator) -> F64:
    """Return the rate of a kind of load at some times, up to a factor: float64[n]."""
    return _RATES[kind](time_s, draw)


def generated(number: int) -> NamedLoad:
    """Return load `number`, from 0 to `COUNT` - 1; the same in every call."""
    kind = KINDS[number % len(KINDS)]
    draw = np.random.default_rng([_SPLIT_SEED, number])
    pace = "low" if draw.random() < 0.55 else "high"  # noqa: PLR2004
    rate_per_s = float(draw.uniform(*(_LOW if pace == "low" else _HIGH)))
    length_s = _LENGTH_S[pace]
    middle_s: F64 = (np.arange(round(length_s / _BIN_S), dtype=np.float64) + 0.5) * _BIN_S
    curve = rates_of(kind, middle_s, draw)
    counts = draw.poisson(curve * (rate_per_s * _BIN_S / curve.mean()))
    arrival_s = np.repeat(middle_s - _BIN_S / 2, counts) + draw.random(counts.sum()) * _BIN_S
    arrival_s.sort()
    cost = _costs(kind, arrival_s / length_s, draw)
    groups = _groups(kind, arrival_s, cost, length_s, draw)
    return NamedLoad(f"{kind}-{number:03}", kind, scaled(arrival_s, groups, cost, length_s))


def split() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of the loads for building policies, and of those kept aside."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(COUNT).tolist()
    return tuple(sorted(order[: COUNT // 2])), tuple(sorted(order[COUNT // 2 :]))


def scaled(arrival_s: F64, groups: I64, cost: F64, length_s: float) -> Load:
    """Return records as a load whose mean is `SLOTS` slots."""
    demand_s = cost * (SLOTS * length_s / float(cost.sum()))
    return Load(arrival_s, groups, demand_s, KEY_GROUPS, length_s, from_s=WARM_UP_S)


def _costs(kind: str, progress: F64, draw: np.random.Generator) -> F64:
    """Return the cost of each record, up to a common factor; costs vary slightly in all kinds."""
    cost = np.maximum(draw.normal(1.0, 0.125, len(progress)), 0.25)
    if kind == "heavy":
        # a Pareto tail of exponent 1.2, cut where a record costs a hundred times the least
        tail: F64 = (1.0 - draw.random(len(progress)) * (1.0 - 100.0**-1.2)) ** (-1.0 / 1.2)
        return tail
    if kind == "drift":
        knots = np.linspace(0.0, 1.0, 5)
        cost *= np.interp(progress, knots, draw.uniform(0.4, 2.0, 5))
    return cost


def capped_groups(arrival_s: F64, cost: F64, length_s: float, draw: np.random.Generator) -> I64:
    """Return the key group of each record: hashed Zipf keys, with no group too hot for a slot."""
    return _groups("", arrival_s, cost, length_s, draw)


def _groups(
    kind: str, arrival_s: F64, cost: F64, length_s: float, draw: np.random.Generator
) -> I64:
    """Return the key group of each record: hashed Zipf keys, with no group too hot for a slot."""
    exponent = float(draw.choice([0.0, 0.4, 0.8, 1.0]))
    even = group_shares(zipf_shares(1000, exponent), KEY_GROUPS)
    work_s = np.bincount((arrival_s / 10.0).astype(np.int64), weights=cost) / 10.0
    most = work_s.max() * SLOTS * length_s / float(cost.sum())
    cap = max(_HOTTEST_SLOTS / most, 1.5 / KEY_GROUPS)
    if kind != "wander":
        return draw.choice(KEY_GROUPS, len(arrival_s), p=_capped(even, cap))
    stay_s = float(draw.choice([30.0, 90.0, 200.0]))
    stage = (arrival_s / stay_s).astype(np.int64)
    groups = np.empty(len(arrival_s), dtype=np.int64)
    for at in range(int(stage.max()) + 1):
        mine = stage == at
        hot = np.full(KEY_GROUPS, 1.0 / KEY_GROUPS)
        hot[draw.choice(KEY_GROUPS, 4, replace=False)] = cap * 2.0
        groups[mine] = draw.choice(KEY_GROUPS, int(mine.sum()), p=_capped(hot / hot.sum(), cap))
    return groups


def _capped(shares: F64, most: float) -> F64:
    """Return shares of at most `most`; the excess is distributed to the others."""
    found = shares.copy()
    for _ in range(len(found)):
        over = found > most
        spare = float((found[over] - most).sum())
        if spare <= 1e-12:  # noqa: PLR2004
            break
        found[over] = most
        under = found < most
        if not under.any():
            break
        found[under] += spare * found[under] / found[under].sum()
    found /= found.sum()
    return found


@dataclass(frozen=True)
class Minutes:
    """Replays a part of a file with one count per minute; a minute lasts `minute_s`."""

    file: str
    column: str
    first: int
    minutes: int
    minute_s: float
    rate_per_s: float

    def load(self, directory: Path, name: str, draw: np.random.Generator) -> NamedLoad:
        """Return the load, with keys that are Zipf-distributed, as the file has none."""
        counts = column(directory, self.file, self.column)[self.first : self.first + self.minutes]
        length_s = len(counts) * self.minute_s
        records = draw.poisson(counts * (self.rate_per_s * length_s / counts.sum()))
        starts_s = np.repeat(np.arange(len(records)) * self.minute_s, records)
        arrival_s = np.sort(starts_s + draw.random(len(starts_s)) * self.minute_s)
        cost = _costs("trace", arrival_s, draw)
        groups = _groups("trace", arrival_s, cost, length_s, draw)
        return NamedLoad(name, "trace", scaled(arrival_s, groups, cost, length_s))


_MINUTES: Mapping[str, Minutes] = {
    "trace-sdsc": Minutes("web_logs_1995.per_minute.csv.gz", "sdsc_requests", 0, 1440, 0.8, 60.0),
    "trace-epa": Minutes("web_logs_1995.per_minute.csv.gz", "epa_requests", 0, 1440, 0.8, 500.0),
    "trace-worldcup-rise": Minutes(
        "worldcup98.per_minute.csv.gz", "requests", 109_800, 720, 1.0, 600.0
    ),
    "trace-worldcup-week": Minutes(
        "worldcup98.per_minute.csv.gz", "requests", 80_000, 10_080, 0.1, 466.0
    ),
}
REQUESTS = "sdsc_http_1995.requests.csv.gz"
_SPEED = 60.0


def traces(directory: Path) -> list[NamedLoad]:
    """Return the real traces of a directory, scaled to `SLOTS` slots.

    Records from counts per minute get Zipf-distributed keys, since the files have no keys. The key of a
    request is its host; once with equal costs, once with costs by path that differ by up to 100x.

    Raises
    ------
    ConfigError
        A file is missing.
    """
    found = []
    for number, (name, part) in enumerate(_MINUTES.items()):
        draw = np.random.default_rng([_SPLIT_SEED, COUNT + number])
        found.append(part.load(directory, name, draw))
    return [*found, *_requests(directory)]


def _requests(directory: Path) -> list[NamedLoad]:
    draw = np.random.default_rng([_SPLIT_SEED, COUNT + len(_MINUTES)])
    second = column(directory, REQUESTS, "t_s")
    hosts = column(directory, REQUESTS, "host_id").astype(np.int64)
    paths = column(directory, REQUESTS, "path_id").astype(np.int64)
    arrival_s = (second + draw.random(len(second))) / _SPEED
    order = np.argsort(arrival_s)
    groups = groups_of_keys(hosts[order], KEY_GROUPS)
    by_path = 100.0 ** draw.random(int(paths.max()) + 1)
    length_s = 86_400.0 / _SPEED
    alike = scaled(arrival_s[order], groups, np.ones(len(order)), length_s)
    costly = scaled(arrival_s[order], groups, by_path[paths[order]], length_s)
    return [
        NamedLoad("trace-requests", "trace", alike),
        NamedLoad("trace-requests-100x", "trace", costly),
    ]


def column(directory: Path, file: str, name: str) -> F64:
    """Return a column of one of the real traces.

    Raises
    ------
    ConfigError
        The file is missing.
    """
    path = directory / file
    if not path.is_file():
        msg = f'there is no "{file}" in "{directory}"; name the directory of the real traces.'
        raise ConfigError(msg)
    values: F64 = csv.read_csv(path).column(name).to_numpy().astype(np.float64)
    return values
