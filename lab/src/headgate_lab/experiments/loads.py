"""Compares policies with the oracle and the best constant on loads that were not made for them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headgate.control.registry import policy
from headgate.core.errors import ConfigError
from headgate.core.slo import SUCCESS, Slo
from headgate.loop.settings import OperatorSettings
from headgate.whatif import simulate
from headgate.whatif.model import OperatorModel, ServiceTime
from headgate.whatif.oracle import Constants, Load, Point, oracle, whole
from headgate.whatif.parallel import run_all
from headgate.whatif.result import RunResult
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.arrivals import RecordedArrivals
from headgate_lab.sim.regret import regrets
from headgate_lab.sim.score import Score, score
from headgate_lab.workloads.later import LATER, later
from headgate_lab.workloads.loads import COUNT, SLOTS, NamedLoad, generated, split, traces

OPERATOR = "operator"
PARTS = ("building", "aside", "traces", "later")
_LATER_FROM = 2 * COUNT
"""Number of the first of `later`'s loads."""

_START = 5
"""Slots at the start: what the mean load needs, with a fifth to spare."""


@dataclass(frozen=True)
class LoadRuns:
    """Names a load and the policies to run on it.

    Attributes
    ----------
    number : int
        Of a generated load; from `COUNT` on, of the traces; from `_LATER_FROM` on, of `later`.
    data : Path or None
        Directory of the traces.
    cache : Path or None
        Where the oracle and the constants of each load are kept.
    """

    number: int
    policies: tuple[str, ...]
    data: Path | None = None
    cache: Path | None = None


def measure(
    policies: Sequence[str],
    part: str = "building",
    *,
    data: Path | None = None,
    cache: Path | None = None,
    jobs: int | None = None,
    every: int = 1,
) -> dict[str, Any]:
    """Return the table of some policies over a part of the loads.

    Parameters
    ----------
    part : str
        One of `PARTS`.
    data, cache : Path, optional
        As `LoadRuns`.
    jobs : int, optional
        Processes; default: one per core.
    every : int
        Step between the loads that are used; above 1 for a quick look.

    Returns
    -------
    dict
        ``rows``: a summary per policy; ``loads``: a row per load and policy.
    """
    for text in policies:
        policy(text)
    works = [LoadRuns(n, tuple(policies), data, cache) for n in _numbers(part, data)[::every]]
    found = [row for rows in run_all(rows_of, works, jobs) for row in rows]
    return {
        "part": part,
        "loads_measured": len(works),
        "slots_of_the_mean": SLOTS,
        "rows": [_summary(found, name) for name in dict.fromkeys(r["policy"] for r in found)],
        "loads": found,
    }


def _numbers(part: str, data: Path | None) -> Sequence[int]:
    """Return the numbers of a part's loads, as `LoadRuns` has them."""
    if part not in PARTS:
        msg = f'unknown part "{part}"; use {", ".join(PARTS)}.'
        raise ConfigError(msg)
    if part in PARTS[:2]:
        return split()[PARTS.index(part)]
    if data is None:
        msg = "the traces are in no file of headgate; name their directory with --data."
        raise ConfigError(msg)
    if part == "later":
        return range(_LATER_FROM, _LATER_FROM + LATER)
    return range(COUNT, COUNT + len(traces(data)))


def rows_of(work: LoadRuns) -> list[dict[str, Any]]:
    """Return one row per policy on one load."""
    named = _named(work)
    points, constants, together = _reference(named, work.cache)
    known = set(constants.points)
    rows = []
    for text in work.policies:
        result = run(named.load, text)
        rows.append(
            {"load": named.name, "kind": named.kind}
            | _row(named, text, result, points, constants)
            | {"whole": round(together.slots, 3), "whole_success": round(together.success, 5)}
        )
    if work.cache is not None and set(constants.points) != known:
        _keep(work.cache, named, points, constants, together)
    return rows


def run(
    load: Load, policy_text: str, success: float = SUCCESS, *, batches: bool = False
) -> RunResult:
    """Return the result of a policy on a load, by the continuous simulator or in micro-batches."""
    mean_s = float(load.demand_s.mean())
    start = _start(policy_text, load)
    # Every record has its own time, so the mean is 1 s of which each takes its part.
    model = OperatorModel(ServiceTime(1.0), key_groups=load.key_groups, slots=start)
    stream = RecordedArrivals(load.arrival_s, load.groups, load.demand_s, load.key_groups)
    settings = OperatorSettings(
        load.bound_s,
        load.window_s,
        load.slots_max,
        alert_s=load.bound_s / 10.0,
        initial_service_rate=1.0 / mean_s,
        success=success,
    )
    engine = simulate.engine(Slo("mean", load.bound_s, load.window_s), load.slots_max)
    return Simulation(
        SimulatedJob({OPERATOR: model}, {OPERATOR: stream}),
        policy(policy_text),
        {OPERATOR: settings},
        seed=1,
        delta_s=load.delta_s,
        micro_batch=engine if batches else None,
        settings_at=(lambda _, floor_s: replace(settings, floor_s=floor_s)) if batches else None,
    ).run(load.duration_s)


def _start(policy_text: str, load: Load) -> int:
    name, _, rest = policy_text.partition("(")
    if name.strip() == "static" and rest:
        return min(int(rest.rstrip(") ").removeprefix("n=")), load.key_groups)
    return _START


def _named(work: LoadRuns) -> NamedLoad:
    if work.number < COUNT:
        return generated(work.number)
    assert work.data is not None
    if work.number >= _LATER_FROM:
        return later(work.number - _LATER_FROM, work.data)
    return traces(work.data)[work.number - COUNT]


def _reference(named: NamedLoad, cache: Path | None) -> tuple[list[Point], Constants, Point]:
    """Return the oracle, the constants and whole key groups at 99 %, from the cache where they are."""
    path = None if cache is None else cache / f"{named.name}.json"
    if path is not None and path.is_file():
        kept = json.loads(path.read_text())
        if kept["of"] == _print_of(named.load):
            points = [Point(**point) for point in kept["oracle"]]
            constants = Constants(named.load, [Point(**p) for p in kept["constants"]])
            if "whole" in kept:
                return points, constants, Point(**kept["whole"])
            together = whole(named.load, 0.99)
            _keep(path.parent, named, points, constants, together)
            return points, constants, together
    points, constants = oracle(named.load), Constants(named.load)
    constants.best(0.99)
    together = whole(named.load, 0.99)
    if cache is not None:
        _keep(cache, named, points, constants, together)
    return points, constants, together


def _keep(
    cache: Path, named: NamedLoad, points: list[Point], constants: Constants, together: Point
) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    kept = {
        "of": _print_of(named.load),
        "oracle": [asdict(point) for point in points],
        "constants": [asdict(point) for point in constants.points.values()],
        "whole": asdict(together),
    }
    # Whole or not at all: other processes read it.
    part = cache / f"{named.name}.{os.getpid()}"
    part.write_text(json.dumps(kept))
    part.replace(cache / f"{named.name}.json")


def _print_of(load: Load) -> list[float]:
    """Return numbers that distinguish loads of the same name."""
    sums = (load.arrival_s.sum(), load.groups.sum(), (load.demand_s * load.arrival_s).sum())
    return [float(len(load.groups)), *(float(value) for value in sums), load.from_s]


def _row(
    named: NamedLoad, text: str, result: RunResult, points: list[Point], constants: Constants
) -> dict[str, Any]:
    found: Score = score(result, OPERATOR, named.load, points, constants)
    best = constants.best(0.99)
    return {
        "load": named.name,
        "kind": named.kind,
        "policy": text,
        "rate_per_s": round(named.rate_per_s, 1),
        "success": round(found.success, 5),
        "worst": round(found.worst, 5),
        "records_in_time": round(result.records_in_time(OPERATOR, named.load.bound_s), 5),
        "slots": round(found.slots, 3),
        "oracle": round(found.oracle_slots, 3),
        "oracle_success": round(max(point.success for point in points), 5),
        "to_oracle": round(found.to_oracle, 3),
        "constant": found.constant.slots,
        "constant_success": round(found.constant.success, 5),
        "to_constant": round(found.to_constant, 3),
        "constant_99": best.slots,
        "changes_per_h": round(found.changes_per_hour, 1),
        "lost_slot_s": round(found.lost_slot_s, 2),
        **asdict(regrets(result, OPERATOR, named.load)),
    }


def _summary(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return medians, and the worst tenth, of one policy over all loads."""
    mine = [row for row in rows if row["policy"] == name]

    def of(key: str, quantile: float) -> float:
        return round(float(np.quantile([row[key] for row in mine], quantile)), 4)

    can = [row for row in mine if row["oracle_success"] >= 0.99]  # noqa: PLR2004
    whole_can = [row for row in mine if row["whole_success"] >= 0.99]  # noqa: PLR2004
    no_worse = [
        row["to_constant"] <= 1.15 and row["success"] >= row["constant_success"] - 0.005  # noqa: PLR2004
        for row in mine
    ]
    return {
        "policy": name,
        "loads": len(mine),
        "success_median": of("success", 0.5),
        "success_worst_tenth": of("success", 0.1),
        "at_99": round(sum(r["success"] >= 0.99 for r in can) / max(len(can), 1), 3),  # noqa: PLR2004
        "at_99_of_whole": round(
            sum(r["success"] >= 0.99 for r in whole_can) / max(len(whole_can), 1),  # noqa: PLR2004
            3,
        ),
        "to_whole_median": round(float(np.median([r["slots"] / r["whole"] for r in mine])), 4),
        "to_whole_worst_tenth": round(
            float(np.quantile([r["slots"] / r["whole"] for r in mine], 0.9)), 4
        ),
        "records_in_time_median": of("records_in_time", 0.5),
        "records_in_time_worst_tenth": of("records_in_time", 0.1),
        "worst_group_median": of("worst", 0.5),
        "slots_median": of("slots", 0.5),
        "slots_worst_tenth": of("slots", 0.9),
        "to_oracle_median": of("to_oracle", 0.5),
        "to_oracle_worst_tenth": of("to_oracle", 0.9),
        "to_constant_median": of("to_constant", 0.5),
        "to_constant_worst_tenth": of("to_constant", 0.9),
        "no_worse_than_constant": round(sum(no_worse) / len(mine), 3),
        "changes_per_h_median": of("changes_per_h", 0.5),
        "changes_per_h_worst_tenth": of("changes_per_h", 0.9),
        "lost_slot_s_median": of("lost_slot_s", 0.5),
        **{name: _share(mine, *pair) for name, pair in _REGRETS.items()},
    }


_REGRETS = {
    "scale_ins_regretted": ("scale_ins_regretted", "scale_ins"),
    "scale_outs_too_late": ("scale_outs_too_late", "scale_outs"),
    "moves_worse": ("moves_worse", "moves"),
}
"""Shares of the changes of a kind, over all loads."""


def _share(rows: Sequence[dict[str, Any]], part: str, whole: str) -> float | None:
    total = sum(row[whole] for row in rows)
    return round(sum(row[part] for row in rows) / total, 4) if total else None
