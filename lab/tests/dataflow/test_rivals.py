"""What DRRS is compared with: each does what the paper says of it, and not more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flows import COUPLED, OPERATOR, Running, Trial, arrivals, job, name_of, run, uniform_request
from signal_rules import busy

from headgate.core.errors import ConfigError
from headgate_lab.sim.dataflow.behaviours import Pass
from headgate_lab.sim.dataflow.coordinator import Method
from headgate_lab.sim.dataflow.dataflow import Job, OperatorModel
from headgate_lab.sim.dataflow.eventlog import EventLog
from headgate_lab.sim.dataflow.methods import coupled
from headgate_lab.sim.dataflow.methods.bounds import StopRestart
from headgate_lab.sim.dataflow.methods.coupled import Coupled
from headgate_lab.sim.dataflow.methods.drrs import Drrs
from headgate_lab.sim.dataflow.methods.meces import SUB_GROUPS, Meces
from headgate_lab.sim.dataflow.methods.registry import method


def long_path(state_bytes: float = 2000.0, slots: int = 3) -> Trial:
    """Two operators before the one that is scaled."""
    trial = busy(state_bytes=state_bytes, slots=slots)
    source, count, sink = trial.job.operators
    first = OperatorModel("first", 2, 0.001, Pass(), ("source",))
    second = OperatorModel("second", 2, 0.001, Pass(), ("first",))
    operators = (source, first, second, replace(count, parents=("second",)), sink)
    return replace(trial, job=replace(trial.job, operators=operators))


def story(scaled: Method, trial: Trial | None = None) -> EventLog:
    log = EventLog(every_record=True)
    run(trial or long_path(), scaled, log=log)
    return log


def at(log: EventLog, kind: str) -> set[str]:
    return {event.slot.split("/")[0] for event in log.of(kind)}


def test_otfs_injects_at_the_sources_and_aligns_at_every_operator() -> None:
    log = story(coupled.fluid())
    assert at(log, "injected") == {"source"}
    assert at(log, "aligned") == {"first", "second", OPERATOR}
    assert at(log, "routed") == {"second"}


def test_megaphone_injects_at_the_predecessors() -> None:
    log = story(coupled.megaphone())
    assert at(log, "injected") == {"second"}
    assert at(log, "aligned") == {OPERATOR}


def test_megaphone_moves_one_group_after_the_other() -> None:
    log = story(coupled.megaphone())
    launched = log.of("launched")
    assert all(len(event.detail["units"]) == 1 for event in launched)
    kinds = [event.kind for event in log.of("launched", "acknowledged")]
    assert kinds == ["launched", "acknowledged"] * len(launched)
    assert [e.detail["units"][0] for e in launched] == sorted(
        e.detail["units"][0] for e in launched
    )


def test_all_at_once_serves_no_group_before_the_last_is_there_and_fluid_does() -> None:
    def served_before_the_last(scaled: Method) -> int:
        log = story(scaled, busy(state_bytes=6000.0))
        last_s = max(event.at_s for event in log.of("installed"))
        return sum(event.at_s <= last_s for event in log.of("served", slot="count/1"))

    # With the buffer, so that no record of the last group stands in front of all others.
    assert served_before_the_last(Coupled("at once", at_once=True, records_max=200)) == 0
    assert served_before_the_last(Coupled("fluid", records_max=200)) > 0


def test_a_coupled_signal_waits_for_the_slowest_channel() -> None:
    trial = long_path()
    late = replace(trial, job=replace(trial.job, command_s=(0.0, 0.5)))
    log = story(coupled.megaphone(), late)
    injected = [e.at_s for e in log.of("injected") if e.detail["step"] == 1]
    started = next(e.at_s for e in log.of("started") if e.detail["step"] == 1)
    assert max(injected) - min(injected) >= 0.5 - 1e-9
    assert started > max(injected)


def test_drrs_starts_long_before_a_coupled_signal_has_aligned() -> None:
    trial = long_path()

    def delay_s(log: EventLog, sent: str) -> float:
        return log.of("started")[0].at_s - log.of(sent)[0].at_s

    decoupled_s = delay_s(story(Drrs(), trial), "trigger")
    assert decoupled_s < 0.2 * delay_s(story(coupled.fluid(), trial), "injected")


def test_meces_synchronises_once_and_lets_units_go_back_and_forth() -> None:
    # One predecessor hears of it late: its records still come to the old slot.
    trial = busy(state_bytes=4000.0)
    late = replace(trial, job=replace(trial.job, command_s=(0.0, 0.5)))
    log = story(Meces(parts=4), late)
    assert len(log.of("launched")) == 1
    assert at(log, "injected") == {"source"}
    left = [event.detail["unit"] for event in log.of("left")]
    assert max(left.count(unit) for unit in set(left)) > 1


def test_meces_moves_parts_of_key_groups_and_has_no_buffer() -> None:
    assert method("meces").parts == SUB_GROUPS == 32
    log = story(Meces(parts=4), busy())
    assert len({event.detail["unit"] for event in log.of("left")}) == 4 * 4


def test_stop_restart_serves_nothing_while_the_job_is_down() -> None:
    log = story(StopRestart(restart_s=0.7, store_bytes_per_s=1e6), busy())
    moved_s = log.of("left")[0].at_s
    assert not [e for e in log.of("served") if moved_s - 0.7 < e.at_s < moved_s]


def test_a_slot_that_is_deployed_during_a_stop_does_not_wait_for_its_signal() -> None:
    # One source hears of the stop late: only its signal reaches the slot that the second request adds.
    trial = busy(slots=2)
    late = replace(trial, job=replace(trial.job, command_s=(0.0, 0.05)))
    second = uniform_request(1.01, 4)
    flow = run(replace(late, requests=(*late.requests, second)), StopRestart(0.2, 1e6))
    assert len(flow.log.of("released")) == 1


def test_an_unknown_method_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match='unknown method "mega"'):
        method("mega")


def test_operators_out_of_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="operator b comes before its parents"):
        Job((OperatorModel("b", 1, parents=("a",)), OperatorModel("a", 1)))


@pytest.mark.parametrize("method", [*COUPLED, Drrs(groups_min=2)], ids=name_of)
def test_a_run_is_the_same_whatever_its_objects_addresses_are(method: Method) -> None:
    feed = arrivals(5, 200, 2.0, 40, 8)
    made = job(feed=feed, behaviour=Running(), cost_s=0.002)
    trial = Trial(made, (uniform_request(0.5, 5),))
    # Kept, so that each run has addresses of its own.
    flows = [run(trial, method) for _ in range(4)]
    found = [[(at_s, r.key, r.origin, r.number) for at_s, r in flow.outputs()] for flow in flows]
    assert all(other == found[0] for other in found[1:])
