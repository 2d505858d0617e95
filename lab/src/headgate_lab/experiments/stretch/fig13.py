"""Reproduces figure 13: a day of trades, joined with itself.

The paper shows [P]: a few slots do most of the day, with abrupt changes between 0 and 8,000 records/s,
a peak of about 7,600; latency is 1 ms on the mean of six hours, 21 ms around the highest peak.

Parameters: WS 30 s, ten companies, six hours [P]; the paper does not name the thresholds: figure 11's
[I]. NYSE's data is not to be had: the rate wanders as that of StreamSwitch's stand-in for an exchange
does, more widely, scaled to the paper's peak [I]; the rate is that of both inputs together [I]. Work
does not depend on the predicate, so the simulated join has none. As printed, ``-1.05 <= ND_R / ND_L``
has no upper bound and accepts every pair that moves in the same direction; *matches* says which share
of the pairs of synthetic trades that is, and which with -0.95 above.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headgate.control.registry import policy
from headgate.report.plot import panels
from headgate.workloads.rates import StepRate
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.stretch.fig10 import COMPARISONS_PER_S, SLOTS_MAX, plain
from headgate_lab.experiments.stretch.hedge import COMPANIES, share_of_pairs
from headgate_lab.sim.join import JoinModel, JoinRun, simulate_join
from headgate_lab.workloads.stock_exchange_rates import StockExchange

if TYPE_CHECKING:
    from headgate.report.plot import Figure

WINDOW_S = 30.0
HOURS = 6.0
PEAK_PER_S = 7600.0
POLICY = f"predictive(window_s={WINDOW_S:g})"
_ZOOM_S = 120.0
_SAMPLE = 2000
"""Number of trades of which all pairs are compared."""

PAPER = {
    "latency_ms_mean": "1; 21 around the highest peak",
    "peak_per_s": "about 7,600",
    "slots": "few, most of the time",
}


def run(request: Request) -> dict[str, Any]:
    """Return latency and slots, of the day and around its highest peak."""
    return measure(0.5 if request.quick else HOURS)


def measure(hours: float, seed: int = 1) -> dict[str, Any]:
    """Return the same for a shorter day."""
    result = simulate(hours, seed)
    line = result.timeline(1.0)
    peak_s = float(line["time_s"][int(np.argmax(line["rate_per_s"]))])
    near = np.abs(line["time_s"] - peak_s) <= _ZOOM_S / 2
    every = max(1, len(line["time_s"]) // 2000)
    return {
        "mode": "simulated, continuous",
        "policy": POLICY,
        "length_s": hours * 3600.0,
        "window_s": WINDOW_S,
        "comparisons_per_s": COMPARISONS_PER_S,
        "seeds": [seed],
        "paper": PAPER,
        "matches": share_of_pairs(seed, _SAMPLE),
        "reconfigurations": len(result.switches),
        "rows": [
            _row("whole run", result, line, np.ones(len(near), dtype=bool)),
            _row("around the peak", result, line, near),
        ],
        "timeline": {name: plain(values[::every]) for name, values in line.items()},
        "zoom": {name: plain(values[near]) for name, values in line.items()},
    }


def simulate(hours: float, seed: int) -> JoinRun:
    """Return the run of a day of `hours`."""
    arrival_s = arrivals(hours, seed)
    model = JoinModel(WINDOW_S, COMPARISONS_PER_S)
    return simulate_join(
        model, arrival_s, policy(POLICY), hours * 3600.0, slots_max=SLOTS_MAX, cycle_s=0.5
    )


def arrivals(hours: float, seed: int) -> npt.NDArray[np.float64]:
    """Return when each record arrives: every trade twice, once for each input."""
    day = StockExchange(
        stocks=COMPANIES,
        base_per_s=300.0,
        opening_per_s=900.0,
        sessions=1,
        session_s=hours * 3600.0,
        market_deviation=1.0,
        market_correlation_s=60.0,
    )
    per_s = day.trace(seed, COMPANIES).counts.sum(axis=1).astype(np.float64)
    per_s *= PEAK_PER_S / per_s.max()
    # The last rate of steps goes on for ever and must not be 0; the run ends where it begins.
    steps = [*enumerate(per_s.tolist()), (len(per_s), 1.0)]
    rate = StepRate(tuple((float(start_s), trades / 2.0) for start_s, trades in steps))
    return np.repeat(rate.time_of(np.arange(int(rate.count(hours * 3600.0)))), 2)


def _row(
    what: str, result: JoinRun, line: Mapping[str, Any], chosen: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    first, last = line["time_s"][chosen][[0, -1]]
    inside = (result.done_s > first - 1.0) & (result.done_s <= last)
    latency_ms = 1e3 * result.latency_s[inside]
    slots = line["slots"][chosen]
    values = {
        "rate_per_s_mean": float(line["rate_per_s"][chosen].mean()),
        "rate_per_s_peak": float(line["rate_per_s"][chosen].max()),
        "latency_ms_mean": float(latency_ms.mean()),
        "latency_ms_p99": float(np.quantile(latency_ms, 0.99)),
        "latency_ms_worst_second": 1e3 * float(np.nanmax(line["latency_mean_s"][chosen])),
        "slots_median": float(np.median(slots)),
        "slots_mean": float(slots.mean()),
        "slots_most": float(slots.max()),
    }
    return {"part": what, **{name: round(value, 3) for name, value in values.items()}}


def draw(data: Mapping[str, Any]) -> Figure:
    """Return rate, slots, throughput and latency: the day to the left, its peak to the right."""
    figure, axes = panels(4, 2)
    names = ("rate_per_s", "slots", "comparisons_per_s", "latency_mean_s")
    labels = ("records/s", "slots", "comparisons/s", "latency, s")
    for column, part in enumerate(("timeline", "zoom")):
        for row, (name, label) in enumerate(zip(names, labels, strict=True)):
            panel = axes[2 * row + column]
            values = [float("nan") if v is None else v for v in data[part][name]]
            panel.plot(data[part]["time_s"], values)
            panel.set(xlabel="time, s", ylabel=label)
        axes[6 + column].set_yscale("log")
    return figure
