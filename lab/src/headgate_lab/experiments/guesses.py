"""Measures the effect of parameters that a paper omits and that were changed after a first look.

All other parameters marked [I] were chosen once. These first had another value, `first`, which did not
reproduce the paper's figure. Each row has the figure's main result with another value of one parameter:
half, double, or the first one. If the result changes, the figure shows no more about the paper's system
than that some value reproduces it. Nothing here is from a paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.report.plot import panels
from headgate.whatif.parallel import run_all
from headgate_lab.experiments.henge import fig13, fig14, fig16, table4
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.streamswitch import waves

if TYPE_CHECKING:
    from headgate.report.plot import Figure

Headline = dict[str, Any]

FIRST: Mapping[str, float | None] = {
    "streamswitch-14, sync_s": None,
    "henge-13, cpu_s": 0.010,
    "henge-14, taken": 3.55,
    "henge-16, cpu_s": 0.020,
    "henge-table-4, write_s": 0.020,
}
"""The value before the first look; None where it was calibrated from the beginning."""

VALUES: Mapping[str, tuple[float, ...]] = {
    "streamswitch-14, sync_s": (0.15, 0.3, 0.6),
    "henge-13, cpu_s": (0.0065, 0.010, 0.013, 0.026),
    "henge-14, taken": (1.69, 3.2, 3.38, 3.55, 3.8),
    "henge-16, cpu_s": (0.018, 0.020, 0.036),
    "henge-table-4, write_s": (0.005, 0.010, 0.020, 0.040),
}
"""Doubling is impossible where it exceeds the limit: 3.38 of four cores, or 36 of 40 ms."""


def run(request: Request) -> dict[str, Any]:
    """Return the headline of each figure with each value."""
    left_out = {"henge-16, cpu_s"} if request.quick else set()
    return measure({name: values for name, values in VALUES.items() if name not in left_out})


def measure(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the same for some values of some parameters."""
    items = [(name, value) for name, tried in values.items() for value in tried]
    rows = [
        {"guess": name, "value": value, "in_use": value == _IN_USE[name], **found}
        for (name, value), found in zip(items, run_all(_headline, items), strict=True)
    ]
    return {"mode": "simulated", "paper": {}, "first": dict(FIRST), "rows": rows}


def _headline(item: tuple[str, float]) -> Headline:
    name, value = item
    return _OF[name](value)


def _waves(sync_s: float) -> Headline:
    wave = waves.Wave(30_000.0, 70.0, 10_000.0, 360.0, warm_up_s=60.0, sync_s=sync_s)
    found = waves.outcome(wave)
    return {name: round(found[name], 4) for name in ("success", "events", "switching_s")}


def _production(cpu_s: float) -> Headline:
    found = fig13.measure(3600.0, cpu_s=cpu_s)["reaches"]
    return _acted(found["actions"]) | {"satisfaction": found["satisfaction_at_the_end"]}


def _spike(taken: float) -> Headline:
    found = fig14.measure(4000.0, taken=taken)["reaches"]
    names = ("utility_before", "utility_least", "utility_after", "recovered_s")
    return _acted(found["actions_after_spike"]) | {name: found[name] for name in names}


def _machines(cpu_s: float) -> Headline:
    rows = fig16.measure((10, 20, 30), 5400.0, cpu_s=cpu_s)["rows"]
    return {f"met_{row['hosts']}": row["met"] for row in rows}


def _writes(write_s: float) -> Headline:
    stateful, stateless = table4.measure(5, write_s=write_s)["rows"]
    more = stateful["converged_s"] / stateless["converged_s"] - 1.0
    return {
        "rounds": (stateful["rounds"], stateless["rounds"]),
        "converged_s": (stateful["converged_s"], stateless["converged_s"]),
        "percent_more": round(100.0 * more, 1),
    }


def _acted(kinds: Mapping[str, int]) -> Headline:
    return {kind: kinds.get(kind, 0) for kind in ("reconfiguration", "reduction", "reversion")}


_OF: Mapping[str, Callable[[float], Headline]] = {
    "streamswitch-14, sync_s": _waves,
    "henge-13, cpu_s": _production,
    "henge-14, taken": _spike,
    "henge-16, cpu_s": _machines,
    "henge-table-4, write_s": _writes,
}
_IN_USE: Mapping[str, float] = {
    "streamswitch-14, sync_s": waves.SYNC_S,
    "henge-13, cpu_s": fig13.ANALYSIS_CPU_S,
    "henge-14, taken": fig14.TAKEN,
    "henge-16, cpu_s": fig16.CPU_S,
    "henge-table-4, write_s": table4.WRITE_S,
}
_SHOWN = {
    "streamswitch-14, sync_s": "success",
    "henge-13, cpu_s": "satisfaction",
    "henge-14, taken": "utility_least",
    "henge-16, cpu_s": "met_20",
    "henge-table-4, write_s": "percent_more",
}


def draw(data: Mapping[str, Any]) -> Figure:
    """Return one number of each figure over its parameter's values."""
    names = list(dict.fromkeys(row["guess"] for row in data["rows"]))
    figure, axes = panels(1, len(names))
    for panel, name in zip(axes, names, strict=True):
        rows = [row for row in data["rows"] if row["guess"] == name]
        panel.plot([row["value"] for row in rows], [row[_SHOWN[name]] for row in rows], "o-")
        panel.set(xlabel=name, ylabel=_SHOWN[name])
    return figure
