"""Runs part `counts` of ``bench operators``: words and pairs, shared, partitioned, on Spark and Flink.

*shared* and *partitioned* are those of figure 6: a source and slots as processes of this machine. Spark's
rates include reading files, planning batches and writing state to a changelog; Flink's include parsing
lines of text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headgate_lab.bench import flink_words as on_flink
from headgate_lab.bench import words as on_spark
from headgate_lab.bench.common import parameters, progress, require
from headgate_lab.bench.sides import failed
from headgate_lab.experiments.stretch import fig06
from headgate_lab.experiments.stretch.words import Count
from headgate_lab.workloads.tweets import keys_per_tweet

TARGETS: Mapping[str, float] = {"pairs-any": 3.8}
"""Shared over partitioned throughput, at least; design, figures to reach."""


@dataclass(frozen=True)
class CountsParameters:
    """Holds the parameters of `run`."""

    seconds: float = 2.0
    """How long each exchange is measured for each case."""

    tweets_per_batch: int = 100_000
    """Tweets per batch on Spark; a file of Flink's has `flink_words.TIMES` as many."""

    slots: int = 2
    """Processes that count; slots and partitions on Spark, parallelism of Flink."""

    timeout_s: float = 900.0
    """After this a process of Spark or Flink is stopped and counts as failed."""

    def __post_init__(self) -> None:
        require(self.seconds > 0, "seconds must be > 0")
        require(min(self.tweets_per_batch, self.slots) >= 1, "tweets and slots must be >= 1")


def run(**given: Any) -> dict[str, Any]:
    """Return tweets per second of every side, and ratios of the shared exchange to the others.

    Parameters
    ----------
    **given
        Fields of `CountsParameters`.

    Raises
    ------
    ConfigError    A parameter is unknown or out of range.
    WrongAnswer    An engine's answer is not the exact one.
    """
    asked = parameters(CountsParameters, given)
    rows = [_exchanges(case, asked) for case in on_spark.DISTANCES]
    sizes = {"rows": asked.tweets_per_batch, "slots": asked.slots}
    entries: list[dict[str, Any]] = []
    for engines in (on_spark, on_flink):
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as name:
            entries += engines.compare(
                tuple(on_spark.DISTANCES), Path(name), timeout_s=asked.timeout_s, **sizes
            )
    return {
        "benchmark": "counts",
        "parameters": asdict(asked),
        "exchanges": rows,
        "engines": entries,
        "ratios": ratios(rows, entries),
        "failed": failed(entries),
    }


def _exchanges(case: str, asked: CountsParameters) -> dict[str, Any]:
    distance = on_spark.DISTANCES[case]
    row: dict[str, Any] = {"case": case, "keys_per_tweet": round(keys_per_tweet(distance), 1)}
    for kind in ("shared", "partitioned"):
        count = Count(asked.slots, distance, shared=kind == "shared")
        row[f"{kind}_per_s"] = round(fig06.throughput(count, asked.seconds))
    progress(
        f"{case}: {row['shared_per_s']} tweets/s shared, {row['partitioned_per_s']} partitioned"
    )
    return row


def ratios(
    rows: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return, per case, the shared exchange's tweets/s over those of each other side, and the targets.

    Parameters
    ----------
    rows : sequence of mapping
        ``case``, ``shared_per_s``, ``partitioned_per_s``.
    entries : sequence of mapping
        Of engines, with ``case``, ``engine`` and ``rows_per_s``; those without a rate do not count.
    """
    found = []
    for row in rows:
        case, target = row["case"], TARGETS.get(row["case"])
        rates = {"partitioned": (row["partitioned_per_s"], target)} | {
            entry["engine"]: (entry["rows_per_s"]["median"], None)
            for entry in entries
            if entry["case"] == case and entry.get("rows_per_s")
        }
        for theirs, (rate, least) in rates.items():
            ratio = row["shared_per_s"] / rate
            met = None if least is None else ratio >= least
            names = {"case": case, "ours": "shared", "theirs": theirs}
            found.append(names | {"ratio": ratio, "target": least, "met": met})
    return found
