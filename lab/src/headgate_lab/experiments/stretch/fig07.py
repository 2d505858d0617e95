"""Reproduces figure 7: the throughput and latency of sharing and ordering alone.

The paper shows [P]: operator 6 hands every record of two inputs to every thread and keeps nothing;
120,000 records/s with one thread fall to 100,000 as threads are added, where Flink, which copies each
record to every thread, falls from 40,000 to 2,000; latency is below 30 ms, Flink's above 100 ms.

Measured here: two source processes, one to eight reader processes, one tuple buffer in shared memory
that all of them read (*shared*), against a tuple buffer for each reader into which the sources copy
every record (*copied*: what shared-nothing must do, without Flink's own costs). Throughput is measured
with unpaced sources; latency at the paper's 100,000 records/s, or at a tenth of the throughput if that
is less.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.report.plot import panels
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.stretch.live import memory
from headgate_lab.tuple_buffer.measure import Load, Measured
from headgate_lab.tuple_buffer.measure import measure as measure_buffer

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {
    "shared_per_s": "120,000 falling to 100,000 (1 to 36 threads)",
    "copied_per_s": "40,000 falling to 2,000 (Flink)",
    "latency_ms": "shared below 30, copied above 100",
}
_PACED_PER_S = 100_000.0
_PACED_S = 3.0


def run(request: Request) -> dict[str, Any]:
    """Return throughput and latency for some numbers of readers."""
    if request.quick:
        return measure((1, 2), records=200_000)
    return measure((1, 2, 4, 8), records=1_000_000)


def measure(readers: Sequence[int], *, records: int) -> dict[str, Any]:
    """Return the same for some numbers of readers; `records` of each source."""
    rows = []
    with tempfile.TemporaryDirectory(dir=memory(), prefix="headgate-figure-") as name:
        for count in readers:
            found = {
                kind: measure_buffer(Path(name), [count], Load(records=records, shared=shared))[0]
                for kind, shared in (("shared", True), ("copied", False))
            }
            rate = min(_PACED_PER_S, 0.1 * min(one.records_per_s for one in found.values()))
            sent = max(1, min(records, int(rate * _PACED_S / 2)))
            paced = {
                kind: measure_buffer(
                    Path(name), [count], Load(records=sent, shared=shared, rate_per_s=rate)
                )[0]
                for kind, shared in (("shared", True), ("copied", False))
            }
            rows.append(_row(count, rate, found, paced))
    return {
        "mode": "measured, processes of this machine",
        "cores": os.cpu_count(),
        "sources": Load().sources,
        "paper": PAPER,
        "rows": rows,
    }


def _row(
    readers: int, rate: float, found: Mapping[str, Measured], paced: Mapping[str, Measured]
) -> dict[str, Any]:
    row: dict[str, Any] = {"readers": readers}
    row |= {f"{kind}_per_s": round(one.records_per_s) for kind, one in found.items()}
    row["ratio"] = round(found["shared"].records_per_s / found["copied"].records_per_s, 2)
    row["paced_per_s"] = round(rate)
    for kind, one in paced.items():
        row[f"{kind}_ms_p50"] = round(one.latency_ms_p50, 2)
        row[f"{kind}_ms_p99"] = round(one.latency_ms_p99, 2)
    return row


def draw(data: Mapping[str, Any]) -> Figure:
    """Return throughput and latency over the number of readers."""
    figure, axes = panels(1, 2)
    readers = [row["readers"] for row in data["rows"]]
    for kind in ("shared", "copied"):
        axes[0].plot(readers, [row[f"{kind}_per_s"] for row in data["rows"]], "o-", label=kind)
        axes[1].plot(readers, [row[f"{kind}_ms_p50"] for row in data["rows"]], "o-", label=kind)
    axes[0].set(xlabel="readers", ylabel="records/s", yscale="log")
    axes[1].set(xlabel="readers", ylabel="median latency, ms", yscale="log")
    axes[0].legend()
    return figure
