"""Reproduces figures 10 and 11: the effect of the alert threshold l and the interval delta.

The paper shows [P]: success does not depend much on either between 0.02 and 0.5 s; slightly more
executors at l = 0.02 s and delta = 0.5 s; below l = 0.1 s severe slots are mostly cured by load
balancing, above it by scaling out; and about as many scale-ins as scale-outs everywhere.

Parameters: query Q8 on Flink under Switch(0.2); 30K records/s with an amplitude of 30K/s and a
period of 600 s, 30 minutes, l and delta from 0.02 to 0.5 s, the other one 0.1 s [P]. The executors'
rate is not given: 4K/s as in figure 12 [I]. Differs: 3 runs each, where the paper has 15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate.report.plot import panels
from headgate.whatif.parallel import run_all
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.streamswitch.waves import RATE_FACTOR, Wave, averaged, outcome

if TYPE_CHECKING:
    from headgate.report.plot import Figure

_PERIOD_S = 600.0
PAPER = {
    "success": "flat over l and delta",
    "slots": "slightly more at l = 0.02 s and at delta = 0.5 s",
    "changes": "balances below l = 0.1 s, scale-outs above; as many scale-ins as scale-outs",
}


def run(request: Request) -> dict[str, Any]:
    """Return success, slots and changes over l and over delta."""
    if request.quick:
        return measure((0.02, 0.1, 0.5), periods=1, runs=1)
    return measure((0.02, 0.05, 0.1, 0.2, 0.5), periods=3, runs=3)


def measure(values_s: tuple[float, ...], *, periods: float, runs: int) -> dict[str, Any]:
    """Return the same for some values of l and delta, each averaged over some runs."""
    settings = [(name, value) for name in ("alert_s", "delta_s") for value in values_s]
    waves = [
        Wave(30_000.0, _PERIOD_S, 4_000.0, periods * _PERIOD_S, seed=seed, **{name: value})
        for name, value in settings
        for seed in range(1, runs + 1)
    ]
    means = averaged(run_all(outcome, waves), runs)
    return {
        "mode": "continuous",
        "seeds": list(range(1, runs + 1)),
        "rate_factor": RATE_FACTOR,
        "length_s": periods * _PERIOD_S,
        "paper": PAPER,
        "rows": [
            {"varied": name, "value_s": value, **row}
            for (name, value), row in zip(settings, means, strict=True)
        ],
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return, for l and for delta, success with slots, and changes by kind."""
    figure, axes = panels(2, 2)
    for column, varied in enumerate(("alert_s", "delta_s")):
        rows = [row for row in data["rows"] if row["varied"] == varied]
        values = [row["value_s"] for row in rows]
        label = "l, s" if varied == "alert_s" else "delta, s"
        axes[column].plot(values, [row["success"] for row in rows], "o-")
        axes[column].set(xlabel=label, ylabel="success", ylim=(0, 1.02), xscale="log")
        slots = axes[column].twinx()
        slots.plot(values, [row["slots_mean"] for row in rows], "s--", color="tab:orange")
        slots.set_ylabel("slots")
        for kind in ("balances", "scale_outs", "scale_ins"):
            axes[2 + column].plot(values, [row[kind] for row in rows], "o-", label=kind)
        axes[2 + column].set(xlabel=label, ylabel="changes", xscale="log")
        axes[2 + column].legend()
    return figure
