"""Compares the utility of jobs on Spark under Henge, `unified`, equal shares, and first come.

Jobs of priorities 10, 20, ... are submitted in a random order, each with one slot, which serves a
fraction of the arriving records. The scarce budget has the slots that Henge would give to half of the
jobs; the other budget is enough for all. The paper has no such figure; `headgate figure henge-rivals` is
the counterpart in the simulator.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headgate.control.fleet.henge import Henge
from headgate.control.fleet.registry import unified
from headgate.control.fleet.view import FleetPolicy
from headgate.spark.cluster.session import session
from headgate_lab.bench.common import machine, parameters, require
from headgate_lab.bench.fleets import (
    OBSERVED_ROUNDS,
    SLOT_RATE,
    Load,
    Setting,
    run_fleet,
    scaled_down,
)
from headgate_lab.rivals.shares import EqualShares, FirstCome

_HEADROOM = 1.5
"""Approximate number of slots that Henge gives a job, relative to the least with which it keeps up."""

_LONGER = 2.5
"""Factor of a run's length with enough slots, since more jobs get slots, one after the other."""

_ACTED_ROUNDS = 30
"""Rounds before which a run does not end early, since every job meets its SLO at first."""

_DIVIDED_ROUNDS = 6
"""Rounds between two divisions by equal shares."""

_OURS, _RIVALS = ("henge", "unified"), ("equal-shares", "first-come")


@dataclass(frozen=True)
class FleetUtilityParameters:
    """Holds the parameters of `run`."""

    jobs: int = 6
    """Number of jobs; >= 2."""

    seconds: float = 80.0
    """Length of a run after its last job has started; with enough slots up to 2.5 times as long; > 0."""

    rate: int = 250
    """Rows per second of each job; a slot serves 100."""

    bound_s: float = 5.0
    """Bound of the SLO on the mean latency, in seconds; > 0."""

    round_s: float = 1.5
    """Time between two decisions, and between two batches of a job; > 0."""

    seed: int = 1
    """Seed of the order of submission; >= 0."""

    policies: str = ",".join((*_OURS, *_RIVALS))
    """Policies that run, separated by commas; with enough slots only henge and unified of them."""

    def __post_init__(self) -> None:
        require(self.jobs > 1, f"jobs={self.jobs} of fleet-utility is out of range; use 6.")
        least = int(SLOT_RATE)
        require(self.rate > least, f"rate={self.rate} of fleet-utility must be above {least}.")
        for name in ("seconds", "bound_s", "round_s"):
            value = getattr(self, name)
            require(value > 0, f"{name}={value} of fleet-utility must be above 0.")
        for name in self.policies.split(","):
            known = (*_OURS, *_RIVALS)
            require(
                name in known, f"policies={name} of fleet-utility is none of {', '.join(known)}."
            )


def run(**given: Any) -> dict[str, Any]:
    """Run the same jobs under each policy with too few slots, and under headgate's with enough.

    Parameters
    ----------
    **given
        Fields of `FleetUtilityParameters`.

    Returns
    -------
    dict
        ``rows`` (``slots``, ``budget``, ``policy``, ``utility``, ``share`` of the maximum), ``times``
        (by policy, its utility over each rival's, scarce slots), ``order`` (priorities as submitted),
        ``runs`` (by budget and policy, as of `fleets.outcome`), ``parameters``, ``machine``.
    """
    chosen = parameters(FleetUtilityParameters, given)
    each = round(_HEADROOM * chosen.rate / SLOT_RATE)
    budgets = {"scarce": chosen.jobs * each // 2, "enough": chosen.jobs * each + each}
    jobs = _jobs(chosen)
    runs: dict[str, dict[str, Any]] = {}
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-fleet-utility-") as work:
            for slots, budget in budgets.items():
                for name, policy in _policies(chosen, slots).items():
                    enough = slots == "enough"
                    seconds = chosen.seconds * (_LONGER if enough else 1.0)
                    setting = Setting(budget, chosen.bound_s, seconds, chosen.round_s)
                    place = Path(work) / f"{slots}-{name}"
                    met_after_s = _ACTED_ROUNDS * chosen.round_s if enough else math.inf
                    runs[f"{slots}, {name}"] = {
                        "slots": slots,
                        "budget": budget,
                        "policy": name,
                        **run_fleet(spark, jobs, setting, policy, place, met_after_s),
                    }
    finally:
        spark.stop()
    return {
        "rows": [_row(found) for found in runs.values()],
        "times": times(runs),
        "order": [job.priority for job in jobs],
        "runs": runs,
        "parameters": asdict(chosen),
        "machine": machine(),
    }


def _jobs(chosen: FleetUtilityParameters) -> list[Load]:
    """Return the jobs in the order in which they are submitted."""
    order = np.random.default_rng(chosen.seed).permutation(chosen.jobs) + 1
    return [Load(f"T{k}", float(chosen.rate), priority=10.0 * float(k)) for k in order]


def _policies(chosen: FleetUtilityParameters, slots: str) -> dict[str, FleetPolicy]:
    given = scaled_down(chosen.round_s)
    observe_s = OBSERVED_ROUNDS * chosen.round_s
    made: dict[str, FleetPolicy] = {
        "henge": Henge(given),
        "unified": unified(chosen.round_s, observe_s=observe_s),
        "equal-shares": EqualShares(_DIVIDED_ROUNDS * chosen.round_s),
        "first-come": FirstCome(given),
    }
    asked = chosen.policies.split(",")
    meant = _OURS if slots == "enough" else made
    return {name: policy for name, policy in made.items() if name in asked and name in meant}


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    known = found["utility"] is not None
    share = round(found["utility"] / found["utility_max"], 4) if known else None
    kept = {key: found[key] for key in ("slots", "budget", "policy", "utility", "met")}
    return kept | {"share": share}


def times(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return the ratio of each policy's utility to each rival's with scarce slots; None if that is 0."""
    scarce = {r["policy"]: r["utility"] for r in runs.values() if r["slots"] == "scarce"}
    return {
        name: {rival: _ratio(scarce[name], scarce[rival]) for rival in _RIVALS if rival in scarce}
        for name in _OURS
        if name in scarce
    }


def _ratio(worth: float | None, than: float | None) -> float | None:
    return round(worth / than, 2) if worth is not None and than else None
