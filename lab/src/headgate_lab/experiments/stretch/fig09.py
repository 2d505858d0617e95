"""Reproduces figure 9: the time of a reconfiguration, the balance of load, and the bytes copied.

The paper shows [P]: from the call of *reconfigure* to its completion less than 40 ms, always, with table
4's numbers of threads; about 12 ms for 30 -> 52; the threads' load differs by at most 2 % (coefficient
of variation). No state is copied (section 5).

Measured here: real epoch switches of ScaleJoin between processes of this machine, table 4's numbers as
far as they go, records coming all the while. *bytes*: one switch at each size of the state, the state
compared byte by byte before and after: what differs are the records that were stored meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.core.assignment import rescale
from headgate.report.plot import panels
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.stretch.fig10 import TABLE_4
from headgate_lab.experiments.stretch.live import LiveJoin
from headgate_lab.oplus.join_state import JoinState
from headgate_lab.oplus.processes import SlotProcesses

if TYPE_CHECKING:
    from headgate.report.plot import Figure

_RATE_PER_S = 1000.0
_WINDOW_S = 10.0
_COMPARISONS_PER_S = 1e9
"""Most comparisons per second that arriving records may cause; less than one core can do here."""

_BETWEEN_S = 0.3
"""Time between two switches, in which records of every source must pass the last one."""

PAPER = {
    "reconfiguration_ms": "always below 40; about 12 for 30 -> 52",
    "cov_percent": "at most 2",
    "bytes": "no state copied",
}


def run(request: Request) -> dict[str, Any]:
    """Return reconfiguration times by number of slots, and what is copied by size of the state."""
    if request.quick:
        return measure((1, 5), (10_000, 100_000), repeats=2)
    return measure((1, 5, 9, 18), (10_000, 1_000_000, 10_000_000), repeats=5)


def measure(starts: Sequence[int], state_records: Sequence[int], *, repeats: int) -> dict[str, Any]:
    """Return the same for some numbers of slots and some sizes."""
    return {
        "mode": "measured, processes of this machine",
        "cores": os.cpu_count(),
        "paper": PAPER,
        "rows": [row for start in starts for row in _from(start, repeats)],
        "bytes": [_bytes(count) for count in state_records],
    }


def _from(start: int, repeats: int) -> Iterable[dict[str, Any]]:
    """Yield the times of provisioning and decommissioning from `start` slots."""
    ends = {action: table[start] for action, table in TABLE_4.items() if start in table}
    join = LiveJoin(max(start, *ends.values()), start, _RATE_PER_S, _WINDOW_S)
    with join.running() as (slots, _):
        time.sleep(2 * _BETWEEN_S)
        rows = slots.board.rows[:start]
        work, busy = rows["work"][:, 0].copy(), rows["busy_ns"].copy()
        spread = {"cov_percent": _cov(work), "cov_cpu_percent": _cov(busy)}
        for action, end in ends.items():
            took_ms = list(_switches(slots, start, end, repeats))
            yield {
                "action": action,
                "start": start,
                "slots": end,
                "ms_median": round(float(np.median(took_ms)), 1),
                "ms_longest": round(max(took_ms), 1),
                **spread,
            }


def _switches(slots: SlotProcesses, start: int, end: int, repeats: int) -> Iterable[float]:
    """Yield the milliseconds of each switch from `start` to `end`; those back are not counted."""
    assignment = slots.assignment
    for _ in range(repeats):
        assignment = rescale(assignment, end)
        yield slots.reconfigure(assignment)
        time.sleep(_BETWEEN_S)
        assignment = rescale(assignment, start)
        slots.reconfigure(assignment)
        time.sleep(_BETWEEN_S)


def _cov(values: Sequence[int] | np.ndarray[Any, Any]) -> float:
    """Return the standard deviation over the mean, in percent."""
    return round(100.0 * float(np.std(values) / np.mean(values)), 2)


def _bytes(records: int) -> dict[str, Any]:
    """Switch from 1 to 2 slots with that many records stored; return what that changed."""
    fed_per_s = min(_RATE_PER_S, _COMPARISONS_PER_S / (records / 2))
    join = LiveJoin(2, 1, records / _WINDOW_S, _WINDOW_S, fed_per_s=fed_per_s)
    with join.running() as (slots, state):
        time.sleep(_BETWEEN_S)
        before, stored = state.raw.copy(), _stored(slots)
        private = _private_bytes(slots.process_ids[1])
        moved = rescale(slots.assignment, 2)
        groups = len(slots.assignment.moved(moved))
        took_ms = slots.reconfigure(moved)
        after, stored_after = state.raw.copy(), _stored(slots)
        grown = _private_bytes(slots.process_ids[1]) - private
    return {
        "state_bytes": state_bytes(state),
        "moved_groups": groups,
        "moved_state_bytes": round(state_bytes(state) * groups / join.keys),
        "ms": round(took_ms, 1),
        "changed_bytes": int((before != after).sum()),
        "records_stored_meanwhile": stored_after - stored,
        "private_bytes_of_new_slot": grown,
    }


def state_bytes(state: JoinState) -> int:
    """Return the bytes of the records that are stored: time and two attributes each."""
    return state.held * sum(int(column.itemsize) for column in state.columns)


def _stored(slots: SlotProcesses) -> int:
    return int(slots.board.rows["work"][:, 2].sum())


def _private_bytes(process_id: int) -> int:
    """Return the private memory that a process has written to."""
    lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()
    private = next(line for line in lines if line.startswith("Private_Dirty:"))
    return 1024 * int(private.split()[1])


def draw(data: Mapping[str, Any]) -> Figure:
    """Return times and spread by number of slots, and time by size of the state."""
    figure, axes = panels(1, 3)
    for action in TABLE_4:
        rows = [row for row in data["rows"] if row["action"] == action]
        start = [row["start"] for row in rows]
        axes[0].plot(start, [row["ms_median"] for row in rows], "o", label=action)
        axes[1].plot(start, [row["cov_percent"] for row in rows], "o", label=action)
    axes[0].axhline(40.0, linestyle="--")
    axes[0].set(xlabel="slots before", ylabel="reconfiguration, ms")
    axes[1].set(xlabel="slots before", ylabel="coefficient of variation, %")
    axes[2].plot(
        [row["state_bytes"] for row in data["bytes"]], [row["ms"] for row in data["bytes"]], "o"
    )
    axes[2].set(xlabel="bytes of state", ylabel="reconfiguration, ms", xscale="log")
    axes[0].legend()
    return figure
