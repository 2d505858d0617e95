"""Reproduces figures 12 and 13: slots of two speeds.

The paper shows [P]: success close to 100 % everywhere, below 99 % only at alpha = 0.5 with many
treatments; more executors with beta where alpha < 1, fewer where alpha > 1; and the slower type is
used less than it is supplied, the faster type more.

Parameters: query Q2 on Flink under Switch(0.2); 30K records/s with an amplitude of 10K/s and a
period of 600 s; normal executors limited to 4K/s; alpha 0.5, 0.75, 1.25, 1.5; beta 0.2 to 0.8; 20
minutes of warm-up and an hour [P]. Differs: 2 runs each, where the paper has 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from headgate.report.plot import panels
from headgate.whatif.parallel import run_all
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.streamswitch.waves import RATE_FACTOR, Wave, averaged, outcome

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {
    "success": "close to 100 %; below 99 % at alpha = 0.5",
    "slots": "more with beta where alpha < 1, fewer where alpha > 1",
    "other_share": "below beta where alpha < 1, above it where alpha > 1",
}


def run(request: Request) -> dict[str, Any]:
    """Return success, slots, the share of the other type and the treatments."""
    if request.quick:
        return measure((0.5, 1.5), (0.2, 0.8), warm_up_s=300.0, length_s=600.0, runs=1)
    return measure(
        (0.5, 0.75, 1.25, 1.5), (0.2, 0.4, 0.6, 0.8), warm_up_s=1200.0, length_s=3600.0, runs=2
    )


def measure(
    alphas: tuple[float, ...],
    betas: tuple[float, ...],
    *,
    warm_up_s: float,
    length_s: float,
    runs: int,
) -> dict[str, Any]:
    """Return the same for some alphas and betas, each pair averaged over some runs."""
    settings = list(product(alphas, betas))
    waves = [
        Wave(
            10_000.0,
            600.0,
            4_000.0,
            warm_up_s + length_s,
            warm_up_s=warm_up_s,
            alpha=alpha,
            beta=beta,
            seed=seed,
        )
        for alpha, beta in settings
        for seed in range(1, runs + 1)
    ]
    means = averaged(run_all(outcome, waves), runs)
    return {
        "mode": "continuous",
        "seeds": list(range(1, runs + 1)),
        "rate_factor": RATE_FACTOR,
        "length_s": length_s,
        "warm_up_s": warm_up_s,
        "paper": PAPER,
        "rows": [
            {"alpha": alpha, "beta": beta, **row}
            for (alpha, beta), row in zip(settings, means, strict=True)
        ],
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return success, slots, share of the other type and treatments, over beta."""
    figure, axes = panels(2, 2)
    names = ("success", "slots_mean", "other_share", "events")
    for name, panel in zip(names, axes, strict=True):
        for alpha in sorted({row["alpha"] for row in data["rows"]}):
            rows = [row for row in data["rows"] if row["alpha"] == alpha]
            betas = [row["beta"] for row in rows]
            panel.plot(betas, [row[name] for row in rows], "o-", label=f"alpha {alpha:g}")
        panel.set(xlabel="beta", ylabel=name)
    axes[2].plot([0, 1], [0, 1], "k:", label="as supplied")
    axes[0].legend()
    return figure
