"""Reproduces figure 10 and table 4: one reconfiguration, up and down.

The paper shows [P]: after the rate has gone from 70 to 120 % of what n threads sustain, threads are
provisioned in one step (table 4), throughput follows the input and latency stays as it was, while
ScaleJoin with its fixed 18 threads falls behind; after it has gone to 30 %, threads are decommissioned
in one step and throughput stays the input's.

Parameters: thresholds 90, 70 and 45 %, WS 5 minutes, the step after 6 minutes, 1,000 virtual keys [P];
a thread's comparisons per second [I]. There are two models of a record's cost. *constant*: a record is
always compared with a full window at the full rate; so load is proportional to the rate, as in table 4
(ceil(1.2 n / 0.7), floor(0.3 n / 0.7)). *window*: it is compared with the records that arrived within
WS, as in operator 3; so 120 % of the rate makes a load of 144 %, reached only when the window has
filled, in several reconfigurations, and table 4 does not result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headgate.control.registry import policy
from headgate.report.plot import panels
from headgate.whatif.parallel import run_all
from headgate.workloads.rates import StepRate
from headgate_lab.experiments.registry import Request
from headgate_lab.sim.join import JoinModel, JoinRun, simulate_join

if TYPE_CHECKING:
    from headgate.report.plot import Figure

WINDOW_S = 300.0
COMPARISONS_PER_S = 4e7
"""Speed of one thread [I]: at it, figure 11's 8,000 records/s need 64 of the paper's 72 threads."""

SLOTS_MAX = 72
TABLE_4: Mapping[str, Mapping[int, int]] = {
    "provisioning": {1: 2, 5: 9, 9: 16, 18: 31, 30: 52, 40: 69},
    "decommissioning": {5: 2, 9: 3, 18: 7, 30: 12, 40: 17, 60: 25, 70: 30},
}
_AFTER = {"provisioning": 1.2, "decommissioning": 0.3}
_BEFORE = 0.7
PAPER = {
    "reconfiguration_ms": "always below 40; about 12 for 30 -> 52 threads",
    "latency": "unchanged by provisioning; lower than ScaleJoin's after decommissioning",
    "ScaleJoin": "18 threads cannot sustain 120 %",
}


@dataclass(frozen=True)
class Step:
    """One run: `slots` at the start, then a step of the rate."""

    action: str
    cost: str
    slots: int
    policy: str
    before_s: float
    after_s: float
    window_s: float = WINDOW_S

    def simulate(self) -> JoinRun:
        """Return the run."""
        full = JoinModel(self.window_s, COMPARISONS_PER_S, self.slots).rate_at(self.slots)
        stored = full * self.window_s / 2.0 if self.cost == "constant" else None
        model = JoinModel(self.window_s, COMPARISONS_PER_S, self.slots, stored_records=stored)
        rate = StepRate(((0.0, _BEFORE * full), (self.before_s, _AFTER[self.action] * full)))
        until_s = self.before_s + self.after_s
        arrival_s = rate.time_of(np.arange(int(rate.count(until_s))))
        # A cycle of one second, the window of the rate: a decision never mixes both rates.
        return simulate_join(
            model,
            arrival_s,
            policy(self.policy),
            until_s,
            slots_max=SLOTS_MAX + self.slots,
            cycle_s=1.0,
            from_s=self.before_s,
        )


def run(request: Request) -> dict[str, Any]:
    """Return the slots of each row of table 4, and figure 10's timelines for 18 slots."""
    if request.quick:
        return measure({a: [5, 18] for a in TABLE_4}, before_s=60.0, after_s=90.0, window_s=50.0)
    return measure(TABLE_4, before_s=360.0, after_s=360.0, window_s=WINDOW_S)


def measure(
    starts: Mapping[str, Sequence[int] | Mapping[int, int]],
    *,
    before_s: float,
    after_s: float,
    window_s: float,
) -> dict[str, Any]:
    """Return the same for some numbers of slots, and shorter."""
    steps = [
        Step(action, cost, slots, name, before_s, after_s, window_s)
        for action, numbers in starts.items()
        for slots in numbers
        for cost in ("constant", "window")
        for name in ("threshold", "static")
        if name == "threshold" or slots == _SHOWN
    ]
    found = run_all(_outcome, sorted(steps, key=lambda step: -step.slots))
    rows = [row for row, _ in found]
    order = {name: index for index, name in enumerate(TABLE_4)}
    rows.sort(key=lambda r: (r["cost"], order[r["action"]], r["start"], r["policy"]))
    return {
        "mode": "simulated, continuous",
        "window_s": window_s,
        "comparisons_per_s": COMPARISONS_PER_S,
        "paper": PAPER,
        "rows": rows,
        "timelines": [line for _, line in found if line],
    }


_SHOWN = 18
"""The number of slots of figure 10."""


def _outcome(step: Step) -> tuple[dict[str, Any], dict[str, Any]]:
    result = step.simulate()
    line = result.timeline(1.0)
    late = line["time_s"] > step.before_s + step.after_s / 2
    early = (line["time_s"] > step.before_s / 2) & (line["time_s"] <= step.before_s)
    switches = [s for s in result.switches if s.decided_s >= step.before_s]
    spread = result.spread[(np.arange(len(result.spread)) * result.delta_s) < step.before_s]
    row = {
        "action": step.action,
        "cost": step.cost,
        "policy": "ScaleJoin" if step.policy == "static" else step.policy,
        "start": step.slots,
        "paper": TABLE_4[step.action][step.slots],
        "slots": switches[0].after if switches else step.slots,
        "slots_at_end": int(result.slots[-1]),
        "reconfigurations": len(switches),
        "longest_ms": 1e3 * max((s.took_s for s in switches), default=0.0),
        "cov_percent": 100.0 * float(np.nanmean(spread)),
        "latency_ms_before": 1e3 * float(np.nanmean(line["latency_mean_s"][early])),
        "latency_ms_peak": 1e3 * float(np.nanmax(line["latency_mean_s"])),
        "latency_ms_after": 1e3 * float(np.nanmean(line["latency_mean_s"][late])),
    }
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}
    if step.slots != _SHOWN:
        return rounded, {}
    every = max(1, len(line["time_s"]) // 240)
    return rounded, {
        **{k: row[k] for k in ("action", "cost", "policy")},
        **{name: plain(values[::every]) for name, values in line.items()},
    }


def plain(values: npt.NDArray[np.float64]) -> list[float | None]:
    """Return numbers for JSON: five digits, None for NaN."""
    return [None if math.isnan(v) else float(f"{v:.5g}") for v in values.tolist()]


def draw(data: Mapping[str, Any]) -> Figure:
    """Return rate, throughput and latency for both actions, beside ScaleJoin's."""
    figure, axes = panels(2, 3)
    shown = [line for line in data["timelines"] if line["cost"] == "constant"]
    for row, action in enumerate(TABLE_4):
        for column, (name, label) in enumerate(
            (
                ("rate_per_s", "records/s"),
                ("comparisons_per_s", "comparisons/s"),
                ("latency_mean_s", "latency, s"),
            )
        ):
            panel = axes[3 * row + column]
            for line in shown:
                if line["action"] == action:
                    values = [float("nan") if v is None else v for v in line[name]]
                    panel.plot(line["time_s"], values, label=line["policy"])
            panel.set(xlabel="time, s", ylabel=label, title=action)
            panel.legend()
        axes[3 * row + 2].set_yscale("log")
    return figure
