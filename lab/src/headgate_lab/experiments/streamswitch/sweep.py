"""Sweeps success against slots for figures 5 and 17, and judges which policy dominates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headgate.whatif.decisions import finite
from headgate.whatif.parallel import run_all
from headgate_lab.experiments.streamswitch.exchange import OPERATOR, Trading, simulate

Point = dict[str, Any]

SWITCH = "streamswitch"
PACKING = "packing"
RIVALS = ("static", "drs", "drs-lb")
_BOX = ("least", "lower_quartile", "median", "upper_quartile", "most")
MARKERS = {SWITCH: "o-", PACKING: "x-", "static": "s--", "drs": "^:", "drs-lb": "v-."}


@dataclass(frozen=True)
class Plan:
    """Describes the runs of a sweep.

    Attributes
    ----------
    epsilons : tuple of float
        Of Switch, DRS and DRS-LB; a larger one costs more slots.
    slots : tuple of int
        Of Static.
    shorter : float
        As `Trading.shorter`.
    packing : tuple of float
        Margins of ours, `headgate_lab.rivals.packing.Packing`, to be shown beside them.
    """

    epsilons: tuple[float, ...]
    slots: tuple[int, ...]
    shorter: float
    packing: tuple[float, ...] = ()

    def policies(self) -> list[str]:
        """Return the policies of the sweep, the slowest ones to simulate first."""
        margins = [f"{PACKING}({e:g})" for e in self.packing]
        margins += [f"{name}({e:g})" for name in (SWITCH, "drs-lb", "drs") for e in self.epsilons]
        return margins + [f"static({n})" for n in self.slots]


FULL = Plan((0.0, 0.1, 0.2, 0.3, 0.4), (7, 8, 9, 10, 12), 1.0, (0.1, 0.2, 0.3))
"""20 experiments, as in the paper's figure 5 [P]; which ones, beside those named there, is [I]. Ours
are not among the 20."""

QUICK = Plan((0.0, 0.2, 0.4), (8, 10, 12), 24.0, (0.2,))


def sweep(plan: Plan, variants: Sequence[Trading]) -> list[list[Point]]:
    """Run every policy of a plan in every variant; return the points of each variant.

    Parameters
    ----------
    variants : sequence of Trading
        Their policy and length are replaced.
    """
    policies = plan.policies()
    runs = [
        replace(variant, policy=policy, shorter=plan.shorter)
        for variant in variants
        for policy in policies
    ]
    points = run_all(point, runs)
    return [points[i : i + len(policies)] for i in range(0, len(points), len(policies))]


def point(trading: Trading) -> Point:
    """Run one policy; return its success, slots and changes, and the success of each key group."""
    result = simulate(trading)
    success = result.success(OPERATOR)
    measures = result.operators[OPERATOR]
    box = np.nanquantile(success.rate, (0.0, 0.25, 0.5, 0.75, 1.0)).round(4).tolist()
    return {
        "policy": trading.policy,
        "success": round(success.mean, 5),
        "slots_mean": round(measures.slots_mean, 3),
        **dict(zip(_BOX, box, strict=True)),
        "deviation": round(float(np.nanstd(success.rate)), 5),
        "balances": result.kinds(OPERATOR).get("balance", 0),
        "scale_outs": result.kinds(OPERATOR).get("scale-out", 0),
        "scale_ins": result.kinds(OPERATOR).get("scale-in", 0),
        "switching_share": round(measures.switching_share, 5),
        "windows": success.windows,
        "windows_left_out": int(success.empty.sum()),
        "groups": [finite(rate) for rate in success.rate.round(4).tolist()],
    }


def family(points: Sequence[Point], name: str) -> list[Point]:
    """Return the points of one family of policies, fewest slots first."""
    mine = [p for p in points if p["policy"].partition("(")[0] == name]
    return sorted(mine, key=lambda p: p["slots_mean"])


def success_at(points: Sequence[Point], slots: float) -> float | None:
    """Return the success that Switch reaches with `slots` slots, between its points.

    With more slots than any of them, it is that of the point with most; with fewer than any it is None,
    since Switch was not run with so few.
    """
    switch = family(points, SWITCH)
    if slots < switch[0]["slots_mean"]:
        return None
    known = np.array([(p["slots_mean"], p["success"]) for p in switch])
    return float(np.interp(slots, known[:, 0], known[:, 1]))


def domination(points: Sequence[Point]) -> dict[str, Any]:
    """Return whether Switch has a higher success at equal or fewer slots than each rival.

    Returns
    -------
    dict
        Per rival family ``dominates``, ``least_lead`` (of Switch's success over the rival's, at the
        rival's slots) and ``cheaper`` (points with fewer slots than any of Switch's, left out);
        ``all`` says whether every family is dominated.
    """
    found: dict[str, Any] = {}
    for rival in RIVALS:
        leads = {
            p["policy"]: at - p["success"]
            for p in family(points, rival)
            if (at := success_at(points, p["slots_mean"])) is not None
        }
        cheaper = [p["policy"] for p in family(points, rival) if p["policy"] not in leads]
        least = min(leads, key=leads.__getitem__, default=None)
        found[rival] = {
            "dominates": least is not None and leads[least] > 0.0,
            "least_lead": None if least is None else round(leads[least], 5),
            "against": least,
            "cheaper": cheaper,
        }
    found["all"] = all(found[rival]["dominates"] for rival in RIVALS)
    return found


def rivals_below_static(points: Sequence[Point]) -> dict[str, Any]:
    """Return, per point of DRS and DRS-LB, whether Static has more success with as many slots.

    Between the points of Static; a rival with fewer or more slots than any of them is left out.
    """
    static = family(points, "static")
    known = np.array([(p["slots_mean"], p["success"]) for p in static])
    found: dict[str, Any] = {}
    for rival in RIVALS[1:]:
        at = {
            p["policy"]: float(np.interp(p["slots_mean"], known[:, 0], known[:, 1])) - p["success"]
            for p in family(points, rival)
            if known[0, 0] <= p["slots_mean"] <= known[-1, 0]
        }
        found[rival] = {
            "lead_of_static": {name: round(lead, 5) for name, lead in at.items()},
            "all_below": bool(at) and min(at.values()) > 0.0,
        }
    return found


def inner_box(points: Sequence[Point]) -> dict[str, Any]:
    """Return Switch(0.2) against the rival of each family with the closest number of slots.

    ``lower`` counts the key groups in which Switch's success is below the rival's.
    """
    baseline = next(p for p in points if p["policy"] == f"{SWITCH}(0.2)")
    ours = np.array(baseline["groups"], dtype=np.float64)
    found: dict[str, Any] = {}
    for rival in RIVALS:
        near = min(
            family(points, rival), key=lambda p: abs(p["slots_mean"] - baseline["slots_mean"])
        )
        lower = int((ours < np.array(near["groups"], dtype=np.float64)).sum())
        found[rival] = {
            "policy": near["policy"],
            "slots_mean": near["slots_mean"],
            "success": near["success"],
            "lower": lower,
            "deviation": near["deviation"],
        }
    return {"deviation": baseline["deviation"], "key_groups": len(ours), **found}


def flat(points: Sequence[Point], **more: Any) -> list[dict[str, Any]]:
    """Return points as rows of a table, with columns in front."""
    return [{**more, **{k: v for k, v in p.items() if k != "groups"}} for p in points]


def curves(axes: Any, points: Sequence[Mapping[str, Any]], title: str) -> None:
    """Draw success against slots, one line per family."""
    for name, marker in MARKERS.items():
        mine = family([dict(p) for p in points], name)
        axes.plot([p["slots_mean"] for p in mine], [p["success"] for p in mine], marker, label=name)
    axes.set(xlabel="slots, time average", ylabel="success", title=title)
