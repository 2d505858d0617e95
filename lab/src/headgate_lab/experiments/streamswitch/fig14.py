"""Reproduces figures 14 and 15: success falls with the time that slots spend on switching.

The paper shows [P]: with faster and larger waves (figure 14) 60 to more than 130 switching events
per run, 0.5 to a bit more than 1 s each, and success falling below 80 %; with 0 to 2 s of delay
added to every event (figure 15) 6 s per event at 1 s and 13 s at 2 s, fewer events, a larger share
of switching time, and less success. In both, success and that share are clearly negatively
correlated.

Parameters: query Q5 on Flink under Switch(0.2), 30K records/s, executors limited to 10K/s, 10
minutes after 1 minute of warm-up, 10 runs, from (10K/s, 90 s) to (30K/s, 70 s) in five steps [P]; of
these steps the paper names the ends and the order [I]. Figure 15: (10K/s, 90 s).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.report.plot import panels
from headgate.whatif.parallel import run_all
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.streamswitch.waves import RATE_FACTOR, Wave, averaged, outcome

if TYPE_CHECKING:
    from headgate.report.plot import Figure

WAVES = ((10_000.0, 90.0), (20_000.0, 90.0), (30_000.0, 90.0), (30_000.0, 80.0), (30_000.0, 70.0))
"""Amplitude and period."""
DELAYS_S = (0.0, 0.5, 1.0, 1.5, 2.0)
PAPER = {
    "events": "60 to more than 130 (figure 14)",
    "switching_s": "0.5 to a bit more than 1 (figure 14); 6 at a delay of 1 s, 13 at 2 s (figure 15)",
    "success": "below 0.8 at the end of figure 14",
    "correlation": "clearly negative",
}


def run(request: Request) -> dict[str, Any]:
    """Return events, their time, its share, slots and success, over waves and over delays."""
    if request.quick:
        return measure((WAVES[0], WAVES[2], WAVES[4]), (0.0, 1.0, 2.0), length_s=180.0, runs=1)
    return measure(WAVES, DELAYS_S, length_s=600.0, runs=10)


def measure(
    waves: Sequence[tuple[float, float]], delays_s: Sequence[float], *, length_s: float, runs: int
) -> dict[str, Any]:
    """Return the same for some waves and some delays, each averaged over some runs."""
    settings = [(14, amplitude, period_s, 0.0) for amplitude, period_s in waves]
    settings += [(15, *WAVES[0], delay_s) for delay_s in delays_s]
    items = [
        Wave(
            amplitude,
            period_s,
            10_000.0,
            60.0 + length_s,
            warm_up_s=60.0,
            delay_s=delay_s,
            seed=seed,
        )
        for _, amplitude, period_s, delay_s in settings
        for seed in range(1, runs + 1)
    ]
    outcomes = run_all(outcome, items)
    means = averaged(outcomes, runs)
    rows = [
        {"figure": number, "amplitude": amplitude, "period_s": period_s, "delay_s": delay_s, **row}
        for (number, amplitude, period_s, delay_s), row in zip(settings, means, strict=True)
    ]
    split = len(waves) * runs
    return {
        "mode": "continuous",
        "seeds": list(range(1, runs + 1)),
        "rate_factor": RATE_FACTOR,
        "length_s": length_s,
        "warm_up_s": 60.0,
        "paper": PAPER,
        "correlation": {
            "figure 14": _correlation(outcomes[:split]),
            "figure 15": _correlation(outcomes[split:]),
        },
        "runs": [
            {"success": round(o["success"], 5), "switching_share": round(o["switching_share"], 5)}
            for o in outcomes
        ],
        "rows": rows,
    }


def _correlation(outcomes: Sequence[Mapping[str, float]]) -> float | None:
    """Return the correlation of success and the share of switching time, over single runs.

    None where one of them is the same in all runs.
    """
    pairs = np.array([(o["success"], o["switching_share"]) for o in outcomes])
    if not np.ptp(pairs, axis=0).all():
        return None
    return round(float(np.corrcoef(pairs.T)[0, 1]), 4)


def draw(data: Mapping[str, Any]) -> Figure:
    """Return events and their time, success against the share of switching, and slots, for both."""
    figure, axes = panels(2, 3)
    for row, number in enumerate((14, 15)):
        rows = [r for r in data["rows"] if r["figure"] == number]
        labels = [
            f"{r['amplitude'] / 1000:g}K, {r['period_s']:g} s"
            if number == 14  # noqa: PLR2004 - the figure's number
            else f"+{r['delay_s']:g} s"
            for r in rows
        ]
        events, against, success = axes[3 * row : 3 * row + 3]
        events.plot(labels, [r["events"] for r in rows], "o-", label="events")
        events.set_ylabel("switching events")
        each = events.twinx()
        each.plot(labels, [r["switching_s"] for r in rows], "s--", color="tab:orange")
        each.set_ylabel("time of each, s")
        against.plot([r["switching_share"] for r in rows], [r["success"] for r in rows], "o")
        against.set(xlabel="share of slot time spent switching", ylabel="success")
        success.plot(labels, [r["success"] for r in rows], "o-")
        slots = success.twinx()
        slots.plot(labels, [r["slots_mean"] for r in rows], "s--", color="tab:orange")
        success.set_ylabel("success")
        slots.set_ylabel("slots")
        success.set_title(f"figure {number}")
    return figure
