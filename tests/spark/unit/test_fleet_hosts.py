"""Which hosts of a fleet are congested: each by what its own tasks measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgate.control.fleet.view import FleetView
from headgate.spark.fleet.hosts import ANYWHERE, HostLoad, HostTime, beside_s, loads_of, times_of
from headgate.spark.job.reports import Ran


def task(host, began_s, useful_s, operator="op", load=0.5):
    where = Ran(host, began_s * 1e3, (began_s + useful_s) * 1e3, load)
    return SimpleNamespace(operator=operator, useful_ms=useful_s * 1e3, ran=where)


def spent(*tasks, slots_s):
    return {host: time.runnable_s for host, time in times_of(tasks, slots_s).items()}


def test_a_task_waits_from_when_the_first_of_its_operator_began():
    # two slots take turns on the one core of host b, while a is done at once
    tasks = [task("a", 10.0, 0.1), task("b", 10.0, 0.6), task("b", 10.6, 0.6)]
    assert spent(*tasks, slots_s=1.2) == pytest.approx({"a": 0.1, "b": 0.6 + 0.6 + 0.6})


def test_all_tasks_wait_while_none_of_the_steps_runs():
    # others hold the cores for two seconds before the first begins
    tasks = [task("a", 12.0, 0.5), task("b", 12.0, 0.5)]
    assert spent(*tasks, slots_s=2.5) == pytest.approx({"a": 2.5, "b": 2.5})
    # but not while Spark does what it does in any step of the query
    assert beside_s(tasks, 2.5) == pytest.approx(2.0)
    times = times_of(tasks, 2.5, usual_s=0.2)
    assert [one.runnable_s for one in times.values()] == pytest.approx([2.3, 2.3])


def test_an_operator_that_reads_another_one_does_not_wait_for_a_core_meanwhile():
    tasks = [task("a", 10.0, 1.0, "first"), task("a", 11.0, 0.5, "second")]
    assert spent(*tasks, slots_s=1.5) == pytest.approx({"a": 1.5})


def test_a_clock_that_is_off_counts_no_more_than_the_step_took():
    tasks = [task("a", 10.0, 0.5), task("b", 99.0, 0.5)]
    assert spent(*tasks, slots_s=1.0) == pytest.approx({"a": 0.5, "b": 1.5})


def test_a_host_is_congested_if_more_is_runnable_than_it_has_cores():
    job = {"a": HostTime(20.1, 3.0), "b": HostTime(19.9)}
    found = loads_of({"a": 2, "b": 2, "c": 2}, [job], 10.0)
    assert [(one.host, one.congested) for one in found] == [("a", True), ("b", False), ("c", False)]
    assert found[0] == HostLoad("a", 2, pytest.approx(2.01), 3.0)


def test_the_tasks_of_all_jobs_add_up():
    jobs = [{"a": HostTime(6.0)}, {"a": HostTime(5.0), "b": HostTime(6.0)}]
    assert [one.congested for one in loads_of({"a": 1, "b": 1}, jobs, 10.0)] == [True, False]


def test_one_of_two_hosts_is_no_majority_and_two_of_three_are():
    def view(congested, hosts):
        return FleetView(0.0, {}, 1, hosts=hosts, hosts_congested=congested)

    assert not view(1, 2).congested
    assert view(2, 3).congested
    assert not view(0, 0).congested


def test_time_on_a_host_that_is_not_known_is_shared_by_all_cores():
    found = loads_of({"a": 1, "b": 3}, [{ANYWHERE: HostTime(40.0), "gone": HostTime(4.0)}], 10.0)
    assert [one.runnable for one in found] == pytest.approx([1.1, 3.3])
    # a local session is one host, whatever its machine is called
    (only,) = loads_of({"local": 2}, [{"machine": HostTime(30.0, 1.5)}], 10.0)
    assert (only.runnable, only.load, only.congested) == (3.0, 1.5, True)
    assert loads_of({}, [{"gone": HostTime(1.0)}], 10.0) == []


CHILD = """
import json, sys, time
from dataclasses import replace
from pathlib import Path
import headgate as hg
from pyspark.sql import functions as F
from headgate.control.fleet.view import FleetDecision
from headgate.spark.jvm.hosts import living_hosts
from headgate_lab.testing.cluster import StandaloneCluster

base = Path(sys.argv[1])


class Watching:
    name = "watching"
    views = []

    def decide(self, view):
        self.views.append(view)
        return FleetDecision()


with StandaloneCluster(base, workers=2, cores=1) as cluster:
    spark = hg.session(cluster.master, **{"spark.executor.memory": "700m"})
    while len(living_hosts(spark)) < 2:
        time.sleep(0.1)
    rows = spark.readStream.format("rate").options(rowsPerSecond=20, numPartitions=1).load()
    counts = rows.groupBy((F.col("value") % 97).alias("key")).count()
    writer = hg.writeStream(counts).queryName("job").slo("juice >= 0.9 over 1 min")
    writer = writer.slots(max=8, start=6).keyGroups(32).outputMode("update").format("noop")
    writer = writer.option("checkpointLocation", str(base / "ck"))
    # slots are wished to hosts by turns: those with odd numbers are on the second one, whose core they
    # keep busy for 0.8 s of each second's records, one after the other
    slow = [{"kind": "slow", "slot": slot, "us_per_row": 80_000} for slot in (1, 3, 5)]
    writer.settings = replace(writer.settings, faults=tuple(slow))
    fleet = hg.Fleet(spark, 8, policy=Watching(), round_s=5.0, journal=base / "fleet.jsonl")
    fleet.add(writer)
    fleet.start()
    until = time.monotonic() + 100
    found = []
    while time.monotonic() < until and len(found) < 2:
        time.sleep(0.5)
        found = [r for r in fleet.rounds if [h.congested for h in r.hosts] == [False, True]]
    fleet.stop()
    rounds = found or fleet.rounds
    hosts = [[h.host, h.cores, h.runnable, h.load, h.congested] for h in rounds[-1].hosts]
    every = [[h.runnable for h in r.hosts] for r in fleet.rounds]
    print(json.dumps({"found": len(found), "congested": [r.congested for r in found],
                      "hosts": hosts, "views": [v.hosts for v in Watching.views], "every": every}))
    spark.stop()
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_of_two_hosts_on_spark_the_one_with_slow_slots_is_congested_which_is_no_majority(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert [host[:2] for host in found["hosts"]] == [["127.0.0.11", 1], ["127.0.0.12", 1]]
    assert set(found["views"]) == {2}
    assert found["found"] >= 2, found
    assert not any(found["congested"])
    assert all(host[3] > 0.0 for host in found["hosts"])
