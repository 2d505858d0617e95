"""The crash loop that is not `bench kill`: what it plans, whom it finds, and a short one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

import pyarrow.compute as pc
import pytest

from headgate.core.errors import ConfigError
from headgate_lab.bench import storm
from headgate_lab.bench import storm_faults as faults
from headgate_lab.bench import storm_jobs as jobs


def plan(seed: str = "0 join", count: int = 40) -> list[faults.Fault]:
    return faults.planned(count, seed, faults.KINDS, 3.0, 15.0)


def test_every_kind_of_fault_comes_as_often_as_any_other():
    counts = Counter(one.kind for one in plan())
    assert set(counts) == set(faults.KINDS)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert plan() == plan(), "a seed is a run"
    assert plan() != plan("1 join")


def test_a_fault_ends_the_drivers_life_or_it_does_not():
    survived = {one.kind for one in plan() if not one.ends_life}
    assert survived == {*faults.PAUSES, "kill-worker", "kill-daemon"}
    assert {one.whom for one in plan(count=200) if one.kind == "start"} == {"driver", "group"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 0}, "count=0"),
        ({"only": "join,cat"}, "cat"),
        ({"kinds": "kill-cat"}, "kill-cat"),
        ({"scale_s": 0.1}, "scale_s"),
    ],
)
def test_a_storm_that_cannot_be_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        storm.run(**given)


@pytest.mark.parametrize("number", [0, 1, 7])
def test_no_record_is_late_whatever_a_batch_holds_and_some_come_twice(number):
    """The watermark lies below the latest record so far by more than files overlap."""
    before_us = max(
        (pc.max(jobs.rows(3, jobs.LEFT, n, 100)["t"]).value for n in range(number)), default=0
    )
    table = jobs.rows(3, jobs.LEFT, number, 100)
    assert before_us - 5_000_000 < pc.min(table["t"]).value
    assert len(table.group_by(table.column_names).aggregate([])) < len(table)
    assert table.equals(jobs.rows(3, jobs.LEFT, number, 100))


def test_processes_are_found_by_their_mark_and_told_apart():
    code = "import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {faults.MARK: "m1"})
    try:
        assert faults.wait_until(lambda: bool(faults.marked("m1")), 60)
        (found,) = faults.marked("m1")
        assert found.pid == process.pid
        assert found.parent == os.getpid()
        assert faults.of_kind([found], faults.DRIVER, process.pid) == [found]
        assert found.send(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert not found.alive
    assert not found.send(signal.SIGKILL)
    assert faults.marked("m1") == []


def test_daemon_and_workers_are_told_by_their_parents():
    def process(pid: int, parent: int, what: bytes) -> faults.Process:
        return faults.Process(pid, parent, pid, "S", what)

    daemon = b"python\0-m\0headgate.spark.worker.daemon"
    everyone = [
        process(1, 0, b"python\0-m\0job"),
        process(2, 1, b"/usr/bin/java\0-cp\0x"),
        process(3, 2, daemon),
        process(4, 3, daemon),
        process(5, 2, b"python\0-m\0pyspark.sql.streaming.python_streaming_source_runner"),
    ]
    parts = (faults.DRIVER, faults.JVM, faults.DAEMON, faults.WORKER)
    found = {whom: [one.pid for one in faults.of_kind(everyone, whom, 1)] for whom in parts}
    assert found == {"driver": [1], "jvm": [2], "daemon": [3], "worker": [4]}


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_a_short_storm_leaves_the_batch_answer_and_nothing_else():
    kinds = "crash-after-manifest,kill-worker,start"
    found = storm.run(count=3, only="join", seed=1, kinds=kinds, watch_jvm=True)
    assert found["failed"] == []
    assert found["verified"]
    assert found["jobs"]["join"]["faults"].keys() == {*kinds.split(","), storm.LAST}
    assert found["jobs"]["join"]["left"] == []
