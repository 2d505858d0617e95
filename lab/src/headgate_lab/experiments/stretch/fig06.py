"""Reproduces figure 6: words and pairs of words, shared against partitioned.

The paper shows [P]: with every tweet written once and read by all threads, throughput is 17 % above
Flink's for words, and 137, 237 and 283 % above for pairs at distances up to 3, 10 and any; latency is
89 to 94 % lower. The more keys a record has, the more partitioning has to copy.

Measured here: processes of this machine, a source and two slots. *partitioned*: the source is
the Map too, and copies each word or pair to the buffer of the slot that owns it; so what is compared is
the exchange, without Flink's own costs. Keys are a bag on both sides. Synthetic tweets; a run is shorter
than a window's advance, so that counting is measured and no window ends. Latency at half of the lesser
throughput, for both: from when a tweet is due to when a slot has counted it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.journal.histogram import percentile_ms, sparse_of
from headgate.report.plot import panels
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.stretch.words import Count
from headgate_lab.workloads.tweets import WORDS_MAX, keys_per_tweet

if TYPE_CHECKING:
    from headgate.report.plot import Figure

CASES: Mapping[str, tuple[int, float]] = {
    "words": (0, 17.0),
    "pairs, B = 3": (3, 137.0),
    "pairs, B = 10": (10, 237.0),
    "pairs, any B": (WORDS_MAX, 283.0),
}
"""Largest distance, and the percentage by which the paper's shared throughput is higher."""

PAPER = {
    "throughput_percent": [percent for _, percent in CASES.values()],
    "latency_percent": [-94.0, -89.0, -94.0, -94.0],
}


def run(request: Request) -> dict[str, Any]:
    """Return throughput and latency of both exchanges."""
    if request.quick:
        return measure(("words", "pairs, any B"), (2,), seconds=1.0)
    return measure(tuple(CASES), (2,), seconds=3.0)


def measure(cases: Sequence[str], slots: Sequence[int], *, seconds: float) -> dict[str, Any]:
    """Return the same for some cases and numbers of slots, measured for `seconds` each."""
    return {
        "mode": "measured, processes of this machine",
        "cores": os.cpu_count(),
        "paper": PAPER,
        "rows": [_row(case, count, seconds) for case in cases for count in slots],
    }


def _row(case: str, slots: int, seconds: float) -> dict[str, Any]:
    distance_max, paper = CASES[case]
    kinds = {
        "shared": Count(slots, distance_max, shared=True),
        "partitioned": Count(slots, distance_max, shared=False),
    }
    found = {kind: throughput(count, seconds) for kind, count in kinds.items()}
    rate = 0.5 * min(found.values())
    delay = {
        kind: latency_ms(replace(count, rate_per_s=rate), seconds) for kind, count in kinds.items()
    }
    return {
        "case": case,
        "slots": slots,
        "keys_per_tweet": round(keys_per_tweet(distance_max), 1),
        "shared_per_s": round(found["shared"]),
        "partitioned_per_s": round(found["partitioned"]),
        "percent": round(100.0 * (found["shared"] / found["partitioned"] - 1.0)),
        "paper_percent": paper,
        "paced_per_s": round(rate),
        "shared_ms_p50": delay["shared"],
        "partitioned_ms_p50": delay["partitioned"],
    }


def throughput(count: Count, seconds: float) -> float:
    """Return the tweets per second that all slots together process."""
    with count.running() as groups:
        rows = [group.board.rows["served"] for group in groups]
        begun, begun_s = [row.copy() for row in rows], time.perf_counter()
        time.sleep(seconds)
        done = np.concatenate([row - before for row, before in zip(rows, begun, strict=True)])
        elapsed_s = time.perf_counter() - begun_s
    if count.shared:
        return float(done.min()) / elapsed_s
    return float(done.sum()) / keys_per_tweet(count.distance_max) / elapsed_s


def latency_ms(count: Count, seconds: float) -> float | None:
    """Return the median latency of records at the slots, in milliseconds."""
    with count.running() as groups:
        time.sleep(0.5)
        begun = sum(group.board.rows["latency"].sum(axis=0) for group in groups)
        time.sleep(seconds)
        ended = sum(group.board.rows["latency"].sum(axis=0) for group in groups)
    found = percentile_ms(sparse_of(ended - begun), 0.5)
    return None if found is None else round(found, 2)


def draw(data: Mapping[str, Any]) -> Figure:
    """Return throughput and latency by case."""
    figure, axes = panels(1, 2)
    most = max(row["slots"] for row in data["rows"])
    rows = [row for row in data["rows"] if row["slots"] == most]
    cases = [row["case"] for row in rows]
    for kind in ("shared", "partitioned"):
        axes[0].plot(cases, [row[f"{kind}_per_s"] for row in rows], "o-", label=kind)
        axes[1].plot(cases, [row[f"{kind}_ms_p50"] for row in rows], "o-", label=kind)
    axes[0].set(ylabel="tweets/s", yscale="log")
    axes[1].set(ylabel="median latency, ms", yscale="log")
    axes[0].legend()
    return figure
