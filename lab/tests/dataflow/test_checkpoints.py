"""A checkpoint meets a migration: both cases of DRRS IV-C, and going on from any of them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from flows import DRRS, OPERATOR, Trial, answer, name_of, random_trial, run, with_running
from restoring import outputs_before, restored
from signal_rules import busy

from headgate.core.errors import CheckpointError
from headgate_lab.sim.dataflow.coordinator import Scaling
from headgate_lab.sim.dataflow.dataflow import Dataflow
from headgate_lab.sim.dataflow.eventlog import EventLog
from headgate_lab.sim.dataflow.methods.drrs import Drrs

REQUEST_S = 1.0


def answer_after_restore(flow: Dataflow) -> Counter[tuple[int, object]]:
    """Return the outputs up to checkpoint 1 and those of a run that goes on from it."""
    new = restored(flow, 1)
    new.run()
    before = Counter((r.key, r.value) for _, r in outputs_before(flow, 1))
    return before + answer(new)


def met(trial: Trial, checkpoint_s: float, kind: str) -> tuple[Dataflow, EventLog]:
    """Run with a checkpoint; the log must have an event of a kind."""
    log = EventLog(every_record=True)
    flow = run(trial, Drrs(), log=log, checkpoint_s=checkpoint_s)
    assert log.of(kind)
    return flow, log


def test_a_barrier_in_the_output_cache_becomes_one_signal_of_three() -> None:
    # The output caches are full, so a barrier sent just before the request is still in them.
    flow, log = met(busy(), REQUEST_S - 0.002, "integrated")
    assert not log.of("trigger")
    answered = [
        event.kind for event in log.of("checkpoint", "started", "confirmed", slot="count/0")
    ]
    assert answered == ["checkpoint", "started", "confirmed", "confirmed"]
    assert answer(flow) == answer(run(busy(), None))


def test_redirection_ends_at_a_barrier_in_the_output_cache() -> None:
    flow, log = met(busy(), REQUEST_S - 0.002, "integrated")
    (checkpoint,) = log.of("checkpoint", slot="count/0")
    late = [e for e in log.of("served", slot="count/1") if e.at_s <= checkpoint.at_s]
    assert not late
    # Nothing stood behind the barriers: what was in the caches went the old way.
    assert sum(event.detail["records"] for event in log.of("redirected")) == 0
    assert answer_after_restore(flow) == answer(run(busy(), None))


def test_a_barrier_in_the_input_cache_takes_the_trigger_along() -> None:
    flow, log = met(busy(), REQUEST_S - 0.15, "merged")
    (checkpoint,) = log.of("checkpoint", slot="count/0")
    (started,) = log.of("started")
    assert started.at_s >= checkpoint.at_s
    assert answer(flow) == answer(run(busy(), None))


def test_the_confirm_goes_as_usual_past_a_barrier_in_the_input_cache() -> None:
    flow, log = met(busy(), REQUEST_S - 0.15, "merged")
    assert log.of("confirm")
    assert sum(event.detail["records"] for event in log.of("redirected")) > 0
    assert answer_after_restore(flow) == answer(run(busy(), None))


@pytest.mark.parametrize("method", DRRS, ids=name_of)
def test_a_run_goes_on_from_a_checkpoint_at_any_moment_of_a_migration(method: Drrs) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(10):
        draw = random.Random(seed)
        trial = random_trial(seed)
        at_s = draw.choice(trial.requests).at_s + draw.uniform(-0.1, 0.6)
        for case in (trial, with_running(trial)):
            still = answer(run(case, None))
            flow = run(case, method, checkpoint_s=at_s)
            assert answer(flow) == still, seed
            assert answer_after_restore(flow) == still, seed
            kinds.update(kind for kind in ("merged", "integrated") if flow.log.of(kind))
    assert set(kinds) == {"merged", "integrated"}


@pytest.mark.parametrize("step", range(20))
def test_a_migration_may_be_asked_for_again_after_any_step_of_it(step: int) -> None:
    trial = busy(state_bytes=3000.0, slots=3)
    flow = run(trial, Drrs(groups_min=1), checkpoint_s=REQUEST_S + 0.04 * step)
    new = restored(flow, 1)
    scaling = Scaling(new, OPERATOR, Drrs(groups_min=1))
    (request,) = trial.requests
    target = replace(new.assignments[OPERATOR], slot_of=request.slot_of, slots=3)
    new.clock.after(0.1, scaling.request, target)
    new.run()
    before = Counter((r.key, r.value) for _, r in outputs_before(flow, 1))
    assert before + answer(new) == answer(run(trial, None))


def test_a_snapshot_tells_how_far_each_subscale_has_come() -> None:
    flow = run(busy(state_bytes=8000.0), Drrs(), checkpoint_s=REQUEST_S + 0.3)
    (told,) = flow.slots[OPERATOR][0].snapshots[1].progress
    assert told["started"]
    assert set(told["waiting"]) < {4, 5, 6, 7}
    assert told["step"] == 1


def test_a_snapshot_holds_what_is_in_transit() -> None:
    flow = run(busy(state_bytes=8000.0), Drrs(), checkpoint_s=REQUEST_S + 0.3)
    snapshots = [slot.snapshots[1] for slot in flow.slots[OPERATOR]]
    assert sum(len(records) for s in snapshots for records in s.in_transit.values()) > 0


def test_a_checkpoint_that_was_not_taken_is_refused() -> None:
    flow = run(busy(), Drrs())
    with pytest.raises(
        CheckpointError, match="slot source/0 has not taken checkpoint 1; run until"
    ):
        restored(flow, 1)
