"""A user's own Python state in headgate's slots, beside Spark's operators for the same.

The job of `headgate_lab.bench.aggregate`, count and sum per key with the answer checked key
by key, as a processor: vectorised (`hg.ArrowProcessor`), and PySpark's own forms unchanged in slots,
against the same forms on plain Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate_lab.bench import aggregate
from headgate_lab.bench.common import parameters
from headgate_lab.bench.native import BASELINES, PROCESSORS

TARGETS: Mapping[tuple[str, str], float] = {
    ("headgate-arrow", "applyInPandasWithState"): 50.0,
    ("headgate-arrow", "transformWithState"): 25.0,
    ("headgate-rows", "transformWithState"): 3.0,
    ("headgate-function", "applyInPandasWithState"): 3.0,
}
"""(ours, Spark's) -> our rows/s over theirs, at least; design, figures to reach."""

_PER_KEY = tuple(name for name, baseline in BASELINES.items() if baseline.slow)
_VECTORISED = "headgate-arrow"

_WARM = {"batches": 10, "dropped_batches": 5}
"""Of the vectorised form with small batches: five are a few seconds of a JVM that still compiles, which
forms that call Python per key spend within their first batch."""


def run(**given: Any) -> dict[str, Any]:
    """Return what `aggregate.run` says of processors, with the ratios of ours to Spark's.

    The vectorised one runs twice: with batches as large as the design's table has them, and with those
    that the forms get which call Python per key.

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
    wanted |= given
    found = aggregate.run(**wanted)
    asked = parameters(aggregate.AggregateParameters, wanted)
    if _VECTORISED in asked.names() and asked.rows_per_batch > asked.slow_rows_per_batch:
        same = {"engines": _VECTORISED, "rows_per_batch": asked.slow_rows_per_batch}
        again = aggregate.run(**(wanted | _WARM | given | same))
        found["engines"] += again["engines"]
        found["failed"] += again["failed"]
    return found | {"benchmark": "processor", "ratios": ratios(found["engines"])}


def ratios(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the median rows/s of each of ours over each of Spark's, beside the targets."""
    timed = [entry for entry in entries if entry.get("rows_per_s")]
    ours = [entry for entry in timed if entry["engine"] in PROCESSORS]
    return [_ratio(mine, other) for mine in ours for other in timed if other["engine"] in _PER_KEY]


def _ratio(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    ratio = mine["rows_per_s"]["median"] / other["rows_per_s"]["median"]
    target = TARGETS.get((mine["engine"], other["engine"]))
    return {
        "ours": mine["engine"],
        "theirs": other["engine"],
        "rows_per_batch": [mine["rows_per_batch"], other["rows_per_batch"]],
        "ratio": ratio,
        "target": target,
        "met": None if target is None else ratio >= target,
    }
