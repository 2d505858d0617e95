"""Compares policies on StreamSwitch's trading day, figure 5: success at no more slots."""

from __future__ import annotations

from typing import Any

from headgate_lab.experiments.streamswitch.exchange import Trading
from headgate_lab.experiments.streamswitch.sweep import Plan, family, success_at, sweep
from headgate_lab.experiments.unified.beside import Beside, Measure

POLICY = "unified(0.1)"
_MARGINS = (0.0, 0.1, 0.2, 0.3)


class _Plan(Plan):
    """Names the policies of a run: StreamSwitch with several margins, and ours."""

    def policies(self) -> list[str]:
        """Return ours first."""
        return [POLICY, *(f"streamswitch({epsilon:g})" for epsilon in self.epsilons)]


def compare(shorter: float) -> Beside:
    """Return ours and StreamSwitch at the same slots, interpolated between the points of its margins.

    Its baseline, which may have more or fewer slots, is shown as well.

    Parameters
    ----------
    shorter : float
        Factor by which the day is shorter than the paper's.
    """
    points = sweep(_Plan(_MARGINS, (), shorter), [Trading("")])[0]
    ours = next(point for point in points if point["policy"] == POLICY)
    nearest = success_at(points, ours["slots_mean"])
    known = [_row(point) for point in family(points, "streamswitch")]
    between = {
        "policy": "streamswitch, with as many slots",
        "success": known[0]["success"] if nearest is None else round(nearest, 5),
        "slots": ours["slots_mean"] if nearest is not None else known[0]["slots"],
    }
    baseline = next(row for row in known if row["policy"] == "streamswitch(0.2)")
    measures = (Measure("success", more=True), Measure("slots", within=1e-9))
    name = f"trading day, {shorter:g} times shorter"
    return Beside(name, measures, _row(ours), [between], [baseline])


def _row(point: dict[str, Any]) -> dict[str, Any]:
    changes = point["balances"] + point["scale_outs"] + point["scale_ins"]
    return {
        "policy": point["policy"],
        "success": point["success"],
        "slots": point["slots_mean"],
        "changes": changes,
    }
