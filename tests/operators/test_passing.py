"""Records that pass by: all of them, or the first of a stream."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import ProcessorError
from headgate.operators.passing import PLACE, Limiting, Passing
from headgate.operators.processor import Keyed, State, TimeMode, Timers, Variable

INPUTS = pa.schema([("v0", pa.int64())])


def called(processor, rows, passed):
    """Return what a call puts out, and how many rows have passed after it."""
    variables = tuple(Variable(name, *made) for name, made in processor.states.items())
    one = np.zeros(1, dtype=np.int64)
    before = {
        v.name: Keyed(one[: len(passed)], pa.RecordBatch.from_pydict({"n": passed}, v.schema))
        for v in variables
    }
    state = State(variables, before, 1)
    batch = Keyed(
        np.zeros(len(rows), dtype=np.int64), pa.RecordBatch.from_pydict({"v0": rows}, INPUTS)
    )
    keys = pa.RecordBatch.from_pydict({"place": [0]}, PLACE)
    out = processor.handleBatch(keys, batch, state, Timers(state, TimeMode.NONE, -1, one))
    put = [rows for v in variables for _, rows in state.changes[v.name].put]
    return out.column(0).to_pylist(), [n for rows in put for n in rows.column("n").to_pylist()]


def test_what_keeps_no_state_passes_whole():
    assert called(Passing(INPUTS), [3, 1, 2], []) == ([3, 1, 2], [])


def test_a_limit_counts_over_all_steps():
    limit = Limiting(INPUTS, most=4)
    assert called(limit, [1, 2, 3], []) == ([1, 2, 3], [3])
    assert called(limit, [4, 5, 6], [3]) == ([4], [4])
    assert called(limit, [7], [4]) == ([], [])


def test_a_processor_without_a_time_mode_has_no_timers():
    state, one = State((), {}, 1), np.zeros(1, dtype=np.int64)
    timers = Timers(state, TimeMode.NONE, -1, one)
    calls = (
        lambda: timers.registered,
        lambda: timers.register(one, one),
        lambda: timers.delete(one, one),
    )
    for call in calls:
        with pytest.raises(ProcessorError, match='no timers in time mode "None"; use "Processing'):
            call()
