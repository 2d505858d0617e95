"""Shows figures 5 and 6 scaled down: runs on Spark kept by ``headgate bench slo``, and the model.

The paper shows [P] Switch above Static, DRS and DRS-LB at equal slots (figure 5), and slots that
follow the load while latency stays near and below its bound (figure 6). Differs: minutes, not hours;
slots limited to a rate; micro-batches.

Every run is simulated as well, in micro-batch mode. The cost of batches is taken from a separate run,
`CALIBRATION`, so the difference is that of a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.core.errors import ConfigError
from headgate.report.plot import panels
from headgate.whatif.calibration import calibrated
from headgate.whatif.recording import Recorded
from headgate.whatif.replay import replayed
from headgate_lab.experiments.registry import Request

if TYPE_CHECKING:
    from headgate.report.plot import Figure

CALIBRATION = "calibration"
"""Directory of the run from which only the cost of batches is taken."""

_STEP_S = 2.0
"""Length of a step of the pictures, in seconds."""

PAPER = {
    "5": "Switch above Static, DRS and DRS-LB at equal slots (simulated here by streamswitch-5)",
    "6": "slots follow the load; mean and P99 latency stay near and below 1 s",
}


def run(request: Request) -> dict[str, Any]:
    """Return success and slots of each run, measured and predicted."""
    assert request.data is not None
    kept = sorted(p.parent.parent for p in request.data.glob("*/headgate/journal.jsonl"))
    runs = [path for path in kept if path.name != CALIBRATION]
    if len(runs) == len(kept) or not runs:
        msg = (
            f"{request.data} does not hold what bench slo keeps, {CALIBRATION} and a run per "
            "policy; make it with headgate bench slo --option keep=DIR."
        )
        raise ConfigError(msg)
    rows, timelines = [], []
    costs = replace(calibrated(Recorded.read(request.data / CALIBRATION)), factors=None)
    for path in runs:
        recorded = Recorded.read(path)
        rows.append({"run": path.name, **_row(replayed(recorded, costs))})
        timelines.append({"run": path.name, **_timeline(recorded)})
    rows.sort(key=lambda row: row["slots_mean"])
    within = [
        row["run"]
        for row in rows
        if abs(row["error_points"]) <= 3.0 and abs(row["error_slots_percent"]) <= 15.0  # noqa: PLR2004
    ]
    return {"paper": PAPER, "rows": rows, "predicted": within, "timelines": timelines}


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    real, model, error = found["real"], found["model"], found["error"]
    return {
        "success": real["success"],
        "success_worst": real["success_worst"],
        "slots_mean": real["slots_mean"],
        "latency_mean_ms": real["latency_mean_ms"],
        "balances": real["changes"].get("balance", 0),
        "scale_outs": real["changes"].get("scale-out", 0),
        "scale_ins": real["changes"].get("scale-in", 0),
        "rescales": real["changes"].get("rescale", 0),
        "model_success": model["success"],
        "model_slots_mean": model["slots_mean"],
        "error_points": error["success_points"],
        "error_slots_percent": error["slots_percent"],
    }


def _timeline(recorded: Recorded) -> dict[str, list[float]]:
    """Return load, slots and latencies of the run in steps of `_STEP_S`."""
    batches = recorded.batches
    step = ((recorded.began_s - recorded.began_s[0]) / _STEP_S).astype(np.int64)
    starts = np.unique(step, return_index=True)[1]
    served = np.array([b.served for b in batches], dtype=np.float64)
    latency = [(b.latency_ms.mean, b.latency_ms.p99) if b.latency_ms else (0, 0) for b in batches]
    mean_ms, p99_ms = np.array(latency, dtype=np.float64).T
    total = np.maximum(np.add.reduceat(served, starts), 1.0)
    per_step = np.diff(np.append(starts, len(batches)))
    series = {
        "time_s": step[starts] * _STEP_S,
        "arrivals_per_s": np.add.reduceat([float(b.arrived) for b in batches], starts) / _STEP_S,
        "slots": np.add.reduceat([float(b.slots) for b in batches], starts) / per_step,
        "latency_mean_s": np.add.reduceat(mean_ms * served, starts) / total / 1e3,
        "latency_p99_s": np.maximum.reduceat(p99_ms, starts) / 1e3,
    }
    return {name: np.round(values, 4).tolist() for name, values in series.items()}


def draw(data: Mapping[str, Any]) -> Figure:
    """Return success against slots, measured and predicted, and the runs over time."""
    figure, (points, load, slots, latency) = panels(2, 2)
    for row in data["rows"]:
        (mark,) = points.plot(row["slots_mean"], row["success"], "o", label=row["run"])
        points.plot(
            row["model_slots_mean"], row["model_success"], "o", mfc="none", color=mark.get_color()
        )
    points.set(xlabel="slots, time average", ylabel="success (open: predicted)")
    points.legend()
    load.plot(data["timelines"][0]["time_s"], data["timelines"][0]["arrivals_per_s"])
    load.set(xlabel="time, s", ylabel="records per second")
    for line in data["timelines"]:
        slots.plot(line["time_s"], line["slots"], lw=0.8, label=line["run"])
        latency.plot(line["time_s"], line["latency_p99_s"], lw=0.6, label=line["run"])
    slots.set(xlabel="time, s", ylabel="slots")
    latency.axhline(1.0, color="k", ls=":")
    latency.set(xlabel="time, s", ylabel="P99 latency, s", yscale="log")
    slots.legend()
    return figure
