"""Tests how the job of a pipe is planned and run, and what a quiet batch keeps of progress."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from noted_calls import Calls
from pyspark.sql import types as T

from headgate.journal.schema import Batch
from headgate.spark.realtime import job as job_module
from headgate.spark.realtime.in_run import RUN, InRun
from headgate.spark.realtime.job import SparkJob
from headgate.spark.realtime.markers import MARKERS
from headgate.spark.realtime.words import Meeting
from headgate.spark.step.progress import _OF_BATCH, _Done


def test_a_quiet_batch_keeps_what_holds_and_counts_nothing() -> None:
    slo: Any = "in time"
    own = Batch(
        5, 7, 2, 3, 40.0, {"plan": 1.0}, 10, 9, 8, 1, 6, 600, watermark_us=70, state_rows=11,
        state_bytes=1100, changelog_bytes=50, slo=slo,
    )  # fmt: skip
    operator = {"operatorName": "a", "numRowsTotal": 11, **dict.fromkeys(_OF_BATCH, 4)}
    quiet = _Done(7, (operator,), own, 8).quiet(9)
    assert quiet.own == Batch(
        5, 9, 2, 3, 0.0, {}, 0, 0, 0, 0, 6, 600, watermark_us=70, state_rows=11, state_bytes=1100,
        slo=slo,
    )  # fmt: skip
    assert (quiet.batch, quiet.emitted) == (9, 0)
    assert quiet.operators == ({**operator, **dict.fromkeys(_OF_BATCH, 0)},)
    assert _Done(7, (), own, None).quiet(9).emitted is None


def test_steps_of_a_batch_are_added_up() -> None:
    counts = {"arrived": 10, "served": 9, "emitted": 8, "late": 1, "changelog_bytes": 50}
    one = Batch(5, 7, 2, 3, 40.0, {}, 10, 9, 8, 1, 6, 600, changelog_bytes=50, dropped={"old": 2})
    two = dataclasses.replace(one, step=6, backlog=3, dropped={"old": 1, "full": 4})
    facts = {"operatorName": "a", "numRowsTotal": 11, **dict.fromkeys(_OF_BATCH, 4)}
    later = {**facts, "numRowsTotal": 12}
    both = _Done(7, (facts,), one, 3).and_then(_Done(8, (later,), two, 4))
    assert (both.batch, both.emitted) == (8, 7)
    assert both.operators == ({**later, **dict.fromkeys(_OF_BATCH, 8)},)
    assert {name: getattr(both.own, name) for name in counts} == {
        n: 2 * c for n, c in counts.items()
    }
    assert (both.own.step, both.own.backlog, both.own.duration_ms) == (6, 3, 80.0)
    assert both.own.dropped == {"old": 3, "full": 4}
    assert _Done(7, (facts,), one, None).and_then(_Done(8, (later,), two, 4)).emitted == 4
    assert _Done(7, (facts,), one, 3).and_then(_Done(8, (later,), two, None)).emitted is None


class Job:
    """The job of a pipe with two branches, of which the second runs Python."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, branches: int = 2) -> None:
        self.calls = calls = Calls(monkeypatch)
        self.set: dict[str, str] = {}
        known = {"spark.sql.optimizer.excludedRules": "mine"}
        self.context = calls.several(setJobGroup=None, setLocalProperty=None, cancelJobGroup=None)
        numbers = calls.several(mapInArrow="numbers in Arrow")
        self.session = SimpleNamespace(
            conf=SimpleNamespace(set=self.set.__setitem__, get=known.get),
            sparkContext=self.context, range=calls.one("range", numbers),
        )  # fmt: skip
        self.whole = calls.several(collect=None)
        calls.put(job_module, clone_of=self.session, make_active=None, computed_rows=None,
                  mapped="a pipe", as_it_is=self.whole, union="several pipes")  # fmt: skip
        monkeypatch.setattr(
            job_module, "ExecutorPool", lambda session: SimpleNamespace(in_driver=True)
        )
        monkeypatch.setattr(job_module, "Feeder", lambda *told: ("feeder", *told))
        monkeypatch.setattr(job_module, "Router", lambda *told: ("router", *told))

        @contextmanager
        def pipelined(session: Any) -> Any:
            calls.did.append("pipelined")
            yield

        monkeypatch.setattr(job_module, "pipelined_python", pipelined)
        feed = SimpleNamespace(schema=pa.schema([("n", pa.int64())]))
        self.branches = [
            SimpleNamespace(operator=name, stages=stages, over=calls.one("over", f"{name} routed"))
            for name, stages in (("a", 0), ("b", 2))
        ][:branches]
        plan: Any = SimpleNamespace(branches=self.branches)
        feeds: Any = SimpleNamespace(
            feeds=[feed] * branches, shares=[SimpleNamespace(count=3)] * branches
        )
        spark: Any = "spark"
        self.feed, self.meeting = feed, Meeting("", b"k")
        self.job = SparkJob(spark, plan, feeds, {"b"}, self.meeting, "q")


def test_a_pipe_is_planned_once_and_runs_in_each_run_s_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Job(monkeypatch)
    assert made.set | job_module._CONF == made.set
    rules = made.set["spark.sql.optimizer.excludedRules"].split(",")
    prefix = "org.apache.spark.sql.catalyst.optimizer."
    assert rules == ["mine", *(f"{prefix}{rule}" for rule in job_module._RULES)]
    assert {key: made.set[key] for key in made.set if key.endswith("enabled")} == {
        "spark.sql.adaptive.enabled": "false"
    }
    made.calls.did.clear()
    for number in (1, 2):
        made.job.run(Meeting(f"door {number}", b"k"), f"group {number}")
    assert [made.set[bound] for bound in (job_module.BYTES, job_module.ROWS)] == [
        str(2**31 - 1),
        "64",
    ]
    starts = [
        [
            ("make_active", made.session),
            ("setJobGroup", f"group {number}", "q: pipe", {"interruptOnCancel": True}),
            ("setLocalProperty", RUN, Meeting(f"door {number}", b"k").told()), "pipelined",
        ]
        for number in (1, 2)
    ]  # fmt: skip
    schema = T.StructType().add("n", T.LongType())
    for marker in MARKERS:
        schema = schema.add(marker)
    planned: list[Any] = []
    for branch, padding in zip(made.branches, (2, 10), strict=True):
        feeder: Any = ("feeder", made.meeting, made.feed, SimpleNamespace(count=3), made.feed.schema,
                       [None] * (padding * job_module._BATCH_ROWS))  # fmt: skip
        planned += [
            ("range", 0, 3, 1, 3), ("mapInArrow", InRun(feeder), schema), ("over", "numbers in Arrow"),
            ("mapped", made.session, f"{branch.operator} routed"),
        ]  # fmt: skip
    did = [one[:3] if one[0] == "mapped" else one for one in made.calls.did]
    whole = [
        ("union", made.session, ["a pipe", "a pipe"]),
        ("as_it_is", made.session, "several pipes"),
    ]
    run = [*starts[0], *planned, *whole, ("computed_rows", made.whole), ("collect",)]
    assert did == [*run, *starts[1], ("collect",)]
    intos = [one[3] for one in made.calls.did if one[0] == "mapped"]
    routers = [into.args[0].made for into in intos]
    assert routers == [("router", made.meeting, "a", False), ("router", made.meeting, "b", True)]
    frame: Any = SimpleNamespace(mapInArrow=lambda *told: told)
    assert intos[0](frame) == (intos[0].args[0], "nothing int")


def test_a_pipe_of_one_branch_without_python_is_no_union(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Job(monkeypatch, branches=1)
    made.job.run(Meeting("door", b"k"), "group")
    assert "pipelined" not in made.calls.did
    assert [made.set[bound] for bound in (job_module.BYTES, job_module.ROWS)] == ["65536", "10000"]
    (feeder,) = (one[1].made for one in made.calls.did if one[0] == "mapInArrow")
    assert feeder[-1] == [*2 * ["{}" + " " * 65_534], None]
    assert ("as_it_is", made.session, "a pipe") in made.calls.did
    made.job.cancel("group")
    assert made.calls.did[-1] == ("cancelJobGroup", "group")
    monkeypatch.setattr(job_module, "failure_of_tasks", lambda session, group: "")
    assert made.job.failure("group") is None
    monkeypatch.setattr(
        job_module, "failure_of_tasks", lambda session, group: f"it failed in {group}"
    )
    assert "it failed in group" in str(made.job.failure("group"))
