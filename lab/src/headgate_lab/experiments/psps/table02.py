"""Computes table II: the predictions of the equations and the resulting replicas of three operators.

The paper shows [P]: received events 100, 84, 63, with what is queued 100, 91, 83, and 2, 3 and 9
replicas. This is arithmetic: nothing is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate.control.pools.psps import Psps, edge_shares, predict
from headgate.control.pools.replicas import Interval, OperatorInterval
from headgate.report.plot import panels
from headgate_lab.experiments.registry import Request

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {"received": [100, 84, 63], "total": [100, 91, 83], "replicas": [2, 3, 9]}

INTERVAL = Interval(
    duration_s=1.0,
    input_events=100.0,
    operators={
        "O1": OperatorInterval(1, 16, 0.0166, processed=140.0, from_source=100.0),
        "O2": OperatorInterval(1, 16, 0.025, processed=120.0, received={"O1": 117.0}, queued=7.0),
        "O3": OperatorInterval(1, 16, 0.100, processed=90.0, received={"O2": 90.0}, queued=20.0),
    },
)
"""Table II a."""


def run(request: Request) -> dict[str, Any]:
    """Return table II b."""
    predictions = predict(INTERVAL, edge_shares(INTERVAL, {}), INTERVAL.input_events)
    replicas = Psps().decide(INTERVAL).active
    rows = [
        {
            "operator": name,
            "theta": round(found.theta, 3),
            "received": found.received,
            "queued": found.queued,
            "total": found.total,
            "replicas": replicas[name],
        }
        for name, found in predictions.items()
    ]
    exact = all([each[key] for each in rows] == PAPER[key] for key in PAPER)
    return {"paper": PAPER, "exact": exact, "rows": rows}


def draw(data: Mapping[str, Any]) -> Figure:
    """Return the replicas."""
    figure, (panel,) = panels()
    names = [each["operator"] for each in data["rows"]]
    panel.bar(names, [each["replicas"] for each in data["rows"]])
    panel.plot(names, data["paper"]["replicas"], "k*", label="paper")
    panel.set(ylabel="replicas")
    panel.legend()
    return figure
