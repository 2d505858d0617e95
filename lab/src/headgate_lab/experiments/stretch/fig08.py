"""Reproduces figure 8: ScaleJoin as an O+, beside ScaleJoin alone and one thread.

The paper shows [P]: comparisons per second grow linearly with the threads, up to 36 cores, and are
those of the special-purpose ScaleJoin; with one thread they are those of an optimised single-threaded
join (1T), whose latency is lower; sharing costs about 10 ms.

Measured here, WS 5 minutes [P]: a full window in memory that the slots' processes map, and records as
fast as there is room, which gives comparisons/s; the rate that can be sustained follows from it, as two
inputs of R/2 make R^2 WS / 2 comparisons/s. Latency at 70 % of that rate, window filled at it. *ad hoc*
has as many keys as slots and nothing to reassign, as ScaleJoin has; *1T* the same kernel in one
process, without a tuple buffer.

On a machine with fewer cores than slots, slots share the cores and comparisons/s cannot grow. So the
result also has comparisons per second of the slots' *processor time*: if that does not fall with the
number of slots and no slot has more than its share of the comparisons, comparisons/s would be linear
with enough cores. This does not show that memory and caches would keep up.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.journal.histogram import percentile_ms, sparse_of
from headgate.report.plot import panels
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.stretch.live import LiveJoin, memory
from headgate_lab.oplus.board import WORK
from headgate_lab.oplus.join_state import JoinWork
from headgate_lab.tuple_buffer.shared import Block

if TYPE_CHECKING:
    from headgate.report.plot import Figure

WINDOW_S = 300.0
_ASSUMED_PER_S = 2000.0
"""Records/s that space event times while comparisons/s are measured; they hardly depend on it."""

_BLOCK = 256
_NS = 1e9
PAPER = {
    "comparisons_per_s": "linear in threads up to the cores; equal to ScaleJoin, and to 1T for one",
    "latency": "about 10 ms above ScaleJoin's",
}


def run(request: Request) -> dict[str, Any]:
    """Return comparisons/s, rate and latency for some numbers of slots."""
    if request.quick:
        return measure((1, 2), seconds=1.0, window_s=30.0)
    return measure((1, 2, 4), seconds=3.0, window_s=WINDOW_S)


def measure(slots: Sequence[int], *, seconds: float, window_s: float) -> dict[str, Any]:
    """Return the same, measured for `seconds` each."""
    alone = LiveJoin(1, 1, _ASSUMED_PER_S, window_s, paced=False, keys=1)
    rows = [{"kind": "1T", "slots": 1, **_sustained(single_threaded(alone, seconds), window_s)}]
    cores = os.cpu_count() or 1
    for count in slots:
        for kind, keys in (("O+", None), ("ad hoc", count if count % 2 else count + 1)):
            join = LiveJoin(count, count, _ASSUMED_PER_S, window_s, paced=False)
            join = join if keys is None else replace(join, keys=keys)
            found = _sustained(compared(join, seconds), window_s)
            paced = replace(join, rate_per_s=0.7 * found["rate_per_s"], paced=True)
            rows.append({"kind": kind, "slots": count, **found, **latency(paced, seconds)})
    return {
        "mode": "measured, processes of this machine",
        "cores": cores,
        "window_s": window_s,
        "paper": PAPER,
        "growth": growth(rows, cores),
        "rows": rows,
    }


@dataclass(frozen=True)
class Compared:
    """Counts the comparisons of some seconds.

    Attributes
    ----------
    per_s : float
        Comparisons per second, of all slots together.
    per_cpu_s : float
        The same per second of processor time that the slots spent on records.
    most_share : float
        Share of the comparisons that the slot with most of them made.
    """

    per_s: float
    per_cpu_s: float
    most_share: float


def compared(join: LiveJoin, seconds: float) -> Compared:
    """Return the comparisons of a join's slots."""
    with join.running() as (slots, _):
        rows = slots.board.rows
        begun, busy_ns = rows["work"][:, 0].copy(), int(rows["busy_ns"].sum())
        begun_s = time.perf_counter()
        time.sleep(seconds)
        each = rows["work"][:, 0] - begun
        elapsed_s = time.perf_counter() - begun_s
        cpu_s = (int(rows["busy_ns"].sum()) - busy_ns) / _NS
    total = int(each.sum())
    return Compared(total / elapsed_s, total / max(cpu_s, 1e-9), float(each.max()) / max(total, 1))


def throughput(join: LiveJoin, seconds: float) -> float:
    """Return the comparisons per second of all slots together."""
    return compared(join, seconds).per_s


def growth(rows: Sequence[Mapping[str, Any]], cores: int) -> list[dict[str, Any]]:
    """Return the comparisons/s of each number of slots of the O+, as a multiple of one slot's.

    ``linear`` is the number of slots, ``on_these_cores`` the largest multiple possible on this machine,
    ``by_processor_time`` the multiple if each slot had a core.
    """
    mine = {row["slots"]: row for row in rows if row["kind"] == "O+"}
    if 1 not in mine:
        return []
    one = mine[1]
    return [
        {
            "slots": slots,
            "linear": slots,
            "on_these_cores": min(slots, cores),
            "measured": round(row["comparisons_per_s"] / one["comparisons_per_s"], 2),
            "by_processor_time": round(_if_alone(row) / _if_alone(one), 2),
        }
        for slots, row in mine.items()
    ]


def latency(join: LiveJoin, seconds: float) -> dict[str, Any]:
    """Return the latency from when a record is due until a slot has compared it, in milliseconds."""
    with join.running() as (slots, _):
        time.sleep(0.5)
        counts = slots.board.rows["latency"]
        begun = counts.sum(axis=0)
        time.sleep(seconds)
        found = sparse_of(counts.sum(axis=0) - begun)
    each = {f"latency_ms_p{p}": percentile_ms(found, p / 100) for p in (50, 99)}
    return {name: None if value is None else round(value, 2) for name, value in each.items()}


def _if_alone(row: Mapping[str, Any]) -> float:
    """Return the comparisons per second if each slot had a core; the busiest slot limits them."""
    return float(row["comparisons_per_cpu_s"]) / float(row["most_share"])


def single_threaded(join: LiveJoin, seconds: float) -> Compared:
    """Return the comparisons of the kernel alone, with all records under one key."""
    with tempfile.TemporaryDirectory(dir=memory(), prefix="headgate-join-") as name:
        join.filled_state(Path(name))
        work = JoinWork(Path(name), join.shape)
        totals, at = np.zeros(WORK, np.int64), join.filled
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        while time.perf_counter() - begun_s < seconds:
            times, columns = join.records(at, at + _BLOCK)
            block = Block(times, np.arange(at, at + _BLOCK) % 2, columns, int(times[-1]))
            work.serve(block, np.zeros(1, np.int64), at, totals)
            at += _BLOCK
        total, elapsed_s = int(totals[0]), time.perf_counter() - begun_s
        return Compared(total / elapsed_s, total / (time.process_time() - begun_cpu_s), 1.0)


def _sustained(found: Compared, window_s: float) -> dict[str, Any]:
    return {
        "comparisons_per_s": float(f"{found.per_s:.4g}"),
        "comparisons_per_cpu_s": float(f"{found.per_cpu_s:.4g}"),
        "most_share": round(found.most_share, 3),
        "rate_per_s": round(float(np.sqrt(2.0 * found.per_s / window_s))),
        "latency_ms_p50": None,
        "latency_ms_p99": None,
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return rate, comparisons and latency over the number of slots."""
    figure, axes = panels(1, 3)
    for kind in ("O+", "ad hoc", "1T"):
        rows = [row for row in data["rows"] if row["kind"] == kind]
        count = [row["slots"] for row in rows]
        for panel, name in zip(
            axes, ("rate_per_s", "comparisons_per_s", "latency_ms_p50"), strict=True
        ):
            values = [float("nan") if row[name] is None else row[name] for row in rows]
            panel.plot(count, values, "o-", label=kind)
            panel.set(xlabel="slots", ylabel=name)
    axes[2].set_yscale("log")
    axes[0].legend()
    return figure
