"""A user's own Python state in headgate's slots, beside Spark's operators for the same.

The job of `headgate.engines.spark.bench.aggregate`, count and sum per key with the answer checked key
by key, as a processor: vectorised (`hg.ArrowProcessor`), and PySpark's own forms unchanged in slots,
against the same forms on plain Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.engines.spark.bench import aggregate
from headgate.engines.spark.bench.native import BASELINES, PROCESSORS

TARGETS: Mapping[tuple[str, str], float] = {
    ("headgate-arrow", "applyInPandasWithState"): 50.0,
    ("headgate-arrow", "transformWithState"): 25.0,
    ("headgate-rows", "transformWithState"): 3.0,
}
"""(ours, Spark's) -> our rows/s over theirs, at least; design, figures to reach."""

_PER_KEY = tuple(name for name, baseline in BASELINES.items() if baseline.slow)


def run(**given: Any) -> dict[str, Any]:
    """Return what `aggregate.run` says of processors, with the ratios of ours to Spark's.

    Parameters
    ----------
    **given
        Fields of `aggregate.AggregateParameters`.
    """
    wanted: dict[str, Any] = {
        "keys": (aggregate.FEW_KEYS,),
        "engines": (*PROCESSORS, *_PER_KEY),
        "batches": 3,
        "dropped_batches": 1,
    }
    found = aggregate.run(**(wanted | given))
    return found | {"benchmark": "processor", "ratios": ratios(found["engines"])}


def ratios(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the median rows/s of each of ours over each of Spark's, beside the targets."""
    rates = {e["engine"]: e for e in entries if e.get("rows_per_s")}
    made = []
    for ours in PROCESSORS:
        for theirs in _PER_KEY:
            if ours not in rates or theirs not in rates:
                continue
            mine, other = rates[ours], rates[theirs]
            ratio = mine["rows_per_s"]["median"] / other["rows_per_s"]["median"]
            target = TARGETS.get((ours, theirs))
            made.append(
                {
                    "ours": ours,
                    "theirs": theirs,
                    "ratio": ratio,
                    "target": target,
                    "met": None if target is None else ratio >= target,
                    # a batch of more rows spreads its fixed cost over more
                    "same_rows_per_batch": mine["rows_per_batch"] == other["rows_per_batch"],
                }
            )
    return made
