"""Whatever goes wrong, no record is lost, doubled or reordered, and a migration ends."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.assignment import Assignment, spread
from headgate.migration.protocol import Migration
from headgate_lab.testing.migration_model import KEYS_PER_GROUP, ModelEngine, WrongAnswer
from headgate_lab.testing.migration_trial import STRATEGIES, Case, Faults, Trial, case, run_seed

SEEDS = 1000
CHUNK = 100

EVERY_FAULT = {
    "lost",
    "doubled",
    "late",
    "transfer failed",
    "host lost",
    "driver died while migrating",
    "superseded",
    "went back",
}


def small(strategy: str, **changes: object) -> Case:
    """Return a case of 6 groups that goes from 2 slots to 3, without faults."""
    one_host = strategy == "shared"
    fields: dict[str, object] = {
        "seed": 7,
        "strategy": strategy,
        "old": spread(2, 6),
        "hosts": ("a",) * 3 if one_host else ("a", "b", "c"),
        "requests": {5: Assignment((0, 0, 2, 1, 1, 2), 3, 1)},
        "sizes": (0, 1, 50, 0, 50, 1),
        "steps": 14,
    }
    return Case(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_no_seed_gives_a_wrong_answer(start: int) -> None:
    for seed in range(start, start + CHUNK):
        run_seed(seed)


@given(st.integers(SEEDS, 2**32))
def test_nor_does_any_other_seed(seed: int) -> None:
    run_seed(seed)


def test_every_kind_of_fault_happens_in_the_seeds() -> None:
    fired: Counter[str] = Counter()
    for seed in range(CHUNK):
        trial = Trial(case(seed))
        trial.run()
        fired += trial.fired
    assert set(fired) == EVERY_FAULT


def test_a_seed_gives_the_same_run_twice() -> None:
    for seed in range(20):
        assert run_seed(seed) == run_seed(seed)


def test_a_wrong_answer_names_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelEngine, "_forward", lambda *_: None)
    with pytest.raises(WrongAnswer, match=r"python -m headgate_lab\.testing\.migration_trial 0"):
        run_seed(0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_driver_that_dies_at_any_action_resumes(strategy: str) -> None:
    trial = Trial(small(strategy))
    trial.run()
    for action in range(1, trial.actions + 1):
        Trial(small(strategy, faults=Faults(crashes=frozenset({action})))).run()


@pytest.mark.parametrize("slot", range(3))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_host_may_die_at_any_batch(strategy: str, slot: int) -> None:
    for step in range(5, 25):
        faults = Faults(host_losses={step: slot})
        Trial(small(strategy, faults=faults, sizes=(90,) * 6)).run()


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s.startswith("subscale")])
def test_a_second_request_may_come_at_any_batch(strategy: str) -> None:
    for step in range(6, 22):
        requests = {
            5: Assignment((0, 0, 2, 1, 1, 2), 3, 1),
            step: Assignment((0, 1, 1, 2, 0, 1), 3, 2),
        }
        Trial(small(strategy, requests=requests, sizes=(90,) * 6)).run()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("slots", [1, 6])
def test_it_scales_to_one_slot_and_to_one_per_group(strategy: str, slots: int) -> None:
    hosts = ("a",) * 6 if strategy == "shared" else tuple("abcabc")
    target = Assignment(tuple(g % slots for g in range(6)), slots, 1)
    Trial(small(strategy, hosts=hosts, requests={5: target})).run()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_groups_of_zero_bytes_move(strategy: str) -> None:
    Trial(small(strategy, sizes=(0,) * 6, records_max=0)).run()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_group_larger_than_every_buffer_moves(strategy: str) -> None:
    trial = Trial(small(strategy, sizes=(2000,) * 6))
    trial.run()
    assert strategy == "shared" or trial.step > 100


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_key_first_seen_while_its_group_moves_is_served_once(strategy: str) -> None:
    trial = Trial(small(strategy, records_max=0, sizes=(90,) * 6))
    key = 2 * KEYS_PER_GROUP
    given_before = trial.migration.handle

    def handle(event: object) -> object:
        if trial.migration.running and key not in trial.engine.durable.sent:
            trial.engine.send(key)
        return given_before(event)  # type: ignore[arg-type]

    trial.migration.handle = handle  # type: ignore[method-assign, assignment]
    trial.run()
    assert trial.engine.durable.sent == {key: 1}
    assert trial.engine.served == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_host_that_takes_nothing_sends_everything_home(strategy: str) -> None:
    hosts = ("a",) * 3 if strategy == "shared" else ("a", "b", "c")
    faults = Faults(full=frozenset("c"))
    trial = Trial(small(strategy, hosts=hosts, faults=faults))
    trial.run()
    home = trial.migration.current.slot_of == trial.case.old.slot_of
    assert home is (strategy != "shared")


def test_what_the_manifest_carries_is_plain_and_complete_at_every_event() -> None:
    for seed in range(30):
        trial = Trial(case(seed))
        handled = trial._handle

        def handle(event: object, trial: Trial = trial, handled: object = handled) -> None:
            handled(event)  # type: ignore[operator]
            written = trial.migration.to_dict()
            assert Migration.from_dict(json.loads(json.dumps(written))).to_dict() == written

        trial._handle = handle  # type: ignore[method-assign, assignment]
        trial.run()
