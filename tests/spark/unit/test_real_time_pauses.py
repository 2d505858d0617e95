"""How long a pipe waits before it goes on, and when it is given up."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from headgate.core.errors import EngineError
from headgate.spark.realtime import pauses as module
from headgate.spark.realtime.pauses import PipeLosses, pause_s
from headgate.spark.realtime.run_slots import PartLost

PIPE, SLOTS = False, True


class Course:
    """PipeLosses by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.losses = PipeLosses(4)
        self.losses.begins(slots_alone=False)

    def lose(self, after_s: float, *, slots_alone: bool, committed: bool = True) -> float:
        """Return the pause behind a loss so long after the start before, and start again."""
        if committed:
            self.losses.committed()
        self.now_s += after_s
        waits_s = self.losses.add(slots_alone=slots_alone)
        self.now_s += waits_s
        self.losses.begins(slots_alone=slots_alone)
        return waits_s


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch) -> Course:
    return Course(monkeypatch)


def test_a_pause_doubles_up_to_ten_seconds() -> None:
    pauses = [pause_s(again) for again in range(-1, 9)]
    assert pauses == [0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_pipe_that_is_lost_once_in_a_while_starts_again_at_once(course: Course) -> None:
    """Somebody kills a feeder every 12 s; then two pipes are lost as soon as they have begun."""
    pauses = [course.lose(after_s, slots_alone=PIPE) for after_s in (12, 12, 10, 1, 9, 12, 1)]
    assert pauses == [0.0, 0.0, 0.0, 0.25, 0.5, 0.0, 0.25]


def test_slots_that_are_lost_every_few_seconds_wait_for_nothing(course: Course) -> None:
    assert [course.lose(2, slots_alone=SLOTS) for _ in range(9)] == [0.0] * 9


def test_slots_that_are_lost_soon_after_they_began_wait_though_epochs_are_committed(
    course: Course,
) -> None:
    """A record on which its slot dies comes again and again, and others' records get on."""
    pauses = [course.lose(0.4, slots_alone=SLOTS) for _ in range(5)]
    assert pauses == [0.0, 0.25, 0.5, 1.0, 2.0]


def test_slots_wait_for_each_loss_without_a_commit(course: Course) -> None:
    lost = [course.lose(5, slots_alone=SLOTS, committed=False) for _ in range(3)]
    assert lost == [0.0, 0.25, 0.5]
    assert course.losses.open == 3


def test_slots_that_are_replaced_make_no_pipe_a_short_one(course: Course) -> None:
    course.lose(3600, slots_alone=SLOTS)
    assert course.lose(1, slots_alone=PIPE) == 0.0
    assert course.lose(1, slots_alone=SLOTS) == 0.0


def test_both_kinds_have_their_own_limit_until_a_commit(course: Course) -> None:
    """A host that dies may be two losses: of its slots, and of the pipe."""
    lost = PartLost("slot 1 of q ended unexpectedly.")
    for kind in (SLOTS, PIPE) * 3:
        course.lose(5, slots_alone=kind, committed=False)
        course.losses.check(lost)
    assert course.losses.open == 6
    course.losses.add(slots_alone=PIPE)
    with pytest.raises(EngineError, match="unexpectedly, 4 times in a row"):
        course.losses.check(lost)
    course.losses.committed()
    course.losses.check(lost)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PartLost("slot 1 of q ended unexpectedly."), "slot 1 of q ended unexpectedly, 2 times"),
        (
            PartLost("slot 1 of q is stopped (process 7), and is ended."),
            "slot 1 of q is stopped (process 7), and is ended, 2 times in a row: a function of yours may",
        ),
        (EngineError("Kafka does not answer.", transient=True), "Kafka does not answer."),
    ],
)
def test_only_a_part_that_is_lost_again_and_again_is_laid_to_functions_and_memory(
    error: EngineError, said: str
) -> None:
    losses = PipeLosses(2)
    losses.add(slots_alone=SLOTS)
    losses.check(error)
    losses.add(slots_alone=SLOTS)
    with pytest.raises(EngineError, match=f"^{re.escape(said)}") as raised:
        losses.check(error)
    assert raised.value.transient
    assert isinstance(error, PartLost) == (raised.value.__cause__ is error)
