"""Tests what a job's controller answers while its thread does not run; no session is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.fleet.grant import Grant
from headgate.control.observation import Observation
from headgate.control.registry import policy
from headgate.core.errors import ConfigError
from headgate.core.slo import parse_slo
from headgate.operators.counts import Binned, Counts
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.reports import Report
from headgate.spark.steer import controller as module
from headgate.spark.steer.controller import ControlConfig, Controller, Cores

GROUPS = 4
TICK = 1_000
"""The first time slot after the job's start."""


class Quiet:
    """A policy that changes nothing, and keeps what it is told."""

    name = "quiet"

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.requests: dict[str, int] = {}

    def decide(self, observation: Observation) -> Decision:
        self.told.append(observation)
        return NOTHING

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        del operator, change, took_s

    def slot_failed(self, operator: str, slot_id: int) -> None:
        self.told.append((operator, slot_id))


class Beside:
    """A controller of two operators, ``a`` before ``b``, whose work a test does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *slos: str, slots: int = 2) -> None:
        clock: Any = type("clock", (), {})
        clock.time = lambda: (TICK - 1) / 10
        clock.monotonic = lambda: 50.0
        monkeypatch.setattr(module, "time", clock)
        self.policy = Quiet()
        states = {name: OperatorState.fresh(slots, GROUPS) for name in ("a", "b")}
        self.controller = Controller(
            ControlConfig(tuple(map(parse_slo, slos)), self.policy, 1, GROUPS),
            JobConfig("job", key_groups=GROUPS, slot_rate=1_000.0, delta_ms=100.0),
            states,
            Changes(states, slots_max=GROUPS),
            lambda event: None,
            budget_s=lambda: None,
            cores=Cores(lambda: 2),
            parents={"b": ("a",)},
        )

    def work(self) -> None:
        """Work off what the controller was told."""
        events = self.controller._events
        while not events.empty():
            event = events.get()
            assert event is not None
            event()

    def state(self) -> Any:
        return self.controller._measured()

    def step(self, tick: int, latencies_ms: dict[str, list[float]]) -> None:
        """Commit a step in which each key group of each operator completed one record."""
        reports = [_report(name, tick, each) for name, each in latencies_ms.items()]
        self.controller.committed(reports, tick * 100.0, tick * 100.0)
        self.work()


def _report(operator: str, tick: int, latencies_ms: list[float]) -> Report:
    groups = np.arange(len(latencies_ms), dtype=np.int64)
    ticks, ones = np.full(len(groups), tick), np.ones(len(groups))
    counts = Counts(
        Binned(ticks, groups, ones, 0 * ones, 0 * ones),
        Binned(ticks, groups, ones, np.array(latencies_ms), 0 * ones),
    )
    return Report(
        step=0, attempt=1, operator=operator, slot=0, token="t", consumed=(), groups={}, sections={},
        changelog=None, output=None, waiting=None, late=None, output_rows=0, late_rows=0,
        segments={}, taken={}, arrived=4, served=4, late_records=0, waiting_records=0,
        served_rows=4, touched_rows=0, served_by_group={}, histogram=((100.0, 4),),
        latency_sum_ms=400.0, latency_max_ms=100.0, watermark_us=0, holds_us=0,
        useful_ms=5.0, counts=counts, cpu_ms=4.9,
    )  # fmt: skip


def test_settings_of_a_loop_that_names_no_slots_allow_one() -> None:
    slo, static = (parse_slo("mean < 1 s over 1 s"),), policy("static")
    assert ControlConfig(slo, static) == ControlConfig(slo, static, 1, 1, False, None, {}, {}, 0.0)
    assert Cores(len).machine is None  # type: ignore[arg-type]


def test_a_state_has_the_windows_of_all_operators_and_those_that_kept_the_slo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = Beside(monkeypatch, "mean < 1 s over 100 ms")
    for tick in range(TICK, TICK + 3):
        beside.step(tick, {"a": [10.0, 10.0, 1_500.0, 10.0], "b": [20.0, 1_001.0, 20.0, 20.0]})
    state = beside.state()
    assert (state.windows, state.windows_met, state.windows_empty) == (24, 18, 0)
    assert state.windows_of == {"a": (12, 9), "b": (12, 9)}
    assert state.by_operator == {"a": 0.75, "b": 0.75}
    assert (state.success, state.success_worst) == (0.75, 0.0)
    assert (state.worst_operator, state.worst_group) == ("b", 1)
    assert (state.windows_stalled, state.held_until_ms, state.frozen) == (0, None, False)
    assert (state.wanted, state.bound_ms, state.state) == (0.99, 1_000.0, "not ready")


def test_a_state_is_there_before_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Beside(monkeypatch, "mean < 1 s over 100 ms").controller.state()
    assert (state.windows, state.windows_met, state.success, state.worst_operator) == (
        0,
        0,
        None,
        None,
    )
    assert (state.loop_ms, state.cycles, state.by_operator) == (0.0, 0, {})


def test_the_cost_of_the_loop_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Beside(monkeypatch, "mean < 1 s over 100 ms").controller
    controller._spent.cpu_s, controller._spent.cycles = 0.0123456, 3
    state = controller.state()
    assert (state.loop_ms, state.cycles) == (12.346, 3)
    assert (controller.state().loop_ms, controller.state().cycles) == (0.0, 0)


def test_a_record_misses_a_percentile_above_its_bound_and_no_record_a_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Beside(monkeypatch, "p95 < 2 s over 1 s").controller
    assert (controller.bound_ms("b"), controller.bound_ms("nobody")) == (2_000.0, 0.0)
    assert controller.asks_origins()
    controller = Beside(monkeypatch, "mean < 2 s over 1 s").controller
    assert (controller.bound_ms("a"), controller.asks_origins()) == (0.0, False)


def test_a_lost_slot_is_told_to_the_policy_by_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside(monkeypatch, "operator a: mean < 1 s over 100 ms")
    beside.controller.lost("a", 1)
    beside.controller.lost("b", 0)
    beside.controller.lost("a", 7)
    beside.work()
    assert beside.policy.told == [("a", 1), ("a", 7)]


def test_a_policy_asks_for_nothing_until_it_has_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Beside(monkeypatch, "mean < 1 s over 100 ms").controller
    assert controller.requests() == {}
    controller._granted.requests = {"a": 4}
    assert controller.requests() == {"a": 4}


@pytest.mark.parametrize(("granted", "soon"), [(1, True), (2, False), (3, False)])
def test_a_grant_below_the_slots_is_worked_off_soon(
    monkeypatch: pytest.MonkeyPatch, granted: int, soon: bool
) -> None:
    beside = Beside(monkeypatch, "mean < 1 s over 100 ms")
    assert not beside.controller._due
    grant = Grant({"a": 4, "b": granted})
    beside.controller.limit(grant)
    beside.work()
    assert beside.controller._granted.grant is grant
    assert beside.controller._due is soon


def test_an_slo_about_other_operators_is_refused_while_a_query_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = Beside(monkeypatch, "operator a: mean < 1 s over 100 ms")
    with pytest.raises(
        ConfigError,
        match=r"^an SLO may change its bound and window while a query runs, not the operators it is "
        r"about; this one is about a\.$",
    ):
        beside.controller.judge_by([parse_slo("operator b: mean < 1 s over 100 ms")])
    beside.controller.judge_by([parse_slo("operator a: mean < 2 s over 300 ms")])
    beside.work()
    state = beside.state()
    assert state.bound_ms == 2_000.0
    held = beside.controller._loop.settings("a")
    assert (held.bound_s, held.window_s) == (2.0, 0.3)


def test_the_cost_of_a_record_is_that_of_the_first_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = Beside(monkeypatch, "mean < 1 s over 100 ms")
    monkeypatch.setattr(beside.controller._metrics, "record_cost", {"a": (0.25, 0.5)}.get)
    assert beside.controller.record_cost() == (0.25, 0.5)
    only_b = Beside(monkeypatch, "operator b: mean < 1 s over 100 ms")
    assert only_b.controller.record_cost() == (None, None)


def test_whether_a_policy_acts_is_known_by_its_name_and_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Beside(monkeypatch, "mean < 1 s over 100 ms").controller
    assert (controller.acts, controller.policy) == (True, "quiet")
    controller._config = replace(controller._config, advise=True)
    assert not controller.acts
    controller._config = replace(controller._config, advise=False, policy=policy("static"))
    assert (controller.acts, controller.policy) == (False, "static")


def test_slots_of_a_batch_run_one_operator_after_the_other_on_the_cores() -> None:
    reports = [
        replace(_report(name, TICK, [0.0]), slot=slot, useful_ms=useful_ms)
        for name, slot, useful_ms in (
            ("a", 0, 30.0),
            ("a", 1, 50.0),
            ("b", 0, 20.0),
            ("b", 1, 20.0),
        )
    ]
    assert module.busy_s(reports, 2) == pytest.approx(0.07)
    assert module.busy_s(reports, 1) == module.busy_s(reports, 0) == pytest.approx(0.12)


def test_rows_that_an_earlier_run_left_wait_with_the_owner_of_their_key_group() -> None:
    state = OperatorState.fresh(2, GROUPS)
    state.backlog = {
        1: [["f", 0, 5, 0], ["f", 5, 2, 0]],
        5: [["g", 0, 3, 0]],
        2: [["h", 0, 4, 0, 9]],
    }
    assert module._waiting(state).tolist() == [0.0, 10.0, 9.0, 0.0]
