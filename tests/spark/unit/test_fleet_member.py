"""How a job of a fleet stands to what it was granted; its query is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.fleet import member
from headgate.spark.fleet.member import JobState, Member


class Slots:
    """Slots of a query: held, held still by somebody, asked for by its policy."""

    def __init__(self, **held: int) -> None:
        self.now, self.still, self.wanted, self.moving = held, {}, dict(held), False
        self.still: dict[str, float]

    def held(self) -> dict[str, int]:
        return self.now

    def holds(self) -> dict[str, float]:
        return self.still

    def requests(self) -> dict[str, int]:
        return self.wanted

    def changing(self) -> bool:
        return self.moving


def job(slots: Slots, *, own_policy: bool = False, **query: Any) -> Member:
    running = SimpleNamespace(_slots=slots, isActive=True, **query)
    nothing: Any = SimpleNamespace()
    return Member("job", running, nothing, nothing, 5.0, own_policy=own_policy)


@pytest.mark.parametrize("own_policy", [False, True])
def test_a_job_with_more_than_it_was_granted_is_changing(own_policy: bool) -> None:
    slots = Slots(a=3, b=2)
    tried = job(slots, own_policy=own_policy)
    assert not tried.changing({"a": 3, "b": 2})
    assert not tried.changing({"a": 4, "b": 2})
    assert tried.changing({"a": 2, "b": 2})
    assert not tried.changing({"b": 2}), "of a nothing was said"
    slots.still = {"a": 60.0}
    assert not tried.changing({"a": 2, "b": 2}), "held still, perhaps for hours"
    assert tried.changing({"a": 2, "b": 1})


def test_what_a_policy_of_its_own_does_within_its_grant_is_its_own_business() -> None:
    slots = Slots(a=3)
    slots.moving = True
    assert job(slots).changing({"a": 3})
    assert not job(slots, own_policy=True).changing({"a": 3})


def test_only_a_policy_of_its_own_asks_for_slots_and_leaves_some() -> None:
    slots = Slots(a=3)
    slots.wanted = {"a": 5}
    assert (job(slots).requests, job(slots, own_policy=True).requests) == ({}, {"a": 5})
    assert job(slots).unspent({"a": 4}, 10.0) == {}


def test_what_it_left_for_the_whole_time_is_unspent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(member.time, "monotonic", lambda: now[0])
    slots = Slots(a=2, b=4)
    tried, granted = job(slots, own_policy=True), {"a": 4, "b": 4}

    def after(seconds: float, **held: int) -> dict[str, int]:
        now[0] += seconds
        slots.now = held
        return tried.unspent(granted, 10.0)

    assert after(0, a=2, b=4) == {}
    assert after(9, a=3, b=4) == {}, "not for ten seconds yet"
    assert after(1, a=2, b=4) == {"a": 3}
    assert after(9, a=2, b=4) == {"a": 3}, "three were in use nine to ten seconds ago"
    assert after(5, a=2, b=4) == {"a": 2}
    granted = {"a": 3, "b": 4}
    assert after(1, a=2, b=4) == {}, "granted anew"


def test_a_query_that_does_not_end_its_batch_is_hung_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, at = [0.0], [(3, False)]
    monkeypatch.setattr(member.time, "monotonic", lambda: now[0])
    tried = job(Slots(a=1), _progress=lambda: at[0])
    assert not tried.refresh()
    now[0] = 5.0
    assert not tried.refresh(), "exactly as long as it may take"
    now[0] = 5.1
    assert tried.refresh()
    assert (tried.state, tried.why) == (JobState.HUNG, "no batch ended for 5 s")
    assert not tried.refresh()
    at[0] = (4, False)
    assert tried.refresh()
    assert (tried.state, tried.why) == (JobState.RUNNING, "")
    now[0] = 60.0
    at[0] = (4, True)
    assert not tried.refresh(), "it waits for data"


def test_a_view_is_of_the_newest_progress() -> None:
    heard: list[dict[str, int]] = []
    probe = SimpleNamespace(
        note_progress=heard.append,
        values=lambda intents: {intent: len(heard) for intent in intents},
        operators=dict,
        input_rate=lambda: 7.0,
    )
    query = SimpleNamespace(_slots=Slots(a=1), isActive=True, lastProgress={"batchId": 3})
    utility = SimpleNamespace(intents=("juice",))
    tried = Member("job", query, probe, utility, 5.0)  # type: ignore[arg-type]
    view = tried.view({"a": 1})
    assert heard == [{"batchId": 3}]
    assert (view.values, view.input_rate) == ({"juice": 1}, 7.0)
