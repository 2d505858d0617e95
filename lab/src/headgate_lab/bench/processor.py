"""Compares user-defined state in Python in headgate's slots with Spark's operators for it.

The job is that of `headgate_lab.bench.aggregate`, count and sum per key with the answer checked key by
key, as a processor: vectorised (`hg.ArrowProcessor`), and PySpark's own forms unchanged in slots. The
baselines are PySpark's forms on plain Spark.
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
"""(headgate's, Spark's) -> least ratio of headgate's rows/s to Spark's; design, figures to reach."""

_PER_KEY = tuple(name for name, baseline in BASELINES.items() if baseline.slow)
_VECTORISED = "headgate-arrow"

_WARM = {"batches": 10, "dropped_batches": 5}
"""Batches of the vectorised form when they are small. The first five take a few seconds, in which the JVM
still compiles; forms that call Python per key spend as long in their first batch."""


def run(**given: Any) -> dict[str, Any]:
    """Return the result of `aggregate.run` for processors, with the ratios of headgate's to Spark's.

    The vectorised form runs twice: with the large batches of the design's table, and with the small ones
    of the forms that call Python per key.

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
    """Return the ratio of median rows/s of each form in headgate to each on Spark, with the targets."""
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
