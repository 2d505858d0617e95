"""The manifest of a step, made of the reports of its slots; and requests to stop, and live jobs."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_steps import begun

from headgate.checkpoint.changelog import SectionRef
from headgate.checkpoint.manifest import BlobEntry, FileEntry, Manifest, SectionEntry
from headgate.core.assignment import Assignment
from headgate.core.errors import CheckpointError
from headgate.journal.schema import ControlAct
from headgate.operators.spec import NEVER_US
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.ports import SameExecutors
from headgate.spark.job.reports import Payload, Report
from headgate.spark.step.commit import LATE_FILES_KEPT, assigned, delivers, next_manifest
from headgate.spark.step.live import LiveJob
from headgate.spark.step.stop_requests import StopRequests

GROUPS = 4
REF = SectionRef(0, 5, 0, 0, 0, full=True, previous="", token="t")


def report(slot: int = 0, **facts: Any) -> Report:
    told: dict[str, Any] = {
        "step": 8, "attempt": 1, "operator": "op", "slot": slot, "token": f"t{slot}",
        "consumed": (), "groups": {}, "sections": {}, "changelog": None, "output": None,
        "waiting": None, "late": None, "output_rows": 0, "late_rows": 0, "segments": {},
        "taken": {}, "arrived": 0, "served": 0, "late_records": 0, "waiting_records": 0,
        "served_rows": 0, "touched_rows": 0, "served_by_group": {}, "histogram": (),
        "latency_sum_ms": 0.0, "latency_max_ms": 0.0, "watermark_us": 900, "holds_us": 900,
        "useful_ms": 0.0,
    }  # fmt: skip
    return Report(**told | facts)


def made(*reports: Report, state: OperatorState | None = None, **begins: Any) -> Manifest:
    states = {"op": state or OperatorState.fresh(2, GROUPS)}
    return next_manifest(begun(**begins), "job", 3, states, reports)


def test_a_step_without_reports_has_where_its_operators_are() -> None:
    manifest = made()
    assert (manifest.job, manifest.step, manifest.spark_batch, manifest.epoch) == ("job", 8, 6, 3)
    assert manifest.assignments == {"op": {"slots": 2, "slot_of": [0, 0, 1, 1]}}
    assert manifest.watermarks == {"late_us": 0, "evict_us": 1000}
    assert manifest.heads["op"].steps == (-1,) * GROUPS
    assert (manifest.sections, manifest.blobs, manifest.files) == ({"op": {}}, (), ())
    assert manifest.previous is None
    engine = dict(manifest.engine)
    assert "migration" not in engine.pop("operators")["op"]
    assert engine == {
        "outputs": [],
        "sink_batch": 0,  # the first step with input is delivered, whatever comes of it
        "empty": True,
        "sources": ["9"],
        "late": [],
        "drain": False,
    }
    assert delivers(manifest)


def test_a_slots_changes_are_in_its_blob_and_its_groups_have_the_new_token() -> None:
    here = report(
        0,
        groups={1: (50, 70, 2)},
        sections={1: REF},
        changelog=Payload(b"here", None, 4, 11),
    )
    away = report(
        1,
        groups={2: (0, int(NEVER_US), 3), 3: (0, 90, 1)},
        sections={2: REF._replace(full=False), 3: REF},
        changelog=Payload(None, "t1.bin", 9, 12),
    )
    manifest = made(here, away)
    assert manifest.blobs == (
        BlobEntry(None, "changelog-t0", 4, 11),
        BlobEntry("t1.bin", None, 9, 12),
    )
    assert manifest.payloads == {"changelog-t0": b"here"}
    assert manifest.sections["op"] == {
        1: SectionEntry(0, REF, -1),
        2: SectionEntry(1, REF._replace(full=False), -1),
        3: SectionEntry(1, REF, -1),
    }
    assert manifest.heads["op"].tokens[1:] == ("t0", "t1", "t1")
    assert manifest.heads["op"].steps == (-1, 8, 8, 8)
    facts = manifest.engine["operators"]["op"]
    assert facts["full_steps"] == [-1, 8, -1, 8]
    assert facts["due_us"] == [NEVER_US, 70, NEVER_US, 90]
    assert facts["rows"] == [0, 2, 3, 1]


def before(**facts: Any) -> Manifest:
    told: dict[str, Any] = {
        "job": "job", "step": 7, "spark_batch": 5, "epoch": 0, "assignments": {},
        "watermarks": {"evict_us": 400}, "heads": {}, "sections": {},
    }  # fmt: skip
    engine = {"sink_batch": 4, "late": [["op", "old"]]}
    return Manifest(**told | {"engine": engine} | facts)


def test_a_step_follows_the_one_before_it() -> None:
    latest = before()
    manifest = made(report(late=Payload(None, "new", 1, 2)), latest=latest, drain=True)
    assert manifest.previous == latest.digest
    assert manifest.watermarks == {"late_us": 400, "evict_us": 1000}
    assert manifest.engine["late"] == [["op", "old"], ["op", "new"]]
    assert manifest.engine["drain"] is True
    assert manifest.engine["sink_batch"] == 4
    assert not delivers(manifest)


def test_only_what_has_rows_is_the_sinks() -> None:
    output = report(output=Payload(b"rows", None, 4, 1), output_rows=2)
    manifest = made(output, latest=before())
    assert manifest.engine["sink_batch"] == 5
    assert "empty" not in manifest.engine
    assert manifest.payloads == {"output-t0": b"rows"}
    assert delivers(manifest)
    nothing = made(replace(output, output_rows=0), latest=before())
    assert (nothing.engine["sink_batch"], delivers(nothing)) == (4, False)
    assert "empty" not in made(output).engine


@pytest.mark.parametrize("sources", [None, [], ["", ""]])
def test_a_step_before_any_source_has_had_anything_is_not_delivered(sources: Any) -> None:
    manifest = made(sources=sources)
    assert manifest.engine["sink_batch"] == -1
    assert not delivers(manifest)


def test_the_newest_files_of_late_records_are_named() -> None:
    late = [["op", str(n)] for n in range(LATE_FILES_KEPT)]
    latest = before(engine={"sink_batch": 4, "late": late})
    manifest = made(report(late=Payload(None, "new", 1, 2)), latest=latest)
    assert LATE_FILES_KEPT == 256
    assert manifest.engine["late"] == [*late[1:], ["op", "new"]]


def test_files_in_which_records_wait_are_named_as_long_as_they_do() -> None:
    state = OperatorState.fresh(2, GROUPS)
    state.backlog = {0: [["older", 0, 4, 0]], 1: [["served", 0, 2, 0]]}
    files = (
        FileEntry("backlog/older", 10, 1),
        FileEntry("backlog/served", 11, 2),
        FileEntry("output/older", 12, 3),
    )
    waits = report(0, waiting=Payload(None, "new", 20, 5), segments={0: (0, 3)}, taken={1: 2})
    manifest = made(waits, state=state, latest=before(files=files))
    assert manifest.files == (FileEntry("backlog/new", 20, 5), FileEntry("backlog/older", 10, 1))
    assert [segment[:3] for segment in state.backlog[0]] == [["older", 0, 4], ["new", 0, 3]]
    assert state.backlog[0][1][3] == pytest.approx(time.time() * 1e3, abs=60_000), "since now"


def test_a_migration_under_way_is_kept_with_its_operator() -> None:
    states = {name: OperatorState.fresh(1, GROUPS) for name in ("op", "other")}
    moving = {"op": {"to": 3}}
    operators = next_manifest(begun(), "job", 3, states, [], moving.get).engine["operators"]
    assert operators["op"]["migration"] == {"to": 3}
    assert "migration" not in operators["other"]


def test_a_split_group_stands_where_all_of_its_shares_allow() -> None:
    state = OperatorState.fresh(2, GROUPS)
    state.assignment = Assignment((0, 0, 1, 1), 2, split={1: (0, 1)})
    manifest = made(report(0), report(1, apart_holds_us={1: 300}), state=state)
    assert manifest.engine["operators"]["op"]["stands_us"] == {"1": 300}


def test_a_split_is_kept_with_the_assignment() -> None:
    split = Assignment((0, 1), 2, split={1: (1, 0)})
    assert assigned(split) == {"slots": 2, "slot_of": [0, 1], "split": {"1": [1, 0]}}


# --- A live job ---------------------------------------------------------------------------------------


def live(latest: Manifest | None) -> LiveJob:
    query: Any = SimpleNamespace(operators=[SimpleNamespace(id="op")])
    recorder: Any = None
    config = JobConfig("job", GROUPS, slots=2, slots_max=3)
    return LiveJob.begin(query, config, latest, SameExecutors(), recorder)


def test_a_job_begins_fresh_or_where_its_manifest_left_it() -> None:
    assert live(None).states["op"].assignment.slot_of == (0, 0, 1, 1)
    state = OperatorState.fresh(3, GROUPS)
    job = live(made(state=state))
    assert job.states["op"].assignment.slot_of == state.assignment.slot_of
    assert job.changes.epoch == 3
    job.set_budget(0.5)
    assert (job.config.budget_s, job.config.slots) == (0.5, 2)


def test_slots_in_use_are_those_that_are_and_those_that_shall_be() -> None:
    job = live(None)
    job.changes.ask(job.changes.scaled(3), "user")
    assert job.slots_in_use("op") == 3
    job.states["op"].assignment = Assignment((0, 1, 2, 3), 4)
    assert job.slots_in_use("op") == 4


# --- Requests to stop ---------------------------------------------------------------------------------


class Commands:
    """Control files with requests to stop; `fails`: what reading and writing them raises."""

    def __init__(self, *requests: str, fails: Exception | None = None) -> None:
        self.requests, self.fails = list(requests), fails
        self.answers: list[tuple[str, str | None]] = []

    def stops(self) -> list[Any]:
        if self.fails is not None:
            raise self.fails
        asked = [
            SimpleNamespace(
                id=one,
                command=None
                if one == "damaged"
                else SimpleNamespace(by="ana", reason=f"for {one}"),
            )
            for one in self.requests
        ]
        self.requests = []
        return asked

    def write_answer(self, request: str, refused: str | None) -> None:
        if self.fails is not None:
            raise self.fails
        self.answers.append((request, refused))


def test_requests_to_stop_of_before_are_refused_and_others_noted_and_answered_at_the_end() -> None:
    files, journal = Commands("old"), list[Any]()
    requests = StopRequests(files, journal.append)  # type: ignore[arg-type]
    assert files.answers == [("old", "this run began after it was asked for; ask again.")]
    files.requests = ["damaged"]
    assert (requests.poll(), journal) == (False, [])
    files.requests = ["new"]
    assert requests.poll()
    assert requests.poll(), "it is still asked for"
    assert journal == [ControlAct("stop", "ana", "for new")]
    requests.answer()
    assert files.answers[1:] == [("new", None)]


@pytest.mark.parametrize("error", [OSError("away"), CheckpointError("away")])
def test_a_checkpoint_that_is_away_ends_no_query(error: Exception) -> None:
    files = Commands("old", fails=error)
    requests = StopRequests(files, lambda _: None)  # type: ignore[arg-type]
    assert not requests.poll()
    files.fails, files.requests = None, ["new"]
    assert requests.poll()
    files.fails = error
    requests.answer()
    assert files.answers == []
