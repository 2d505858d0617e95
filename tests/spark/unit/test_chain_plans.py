"""Checks when the job of a chain is planned again, and the order of its stages; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.assignment import Assignment
from headgate.spark.step import chain
from headgate.spark.step.chain import ChainJob


def fake(**facts: Any) -> Any:
    return SimpleNamespace(**facts)


class PlanText:
    """A frame or an RDD as the text of the calls that made it."""

    sparkSession = "session"

    def __init__(self, text: str) -> None:
        self.text = text
        self.schema = f"schema of {text}"

    def __repr__(self) -> str:
        return self.text


class ChainOfTexts:
    """The job of a join and of counts behind it, whose plans are texts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, alone: bool = True) -> None:
        self.plans = 0
        self.fails = False
        self.hosts: dict[str, list[str]] = {"join": [], "counts": []}
        self.states: Any = {
            name: SimpleNamespace(assignment=Assignment((0, 1), 2)) for name in ("join", "counts")
        }
        join = SimpleNamespace(id="join", upstream=None, shared=True)
        counts = SimpleNamespace(id="counts", upstream=join, shared=False)
        self.pre = fake(active=False, stages=self._pre)
        monkeypatch.setattr(chain, "hole_of", lambda _, schema: f"hole({schema})")
        monkeypatch.setattr(chain, "of_rows", lambda _, plan: PlanText(f"of({plan})"))
        monkeypatch.setattr(chain, "internal_rows", lambda batch: f"rdd({batch})")
        monkeypatch.setattr(
            chain, "pinned_rows", lambda session, rows, hosts: f"{rows} on {'+'.join(hosts)}"
        )
        monkeypatch.setattr(
            chain,
            "Planned",
            lambda frame, hole: SimpleNamespace(rows=lambda rows: f"{rows} > [{frame}]"),
        )
        monkeypatch.setattr(
            chain,
            "exchange",
            SimpleNamespace(
                Relay=lambda _, op, groups: SimpleNamespace(plan=f"relay {op.id}", hole="hole"),
                chain_input=lambda frame, op, alone: PlanText(f"in({frame}, {op.id}, {alone})"),
                with_initial=lambda frame, op, groups: PlanText(f"{frame} + {op.id}'s {groups}"),
                to_slots=lambda frame, assignment, shared: PlanText(
                    f"to({frame}, {assignment.slots}, {shared})"
                ),
            ),
        )
        slots: Any = {
            name: SimpleNamespace(apply=lambda rows, n=name: PlanText(f"{n}({rows})"))
            for name in self.states
        }
        places: Any = {
            name: SimpleNamespace(hosts=lambda count, n=name: self.hosts[n][:count])
            for name in self.states
        }
        session: Any = "session"
        both: Any = [join, counts]
        self.job = ChainJob(session, both, slots, self.states, places, self.pre, 4, alone=alone)

    def _pre(self, frame: Any, hole: Any) -> Any:
        self.plans += 1
        if self.fails:
            raise ValueError("planning")
        if not self.pre.active:
            return [], frame, hole
        return [lambda rows: f"{rows} > pre"], PlanText(f"routed({frame})"), "hole"

    def rows(self, batch: str = "batch", **first: bool) -> str:
        of_batch: Any = PlanText(batch)
        return str(self.job.rows(of_batch, **first))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ChainOfTexts:
    return ChainOfTexts(monkeypatch)


IN = "in(of(hole(schema of batch)), join, True)"
LAST = "[counts(to(of(relay counts), 2, False))]"


def test_the_operators_of_a_chain_run_one_after_the_other(made: ChainOfTexts) -> None:
    assert made.job.into_slots == []
    assert made.rows() == f"rdd(batch) > [join(to({IN}, 2, True))] > {LAST}"
    assert made.job.into_slots == [
        f"schema of to({IN}, 2, True)",
        "schema of to(of(relay counts), 2, False)",
    ]


def test_columns_of_several_chains_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "in(of(hole(schema of batch)), join, False)"
        in ChainOfTexts(monkeypatch, alone=False).rows()
    )


def test_an_aggregation_before_the_exchange_comes_first(made: ChainOfTexts) -> None:
    made.pre.active = True
    assert made.rows() == f"rdd(batch) > pre > [join(to(routed({IN}), 2, True))] > {LAST}"


def test_the_first_step_has_the_initial_state_of_the_first_operator(made: ChainOfTexts) -> None:
    assert f"[join(to({IN} + join's 4, 2, True))]" in made.rows(first=True)
    assert "join's" not in made.rows()
    assert made.plans == 2


def test_slots_with_hosts_are_pinned_before_they_run(made: ChainOfTexts) -> None:
    made.hosts["counts"] = ["a", "b", "c"]
    routed = "to(of(relay counts), 2, False)"
    assert made.rows() == (
        f"rdd(batch) > [join(to({IN}, 2, True))] > [{routed}] on a+b > "
        f"[counts(of(hole(schema of {routed})))]"
    )


def test_a_plan_serves_until_slots_hosts_or_aggregation_change(made: ChainOfTexts) -> None:
    made.rows()
    assert made.rows("other").startswith("rdd(other) > ")
    assert made.plans == 1
    split = Assignment((0, 1), 2, split={0: (0, 1)})
    changes: list[Any] = [
        lambda: made.states["counts"].__setattr__("assignment", Assignment((1, 1), 2)),
        lambda: made.states["counts"].__setattr__("assignment", Assignment((0, 0), 1)),
        lambda: made.states["join"].__setattr__("assignment", split),
        lambda: made.hosts.update(join=["a", "b"]),
        lambda: setattr(made.pre, "active", True),
        made.job.forget,
    ]
    for number, change in enumerate(changes, 2):
        change()
        for _ in range(2):
            made.rows()
        assert made.plans == number


def test_other_hosts_for_placed_slots_need_no_plan(made: ChainOfTexts) -> None:
    made.hosts["join"] = ["a", "b"]
    assert " on a+b > " in made.rows()
    made.hosts["join"] = ["b", "c"]
    assert " on b+c > " in made.rows()
    assert made.plans == 1


def test_a_plan_that_failed_is_made_again(made: ChainOfTexts) -> None:
    made.rows()
    made.states["join"].assignment = Assignment((0, 0), 1)
    made.fails = True
    with pytest.raises(ValueError, match="planning"):
        made.rows()
    made.states["join"].assignment = Assignment((0, 1), 2)
    made.fails = False
    made.rows()
    assert (made.plans, len(made.job.into_slots)) == (3, 2)
