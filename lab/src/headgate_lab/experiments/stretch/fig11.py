"""Reproduces figures 11, 12 and 16 to 19: twenty minutes of random phases.

The paper shows [P]: slots follow the rate, up and down; throughput stays within the band of what the
slots can do; latency is about 20 ms on the mean, with a few spikes at abrupt changes that are gone
within 10 s (figure 11, and four more runs in appendix F). After a step up slots are added gradually,
as the window fills at the new rate, where a system with dear reconfigurations would have to take all of
them at once (figure 12).

Parameters: WS 1 minute, 20 minutes, phases of 100 to 300 s at 500 to 8,000 records/s, both uniform,
thresholds 70 and 80 % [P]; what a thread compares, and a control cycle of half a second [I]. Latency is
that of the simulated queues: the paper's has the communication of its threads in it, about 10 ms [P].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.control.registry import policy
from headgate.report.plot import panels
from headgate.whatif.parallel import run_all
from headgate.workloads.rates import StepRate
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.stretch.fig10 import COMPARISONS_PER_S, SLOTS_MAX, plain
from headgate_lab.sim.join import JoinModel, JoinRun, simulate_join

if TYPE_CHECKING:
    from headgate.report.plot import Figure

WINDOW_S = 60.0
LENGTH_S = 1200.0
POLICY = f"predictive(window_s={WINDOW_S:g})"
SPIKE_S = 0.04
"""Latency above which a second belongs to a spike: twice the paper's mean [I]."""

PAPER = {
    "latency_ms_mean": "about 20",
    "recover_s": "within 10",
    "slots": "follow the rate; after a step up gradually, until the window is filled",
}


def phases(seed: int, length_s: float = LENGTH_S) -> StepRate:
    """Return the paper's random phases: the last one is cut off by the end of the run."""
    generator = np.random.default_rng(seed)
    steps, start_s = [], 0.0
    while start_s < length_s:
        steps.append((start_s, float(generator.uniform(500.0, 8000.0))))
        start_s += float(generator.uniform(100.0, 300.0))
    return StepRate(tuple(steps))


def run(request: Request) -> dict[str, Any]:
    """Return five runs: the effect of each step of the rate, and latency and slots per run."""
    if request.quick:
        return measure((1,), length_s=400.0)
    return measure((1, 2, 3, 4, 5), length_s=LENGTH_S)


def measure(seeds: Sequence[int], *, length_s: float) -> dict[str, Any]:
    """Return the same for some seeds, and shorter."""
    found = run_all(_outcome, [(seed, length_s) for seed in seeds])
    return {
        "mode": "simulated, continuous",
        "policy": POLICY,
        "length_s": length_s,
        "window_s": WINDOW_S,
        "comparisons_per_s": COMPARISONS_PER_S,
        "seeds": list(seeds),
        "paper": PAPER,
        "runs": [f["run"] for f in found],
        "rows": [row for f in found for row in f["steps"]],
        "zoom": found[0]["zoom"],
        "timelines": [f["timeline"] for f in found],
    }


def simulate(seed: int, length_s: float) -> JoinRun:
    """Return a run of random phases under the predictive controller."""
    rate = phases(seed, length_s)
    arrival_s = rate.time_of(np.arange(int(rate.count(length_s))))
    model = JoinModel(WINDOW_S, COMPARISONS_PER_S)
    return simulate_join(model, arrival_s, policy(POLICY), length_s, slots_max=SLOTS_MAX)


def _outcome(item: tuple[int, float]) -> dict[str, Any]:
    seed, length_s = item
    result = simulate(seed, length_s)
    line = result.timeline(1.0)
    latency_s = result.latency_s
    steps = [
        _step(line, before, after, length_s)
        for before, after in pairwise([*phases(seed, length_s).steps, (length_s, 0.0)])
    ]
    rows = [{"seed": seed, **row} for row in steps]
    p50, p99 = np.quantile(latency_s, (0.5, 0.99)).tolist()
    return {
        "run": {
            "seed": seed,
            "records": len(latency_s),
            "latency_ms_mean": round(1e3 * float(latency_s.mean()), 3),
            "latency_ms_p50": round(1e3 * p50, 3),
            "latency_ms_p99": round(1e3 * p99, 3),
            "seconds_above_spike": int((line["latency_mean_s"] > SPIKE_S).sum()),
            "recover_s_longest": max(row["recover_s"] for row in rows),
            "reconfigurations": len(result.switches),
            "reconfiguration_ms_longest": round(1e3 * max(s.took_s for s in result.switches), 1),
            "slots_mean": round(float(result.slots.mean()), 2),
            "slots_most": int(result.slots.max()),
        },
        "steps": rows,
        "zoom": _zoom(line, rows),
        "timeline": {"seed": seed, **{name: plain(values) for name, values in line.items()}},
    }


def _step(
    line: Mapping[str, Any],
    before: tuple[float, float],
    after: tuple[float, float],
    length_s: float,
) -> dict[str, Any]:
    """Return the effect of the phase that begins at `before`: how long latency was above the spike."""
    start_s, stop_s = before[0], min(after[0], length_s)
    inside = (line["time_s"] > start_s) & (line["time_s"] <= stop_s)
    latency_s = line["latency_mean_s"][inside]
    above = np.flatnonzero(latency_s > SPIKE_S)
    slots = line["slots"][inside]
    return {
        "at_s": round(start_s, 1),
        "rate_per_s": round(before[1]),
        "recover_s": int(above[-1]) + 1 if len(above) else 0,
        "latency_ms_peak": round(1e3 * float(np.nanmax(latency_s)), 2),
        "latency_ms_mean": round(1e3 * float(np.nanmean(latency_s)), 3),
        "slots_first": round(float(slots[0]), 1),
        "slots_after_10_s": round(float(slots[min(10, len(slots) - 1)]), 1),
        "slots_last": round(float(slots[-1]), 1),
    }


def _zoom(line: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return figure 12: slots around the largest rise of the rate, beside all of them at once."""
    rises = [
        (after["rate_per_s"] - before["rate_per_s"], after) for before, after in pairwise(rows)
    ]
    if not rises:
        return {}
    rise, step = max(rises, key=lambda pair: pair[0])
    if rise <= 0:
        return {}
    start_s = step["at_s"]
    near = (line["time_s"] > start_s - 20) & (line["time_s"] <= start_s + WINDOW_S + 30)
    held = line["slots"][(line["time_s"] > start_s) & (line["time_s"] <= start_s + WINDOW_S)]
    return {
        "at_s": start_s,
        "time_s": line["time_s"][near].tolist(),
        "slots": [round(v, 2) for v in line["slots"][near].tolist()],
        "slots_at_once": step["slots_last"],
        "slot_seconds": round(float(held.sum())),
        "slot_seconds_at_once": round(step["slots_last"] * len(held)),
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return rate, slots, throughput with its band, latency, and the zoom, of the first run."""
    figure, axes = panels(5, 1)
    line = data["timelines"][0]
    names = ("rate_per_s", "slots", "comparisons_per_s", "latency_mean_s")
    labels = ("records/s", "slots", "comparisons/s", "latency, s")
    for panel, name, label in zip(axes, names, labels, strict=False):
        values = [float("nan") if v is None else v for v in line[name]]
        panel.plot(line["time_s"], values)
        panel.set(xlabel="time, s", ylabel=label)
    capacity = np.array(line["slots"]) * data["comparisons_per_s"]
    axes[2].fill_between(line["time_s"], 0.7 * capacity, 0.8 * capacity, alpha=0.3)
    axes[3].set_yscale("log")
    zoom = data["zoom"]
    if zoom:
        axes[4].step(zoom["time_s"], zoom["slots"], label="here")
        axes[4].axhline(zoom["slots_at_once"], linestyle="--", label="all at once")
        axes[4].axvspan(zoom["at_s"], zoom["at_s"] + data["window_s"], alpha=0.2)
        axes[4].set(xlabel="time, s", ylabel="slots", title="figure 12")
        axes[4].legend()
    return figure
