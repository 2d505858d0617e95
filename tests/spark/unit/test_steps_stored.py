"""Tests what steps note on a store, and how a failed attempt ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from noted_calls import Calls

from headgate.checkpoint.spark_log import FIELD
from headgate.core.errors import CheckpointError, EngineError
from headgate.spark.job.phases import Phases
from headgate.spark.step import steps
from headgate.spark.step.steps import Steps

LATEST: Any = SimpleNamespace(step=4, engine={"sink_batch": 3, "operators": {}})


class Made:
    """Steps whose parts note their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> None:
        self.calls = calls = Calls(monkeypatch)
        self.carried = calls.several(read_log=None, note_delivered=None, note_commit=None)
        self.keeper = calls.several(begun=None, note="a note", close=None, committed=None)
        monkeypatch.setattr(steps, "CarriedLog", lambda checkpoint: self.carried)
        monkeypatch.setattr(steps, "LogKeeper", lambda checkpoint, step: self.keeper)
        monkeypatch.setattr(steps, "Beside", self._beside)
        self.checkpoint = calls.several(
            write_intent=None, collect_garbage=None, refuse_after_another=None
        )
        self.traffic: Any = None
        self.checkpoint.files = SimpleNamespace(shared=shared, traffic=lambda: self.traffic)
        self.computation = SimpleNamespace(attempts=3, compute=None)
        self.ends = False
        given: Any = (
            self.computation, calls.several(retry=None), self.checkpoint, LATEST,
            calls.several(write=None), lambda: self.ends,
        )  # fmt: skip
        self.steps: Any = Steps(*given)

    def _beside(self, name: str) -> Any:
        def do(work: Any) -> None:
            self.calls.did.append(name)
            work()

        return SimpleNamespace(do=do, close=self.calls.one(f"{name} closes"))


def test_an_intent_has_a_note_of_spark_s_log_in_a_directory_and_none_on_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, far = (Made(monkeypatch, shared=shared) for shared in (False, True))
    intent = {"step": 5, "spark_batch": 9}
    for made in (here, far):
        made.steps.begin_batch(9)
        made.steps._begin_on_store(5, intent)
        assert made.steps._has_begun
    noted = {**intent, FIELD: "a note"}
    assert here.calls.did == [("begun", 9), ("note",), ("write_intent", 5, noted)]
    assert far.calls.did == [("write_intent", 5, intent), ("read_log", 9)]
    assert intent == {"step": 5, "spark_batch": 9}


def test_a_quiet_batch_on_a_store_notes_once_that_the_newest_is_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, far = (Made(monkeypatch, shared=shared) for shared in (False, True))
    monkeypatch.setattr(steps, "drained", lambda latest: True)
    far.steps.note_quiet()
    monkeypatch.setattr(steps, "drained", lambda latest: False)
    for _ in range(2):
        here.steps.note_quiet()
        far.steps.note_quiet()
    assert here.calls.did == []
    assert far.calls.did == ["headgate-intents", ("note_delivered", LATEST)]
    far.steps.latest = None
    far.steps.note_quiet()
    assert len(far.calls.did) == 2


def test_what_is_beside_ends_with_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    here, far = (Made(monkeypatch, shared=shared) for shared in (False, True))
    far.carried.note_commit = far.calls.one("note_commit", CheckpointError("away"))
    here.steps.close()
    far.steps.close()
    first, last = ("headgate-intents closes",), ("headgate-garbage closes",)
    assert here.calls.did == [first, ("close",), last]
    assert far.calls.did == [first, ("note_commit", LATEST), last]


def test_requests_are_those_since_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, shared=True)
    assert made.steps._traffic_since() is None
    for number in (1, 2):
        made.traffic = SimpleNamespace(since=lambda before, number=number: (number, before))
        before = made.steps._traffic
        assert made.steps._traffic_since() == (number, before)
        assert made.steps._traffic is made.traffic


def test_an_output_that_fails_is_the_other_driver_s_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made(monkeypatch, shared=True)
    outputs = SimpleNamespace(rows=7)
    monkeypatch.setattr(steps, "Outputs", SimpleNamespace(read=lambda manifest: outputs))
    monkeypatch.setattr(steps, "delivers", lambda manifest: True)
    made.computation.result = lambda outputs: "rows"
    assert made.steps._deliver(LATEST) == 7
    assert made.calls.did == [("write", 3, "rows")]
    made.steps.sink.has = made.calls.one("has", True)
    assert made.steps._deliver(LATEST, again=True) == 7
    assert made.calls.did[1:] == [("has", 3)]
    made.steps.sink.write = made.calls.one("write", OSError("disk"))
    with pytest.raises(OSError, match="disk"):
        made.steps._deliver(LATEST)
    assert made.calls.did[-1] == ("refuse_after_another", 4)


def test_an_attempt_is_repeated_unless_it_would_fail_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, shared=True)
    begun: Any = SimpleNamespace(number=5)
    errors: list[Any] = [OSError("1"), OSError("2"), None]

    def compute(batch: Any, begun: Any, attempt: int, clock: Any) -> str:
        error = errors[attempt - 1]
        if error is not None:
            raise error
        return f"in {attempt}"

    made.computation.compute = compute
    assert made.steps._attempts("rows", begun, Phases()) == ("in 3", 3)
    assert made.calls.did == [("retry", 5, 1, errors[0]), ("retry", 5, 2, errors[1])]
    errors[2] = OSError("3")
    with pytest.raises(OSError, match="3"):
        made.steps._attempts("rows", begun, Phases())
    made.calls.did.clear()
    made.ends = True
    with pytest.raises(OSError, match="1"):
        made.steps._attempts("rows", begun, Phases())
    made.ends = False
    monkeypatch.setattr(steps, "is_final", lambda error: True)
    with pytest.raises(OSError, match="1"):
        made.steps._attempts("rows", begun, Phases())
    monkeypatch.setattr(steps, "processor_error", lambda error: EngineError("of the user's"))
    with pytest.raises(EngineError, match="of the user's") as failed:
        made.steps._attempts("rows", begun, Phases())
    assert failed.value.__suppress_context__
    assert made.calls.did == []
