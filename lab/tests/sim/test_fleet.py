"""The simulated fleet: queues, hosts and what a policy sees of them, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headgate.control.fleet.henge import Henge
from headgate.control.fleet.view import FleetDecision, FleetView
from headgate.core.errors import ConfigError
from headgate.core.utility import Intent, Metric, Utility
from headgate_lab.sim.fleet.model import RESTART, Cluster, SimJob
from headgate_lab.sim.fleet.run import run_fleet
from headgate_lab.sim.fleet.simulation import FleetSimulation
from headgate_lab.workloads import topologies
from headgate_lab.workloads.topologies import OperatorShape, Topology

QUIET = Cluster(hosts=2, noise=0.0, slot_overhead=0.0)
BELOW_1S = Utility(10.0, (Intent(Metric.LATENCY, 1.0),))
JUICE = Utility(10.0, (Intent(Metric.JUICE, 1.0),))


def one_operator(slots: int, rate: float, **shape: float) -> Topology:
    """A source and one operator whose slots take 10 ms per record without needing a core."""
    work = OperatorShape(("source",), 0.010, 0.0, slots=slots, slots_max=1000, **shape)  # type: ignore[arg-type]
    return Topology({"source": OperatorShape(service_s=0.0), "work": work}, rate)


def simulated(
    topology: Topology, cluster: Cluster = QUIET, utility: Utility = BELOW_1S
) -> FleetSimulation:
    simulation = FleetSimulation(cluster)
    simulation.add("job", SimJob(topology, utility))
    return simulation


def measured(simulation: FleetSimulation, name: str = "job") -> float:
    values = simulation.view().jobs[name].values
    assert values is not None
    return values[0]


class Never:
    """A policy that changes nothing."""

    name = "never"

    def decide(self, view: FleetView) -> FleetDecision:
        return FleetDecision()


def test_a_slot_that_keeps_up_has_the_wait_of_kingmans_formula():
    simulation = simulated(one_operator(4, 200.0))
    for _ in range(6):
        simulation.advance(10.0)
    rho = 200.0 * 0.010 / 4
    wait_s = (1 / 4 + 1) / 2 * rho / (1 - rho) * 0.010
    assert measured(simulation) == pytest.approx(0.010 + wait_s + 0.001, rel=1e-6)
    assert simulation.view().jobs["job"].operators["work"].capacity == pytest.approx(rho)


def test_an_overloaded_operator_delays_its_records_by_its_backlog():
    # three slots serve 300 of 400 records/s: what leaves at t arrived at 0.75 t
    simulation = simulated(one_operator(3, 400.0))
    for _ in range(30):
        simulation.advance(10.0)
    middle_of_the_last_minute_s = 270.0
    assert measured(simulation) == pytest.approx(0.25 * middle_of_the_last_minute_s, rel=0.02)


def test_records_leave_in_the_order_of_arrival_after_a_change_of_slots():
    simulation = simulated(one_operator(1, 200.0))
    for _ in range(6):
        simulation.advance(10.0)
    simulation.apply({"job": {"work": 10}})
    simulation.advance(10.0)
    # 6,000 records wait; at 1,000/s, with 200/s more, they are gone after 7.5 s
    assert simulation.view().jobs["job"].operators["work"].backlog_s == pytest.approx(0.0, abs=0.1)


def test_a_restart_pauses_the_job_and_loses_what_waits():
    cluster = Cluster(hosts=2, noise=0.0, change=RESTART)
    simulation = simulated(one_operator(1, 200.0), cluster)
    simulation.advance(60.0)
    simulation.apply({"job": {"work": 10}})
    assert simulation.view().jobs["job"].operators["work"].backlog_s == 0.0
    simulation.advance(RESTART.pause_s)
    assert simulation.view().jobs["job"].operators["work"].capacity == 0.0
    simulation.advance(RESTART.pause_s)
    assert simulation.view().jobs["job"].operators["work"].capacity > 0.0


@pytest.mark.parametrize(
    "topology",
    [topologies.diamond(), topologies.star(), topologies.linear(), topologies.retained_join()],
)
def test_juice_is_one_where_every_operator_keeps_up(topology):
    simulation = simulated(topology, utility=JUICE)
    simulation.apply({"job": {name: 40 for name, s in topology.operators.items() if not s.source}})
    for _ in range(7):
        simulation.advance(10.0)
    assert measured(simulation) == 1.0


def test_juice_is_the_share_that_is_processed():
    simulation = simulated(one_operator(1, 200.0), utility=JUICE)
    for _ in range(7):
        simulation.advance(10.0)
    assert measured(simulation) == pytest.approx(0.5, rel=1e-6)


def test_throughput_is_what_leaves_the_sinks_per_second():
    rate = Utility(10.0, (Intent(Metric.THROUGHPUT, 100.0),))
    simulation = simulated(one_operator(1, 200.0), utility=rate)
    for _ in range(7):
        simulation.advance(5.0)
    assert measured(simulation) == pytest.approx(100.0, rel=0.02)


def test_page_load_starts_unable_to_keep_up():
    simulation = simulated(topologies.page_load(), Cluster(hosts=2, noise=0.0))
    simulation.advance(10.0)
    operators = simulation.view().jobs["job"].operators
    assert [name for name, view in operators.items() if view.capacity > 0.3] == ["aggregate"]
    assert operators["spout"].source


def test_slots_that_want_more_cores_than_there_are_slow_each_other_down():
    busy = OperatorShape(("source",), 0.010, 0.010, slots=8, slots_max=8)
    topology = Topology({"source": OperatorShape(service_s=0.0), "work": busy}, 1000.0)
    cluster = Cluster(hosts=2, cores=2.0, noise=0.0, slot_overhead=0.0)
    simulation = simulated(topology, cluster, JUICE)
    for _ in range(7):
        simulation.advance(10.0)
    view = simulation.view()
    assert view.congested
    # four cores serve 100 records/s each
    assert measured(simulation) == pytest.approx(0.4, rel=0.02)


def test_a_job_lies_on_the_hosts_with_the_fewest_slots():
    # the first job fills one of two hosts, whose cores it overloads; the second has the other
    busy = OperatorShape(("source",), 0.010, 0.010, slots=8, slots_max=8)
    topology = Topology({"source": OperatorShape(service_s=0.0), "work": busy}, 1000.0)
    simulation = FleetSimulation(Cluster(hosts=2, noise=0.0, slot_overhead=0.0))
    simulation.add("heavy", SimJob(topology, JUICE, hosts=1))
    simulation.add("light", SimJob(one_operator(4, 200.0), JUICE, hosts=1))
    for _ in range(7):
        simulation.advance(10.0)
    view = simulation.view()
    assert (view.hosts_congested, view.congested) == (1, False)
    assert (measured(simulation, "heavy") < 0.5, measured(simulation, "light")) == (True, 1.0)


def test_a_cluster_with_cores_to_spare_is_not_congested():
    simulation = simulated(one_operator(4, 200.0))
    simulation.advance(10.0)
    assert not simulation.view().congested


def test_a_removed_job_takes_nothing_with_it():
    simulation = simulated(one_operator(4, 200.0))
    simulation.add("other", SimJob(topologies.linear(), BELOW_1S))
    simulation.advance(10.0)
    simulation.remove("job")
    simulation.advance(10.0)
    assert list(simulation.view().jobs) == ["other"]
    assert measured(simulation, "other") < 1.0
    with pytest.raises(ConfigError, match='no job "job" runs'):
        simulation.apply({"job": {"work": 3}})


def test_kept_records_take_memory_until_their_time_is_up():
    simulation = simulated(one_operator(4, 200.0, retention_s=30.0, record_bytes=1e6))
    for _ in range(60):
        simulation.advance(10.0)
    slots = QUIET.slot_bytes * 14
    expected = (200.0 * 30.0 * 1e6 + slots) / (QUIET.memory_bytes * QUIET.hosts)
    assert simulation.memory_share == pytest.approx(expected, rel=0.02)


def test_a_percentile_is_refused_where_only_means_are_known():
    tail = Utility(1.0, (Intent(Metric.LATENCY, 1.0, percentile=99.0),))
    with pytest.raises(ConfigError, match="99th percentile"):
        SimJob(topologies.linear(), tail)


def test_the_same_seed_gives_the_same_run():
    jobs = {"a": SimJob(topologies.page_load(), BELOW_1S)}
    runs = [run_fleet(Cluster(), jobs, Never(), 100.0, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].load == runs[1].load
    assert runs[0].load != runs[2].load


def test_jobs_come_and_go_at_their_times():
    jobs = {
        "early": SimJob(topologies.linear(), BELOW_1S, leaves_s=50.0),
        "late": SimJob(topologies.linear(), BELOW_1S, arrives_s=30.0),
    }
    run = run_fleet(QUIET, jobs, Never(), 80.0)
    assert [sorted(found) for found in run.utility[::2]] == [
        ["early"], ["early"], ["early", "late"], ["late"],
    ]  # fmt: skip


def test_henge_brings_every_job_of_figure_9_to_its_slo_highest_priority_first():
    jobs = {
        f"T{k}": SimJob(topologies.page_load(), Utility(10.0 * k, (Intent(Metric.LATENCY, 0.06),)))
        for k in range(1, 10)
    }
    run = run_fleet(Cluster(change=RESTART), jobs, Henge(), 1800.0)
    assert [acted.jobs for acted in run.actions] == [(f"T{k}",) for k in range(9, 0, -1)]
    assert run.total[-1] == pytest.approx(450.0)


def test_a_job_that_has_put_nothing_out_is_infinitely_late():
    never = OperatorShape(("source",), 1e6, 0.0, slots=1, slots_max=1)
    topology = Topology(
        {"source": OperatorShape(service_s=0.0), "work": never, "sink": OperatorShape(("work",))},
        10.0,
    )
    simulation = simulated(topology)
    simulation.add("idle", SimJob(topologies.linear(), BELOW_1S, rate=lambda time_s: 0.0))
    simulation.advance(10.0)
    assert simulation.view().jobs["job"].attained < 1e-3
    assert math.isfinite(measured(simulation, "idle"))
    assert np.isfinite(simulation.memory_share)
