"""The position of an operator's key groups comes back as it was written; defaults of a job's settings."""

from __future__ import annotations

import json
from dataclasses import replace

from headgate.checkpoint.manifest import Heads, Manifest
from headgate.core.assignment import Assignment
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.step.commit import assigned
from headgate.whatif.model import MicroBatch

GROUPS = 4


def written(state: OperatorState, operator: str) -> Manifest:
    """Return a manifest with the state, as it is read from a file."""
    return Manifest(
        job="job",
        step=3,
        spark_batch=2,
        epoch=state.assignment.epoch,
        assignments=json.loads(json.dumps({operator: assigned(state.assignment)})),
        watermarks={},
        heads={operator: Heads(tuple(state.tokens), tuple(state.steps))},
        sections={},
        files=(),
        engine=json.loads(json.dumps({"operators": {operator: state.engine_facts()}})),
        previous=None,
        payloads={},
    )


def test_a_state_comes_back_as_it_was_written() -> None:
    state = OperatorState(
        assignment=Assignment((0, 1, 1, 0), 3, 7, {1: (1, 2)}),
        tokens=["a", "b", "c", "d"],
        steps=[3, 2, -1, 3],
        full_steps=[0, 2, -1, 1],
        emitted_us=[10, 20, 0, 5],
        due_us=[11, 21, 2**62, 6],
        rows=[4, 3, 0, 2],
        backlog={0: [["a file", 0, 9]], 5: [["a file", 9, 12]], 2: []},
        rate_per_s={0: 12.5, 2: 700.0},
        held=frozenset({3}),
        stands_us={1: 15},
        changed_rows=2.5,
    )
    back = OperatorState.recovered(written(state, "sum-0"), "sum-0")
    # what is not written down begins anew, and what does not wait is not there
    wanted = replace(state, held=frozenset(), changed_rows=None)
    wanted.backlog.pop(2)
    assert back == wanted
    assert OperatorState.recovered(written(back, "sum-0"), "sum-0") == back


def test_a_fresh_state_does_too() -> None:
    fresh = OperatorState.fresh(2, GROUPS)
    assert OperatorState.recovered(written(fresh, "a"), "a") == fresh


def test_a_simulated_job_has_the_defaults_of_a_real_one() -> None:
    assert MicroBatch().backlog_age_max_s == JobConfig("a").backlog_age_max_s


def test_where_little_changes_full_sections_are_written_in_few_steps() -> None:
    state = OperatorState.fresh(2, GROUPS)
    state.steps, state.full_steps = [400] * GROUPS, [0] * GROUPS
    state.rows, state.changed_rows = [10**6] * GROUPS, 1.0  # a full section each 128 steps
    assert [bool(state.due_for_snapshot(step, None)) for step in (399, 400, 401, 404)] == [
        False, True, False, True,
    ]  # fmt: skip
    assert state.due_for_snapshot(401, 8), "a number of the user's is taken at each step"
