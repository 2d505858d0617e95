"""Sessions and ticks of a query's batches; here without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.step import intake
from headgate.spark.step.intake import Intake


class Session:
    """A session that keeps its settings."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.said: dict[str, str] = {}
        self.conf = SimpleNamespace(set=self.said.__setitem__)


class Made:
    """Intakes, and what they did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[Any] = []
        self.user, self.results, self.cloned = (Session(n) for n in ("user", "results", "clone"))
        stream = SimpleNamespace(sparkSession=self.user, schema="n: int")
        ticked = SimpleNamespace(sparkSession=self.user, schema="n: int, tick: int")
        self.stream: Any = stream

        def note(name: str) -> Any:
            return lambda *given, **named: self.did.append((name, *given, *named.values()))

        class Tick:
            frame = "ticks"

            def __init__(self, *_: Any) -> None:
                self.start, self.soon, self.stop = (note(n) for n in ("start", "soon", "stop"))

        monkeypatch.setattr(intake, "Tick", Tick)
        monkeypatch.setattr(intake, "with_ticks", lambda frame, ticks: ticked)
        for name in ("set_as_for_batches", "fit_arrow_batches", "make_active", "run_through"):
            monkeypatch.setattr(intake, name, note(name))
        monkeypatch.setattr(intake, "forget_raw_files", note("forget_raw_files"))
        monkeypatch.setattr(intake, "no_rows", lambda session, schema: (session.name, schema))
        monkeypatch.setattr(intake, "clone_of", lambda session: self.cloned)

    def intake(self, *, ticks: bool = True) -> Intake:
        results: Any = self.results
        return Intake(self.stream, Path("ck"), results, ticks=ticks, stateful=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_the_session_of_the_first_batch_is_prepared_and_kept(made: Made) -> None:
    it, first = made.intake(), Session("first")
    batch: Any = SimpleNamespace(sparkSession=first)
    found: Any = it.settle_in(batch, ["a: int"])  # type: ignore[list-item]
    assert found is first
    assert first.said == {"spark.sql.adaptive.enabled": "false"}
    assert made.did == [
        ("set_as_for_batches", made.results, first, True), ("forget_raw_files", first),
        ("fit_arrow_batches", first, ["a: int"]),
    ]  # fmt: skip
    later: Any = SimpleNamespace(sparkSession=Session("later"))
    assert it.settle_in(later) is found
    assert len(made.did) == 3
    assert it.session is found
    it.enter()
    assert made.did[3:] == [("make_active", first)]
    assert it.nothing() == ("first", "n: int, tick: int")


def test_rows_for_slots_need_not_be_known_yet(made: Made) -> None:
    batch: Any = SimpleNamespace(sparkSession=Session("first"))
    made.intake().settle_in(batch)
    assert [what for what, *_ in made.did] == ["set_as_for_batches", "forget_raw_files"]


def test_where_spark_brings_no_session_that_of_the_results_is_taken(made: Made) -> None:
    it = made.intake(ticks=False)
    it.settle_in_alone()
    found: Any = it.session
    assert found is made.results
    assert made.results.said == {"spark.sql.adaptive.enabled": "false"}
    assert it.nothing() == ("results", "n: int"), "without the column of ticks"


def test_a_rehearsal_has_a_session_of_its_own(made: Made) -> None:
    assert made.intake().rehearsal() == ("clone", "n: int, tick: int")
    assert made.cloned.said == {"spark.sql.adaptive.enabled": "false"}
    assert made.user.said == {}


def test_ticks_begin_batches_where_there_are_any(made: Made) -> None:
    it = made.intake()
    it.start_ticking(bool)
    it.go_on_soon()
    it.look_through("a batch")  # type: ignore[arg-type]
    it.close()
    assert made.did == [("start", bool), ("soon",), ("run_through", "a batch"), ("stop",)]
    made.did.clear()
    without = made.intake(ticks=False)
    assert without.tick is None
    without.start_ticking(bool)
    without.go_on_soon()
    without.close()
    assert made.did == []
