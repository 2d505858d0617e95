"""The step machine, without Spark: what it does of any kind of work, and in which order."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.spark_log import STEP, newest_note
from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.job.ports import Ports
from headgate.spark.step.machine import StepMachine
from headgate.spark.step.steps import Steps
from headgate.spark.step.work_ports import Computation, Demand, StepNotes


class FakeLog:
    """Spark's log: one source, whose offset is the number of the newest batch with data."""

    def __init__(self, offsets: dict[int, list[str]]) -> None:
        self._offsets = offsets

    def batch(self, batch_id: int) -> Any:
        return SimpleNamespace(watermark_us=0, offsets=self._offsets[batch_id], begun_ms=0.0)

    def offsets(self, batch_id: int) -> list[str] | None:
        return self._offsets.get(batch_id)


class FakeWork:
    """Work whose steps do nothing but fail `fails` times with `error`."""

    has_steps = True
    attempts = 3
    changing = waits = False
    columns: ClassVar[dict[str, str]] = {}

    def __init__(self, error: Exception | None = None, fails: int = 0) -> None:
        self.did: list[str] = []
        self.error, self.fails = error, fails
        self.intake = SimpleNamespace(
            look_through=lambda _: self.did.append("look through"),
            go_on_soon=lambda: None,
            close=lambda: None,
        )

    def settle_in(self, batch: Any) -> None: ...
    def arrived(self) -> None: ...
    def committed(self, step: int) -> None: ...

    def due(self, watermark_us: int, clock_ms: float) -> bool:
        return False

    def last_watermark_us(self, latest: Any, log: Any) -> int:
        return 0

    def quiet(self, watermark_us: int, read_ms: float, clock_ms: float) -> bool:
        self.did.append("quiet")
        return False

    def prepare(self, begun: Any) -> dict[str, Any]:
        return {"more": begun.number}

    def compute(self, batch: Any, begun: Any, attempt: int, clock: Any) -> list[Any]:
        self.did.append(f"compute {begun.number}, attempt {attempt}")
        if attempt <= self.fails:
            assert self.error is not None
            raise self.error
        return []

    def manifest(self, begun: Any, reports: list[Any]) -> Manifest:
        return Manifest(
            job=begun.latest.job if begun.latest else JOB[0],
            step=begun.number,
            spark_batch=begun.spark_batch,
            epoch=0,
            assignments={},
            watermarks={},
            heads={},
            sections={},
            files=(),
            engine={
                "outputs": OUTPUTS,
                "sink_batch": begun.number,
                "sources": begun.sources,
            },
            previous=begun.latest.digest if begun.latest else None,
            payloads={"rows": b""},
        )

    def result(self, outputs: Any) -> Any:
        return outputs

    def done(self, outcome: Any, begun: Any) -> None:
        self.did.append(f"done {outcome.step} in {outcome.attempts}")

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        self.did.append(f"retry {step}")


JOB: list[str] = []
OUTPUTS = [{"operator": "work", "rows": 1, "inline": "rows"}]


class FakeSink:
    """Says which of its batches it was given."""

    inside = False

    def __init__(self, did: list[str]) -> None:
        self._did = did

    def write(self, number: int, rows: Any) -> None:
        self._did.append(f"sink {number}")


def machine(
    path: Path, work: FakeWork, offsets: dict[int, list[str]], *, held: bool = False
) -> StepMachine[Any]:
    checkpoint = Checkpoint(path)
    JOB[:] = [checkpoint.open({})]
    made: Any = StepMachine(
        SimpleNamespace(),
        work,
        checkpoint,
        checkpoint.latest(),
        FakeSink(work.did),
        Ports(),
        held=held,
    )
    made.log = FakeLog(offsets)
    return made


def test_a_machine_that_is_closed_hears_of_no_tick(tmp_path: Path) -> None:
    work = FakeWork()
    work.intake.close = lambda: work.did.append("closed")
    machine(tmp_path, work, {}).close()
    assert work.did == ["closed"]


def test_a_step_is_committed_before_its_sink_has_it_and_a_quiet_batch_is_none(
    tmp_path: Path,
) -> None:
    work = FakeWork()
    made = machine(tmp_path, work, {0: ["a"], 1: ["a"]})
    made.process(None, 0)
    made.process(None, 1)
    made.close()
    assert work.did == ["compute 0, attempt 1", "sink 0", "done 0 in 1", "quiet"]
    log = {"batch": 0, "files": {}}
    assert made.checkpoint.read_intent(0) == {"step": 0, "spark_batch": 0, "more": 0, "log": log}
    assert (made.batches_begun, made.settled_batch) == (2, 2)
    note = newest_note(made.checkpoint, None)
    assert note is not None
    assert note[STEP] == 0, "a start knows by it which step was final"


def test_a_batch_follows_at_once_only_what_has_brought_records_or_the_watermark_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = FakeWork()
    monkeypatch.setattr(work, "due", lambda *_: True)  # and stays so, whatever is done
    work.intake.go_on_soon = lambda: work.did.append("soon")
    made = machine(tmp_path, work, {0: ["a"], 1: ["a"], 2: ["a"], 3: ["b"]})
    for batch in range(3):
        made.process(None, batch)
    assert work.did.count("soon") == 1, "else it would go on for ever"
    made.process(None, 3)
    assert work.did.count("soon") == 2
    made.close()


class JobGroups:
    """Takes the group of jobs as a SparkContext does."""

    def setJobGroup(self, *_: object, **__: object) -> None: ...


def test_what_is_due_waits_for_records_where_spark_has_no_batches_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = FakeWork()
    monkeypatch.setattr(work, "due", lambda *_: True)
    offsets = {0: ["a"], 1: ["a"], 2: ["a"], 3: ["b"]}
    made = machine(tmp_path, work, offsets, held=True)
    made.process(None, 0)
    made.process(None, 1)
    made.close()
    # nor after a restart
    again = machine(tmp_path, work, offsets, held=True)
    monkeypatch.setattr(again, "spark", SimpleNamespace(sparkContext=JobGroups()))
    again.process(None, 2)
    again.drain("run")
    assert again.settled
    again.process(None, 3)
    again.close()
    served = [what for what in work.did if what.startswith(("compute", "quiet"))]
    assert served == ["compute 0, attempt 1", "quiet", "quiet", "compute 1, attempt 1"]


@pytest.mark.parametrize("held", [True, False])
def test_a_quiet_batch_goes_by_the_last_watermark_only_where_spark_has_no_batches_without_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    work = FakeWork()
    made = machine(tmp_path, work, {0: ["a"], 1: ["b"], 2: ["b"]}, held=held)
    batch, manifest, begun = made.log.batch, work.manifest, list[int]()

    def later(number: int) -> Any:
        read = batch(number)
        read.watermark_us = 10 * number + 5
        return read

    def compute(_: Any, step: Any, attempt: int, clock: Any) -> list[Any]:
        begun.append(step.watermark_us)
        work.waits = False
        return []

    monkeypatch.setattr(made.log, "batch", later)
    monkeypatch.setattr(work, "compute", compute)
    monkeypatch.setattr(
        work, "manifest", lambda b, r: replace(manifest(b, r), watermarks={"evict_us": 7})
    )
    monkeypatch.setattr(work, "due", lambda *_: work.waits)
    made.process(None, 0)
    made.process(None, 1)
    work.waits = True
    made.process(None, 2)
    made.close()
    assert begun == [5, 15, 7 if held else 25]


def test_rows_of_other_columns_that_wait_or_are_not_out_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, other = FakeWork(), FakeWork()
    monkeypatch.setattr(work, "columns", {"duplicates": "k int, v int"})
    monkeypatch.setattr(other, "columns", {"duplicates": "v int, k int"})
    offsets = {0: ["a"], 1: ["b"]}
    first = machine(tmp_path, work, offsets)
    first.process(None, 0)
    first.close()
    words = "of duplicates with the columns `k int, v int`, now `v int, k int`; start the query as it was"
    # Spark begins the batch anew: nobody knows that its output is out
    with pytest.raises(CheckpointError, match=f"not delivered yet {words}"):
        machine(tmp_path, other, offsets).process(None, 0)
    assert other.did == []
    machine(tmp_path, other, offsets).process(None, 1)
    assert "sink 1" in other.did
    monkeypatch.setattr(work, "waits", True)
    with pytest.raises(
        CheckpointError, match=r"rows that wait of duplicates with the columns `v int"
    ):
        machine(tmp_path, work, offsets)


def test_of_two_drivers_the_one_that_is_late_puts_nothing_out_and_names_the_other(
    tmp_path: Path,
) -> None:
    offsets = {batch: [str(batch)] for batch in range(6)}
    work, others = FakeWork(), FakeWork()
    first = machine(tmp_path, work, offsets)
    first.process(None, 0)
    first.process(None, 1)
    second = machine(tmp_path, others, offsets)
    assert first.failed is None
    second.process(None, 1)
    second.process(None, 2)
    assert others.did[-2:] == ["sink 2", "done 2 in 1"]
    said = r"has step 2 from another driver already \(host \S+, process \d+, started 20.* UTC\)"
    assert re.search(said, str(first.failed)), "also where Spark itself fails, as of two on one log"
    work.did.clear()
    with pytest.raises(CheckpointError, match=said):
        first.process(None, 2)
    assert not [what for what in work.did if what.startswith(("sink", "done"))]
    for one in (first, second):
        one.close()


def test_a_batch_that_fails_for_what_another_driver_has_removed_names_that_driver(
    tmp_path: Path,
) -> None:
    work = FakeWork(RuntimeError("a changelog file is missing"), fails=9)
    sleeper = machine(tmp_path, FakeWork(), {0: ["a"], 1: ["b"]})
    sleeper.process(None, 0)
    sleeper.steps.computation = work
    other = machine(tmp_path, FakeWork(), {0: ["a"], 1: ["b"]})
    other.process(None, 0)
    other.process(None, 1)
    with pytest.raises(CheckpointError, match="has step 1 from another driver already") as told:
        sleeper.process(None, 1)
    assert sleeper.failed is told.value
    assert told.value.__cause__ is work.error


def test_a_sink_that_another_driver_has_written_to_is_no_riddle(tmp_path: Path) -> None:
    offsets = {batch: [str(batch)] for batch in range(6)}
    first, second = machine(tmp_path, FakeWork(), offsets), None

    class Sink:
        inside = False

        def write(self, number: int, rows: Any) -> None:
            """Fail, as one whose log has this output; another driver has gone on meanwhile."""
            nonlocal second
            second = machine(tmp_path, FakeWork(), offsets)
            second.process(None, 0)
            second.process(None, 1)
            msg = "it is there already"
            raise OSError(msg)

    first.steps.sink = Sink()  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match="has step 1 from another driver already"):
        first.process(None, 0)
    assert second is not None
    for one in (first, second):
        one.close()


def test_a_failed_attempt_is_repeated_up_to_the_last(tmp_path: Path) -> None:
    work = FakeWork(OSError("lost"), fails=2)
    machine(tmp_path / "a", work, {0: ["a"]}).process(None, 0)
    assert work.did[-1] == "done 0 in 3"
    work = FakeWork(OSError("lost"), fails=3)
    made = machine(tmp_path / "b", work, {0: ["a"]})
    with pytest.raises(OSError, match="lost"):
        made.process(None, 0)
    assert work.did.count("retry 0") == 2
    assert made.latest is None
    assert str(made.failed) == "lost"


@pytest.mark.parametrize("error", [ConfigError("no"), ArithmeticError("[DIVIDE_BY_ZERO] no")])
def test_what_would_fail_again_is_not_repeated(tmp_path: Path, error: Exception) -> None:
    work = FakeWork(error, fails=1)
    with pytest.raises(type(error)):
        machine(tmp_path, work, {0: ["a"]}).process(None, 0)
    assert "retry 0" not in work.did


def test_after_a_restart_what_was_committed_is_delivered_and_not_computed_again(
    tmp_path: Path,
) -> None:
    machine(tmp_path, FakeWork(), {0: ["a"]}).process(None, 0)
    work = FakeWork()
    made = machine(tmp_path, work, {0: ["a"], 1: ["b"]})
    made.process(None, 0)
    made.process(None, 1)
    again = ["sink 0", "look through"]
    assert work.did == [*again, "compute 1, attempt 1", "sink 1", "done 1 in 1"]


@pytest.mark.parametrize(
    ("offsets", "batch", "words"),
    [
        ({0: ["other"]}, 0, "has other data for batch 0"),
        ({1: ["b"], 2: ["c"]}, 2, "batch 1 with data that no manifest of headgate covers"),
    ],
)
def test_a_log_of_spark_that_tells_another_history_is_refused(
    tmp_path: Path, offsets: dict[int, list[str]], batch: int, words: str
) -> None:
    machine(tmp_path, FakeWork(), {0: ["a"]}).process(None, 0)
    work = FakeWork()
    with pytest.raises(CheckpointError, match=words):
        machine(tmp_path, work, offsets).process(None, batch)
    assert work.did == []


def test_quiet_batches_in_between_are_no_other_history(tmp_path: Path) -> None:
    machine(tmp_path, FakeWork(), {0: ["a"]}).process(None, 0)
    work = FakeWork()
    machine(tmp_path, work, {1: ["a"], 2: ["b"]}).process(None, 2)
    assert work.did[-1] == "done 1 in 1"


class OnlyComputes:
    """What steps ask of work, and nothing of its demand or its input."""

    attempts = 1
    columns: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        work = FakeWork()
        self.did = work.did
        self.prepare, self.compute, self.manifest = work.prepare, work.compute, work.manifest
        self.committed, self.result = work.committed, work.result


def test_steps_need_what_computes_and_what_notes_and_nothing_else(tmp_path: Path) -> None:
    computation, notes = OnlyComputes(), FakeWork()
    checkpoint = Checkpoint(tmp_path)
    JOB[:] = [checkpoint.open({})]
    steps: Any = Steps(
        computation, notes, checkpoint, None, FakeSink(computation.did), lambda: False
    )
    steps.run(None, 0, 0, started_ms=1.0)
    steps.close()
    assert computation.did == ["compute 0, attempt 1", "sink 0"]
    assert notes.did == ["done 0 in 1"]


def test_a_clock_that_is_put_back_does_not_put_timers_back(tmp_path: Path) -> None:
    computation, times = OnlyComputes(), []
    checkpoint = Checkpoint(tmp_path)
    JOB[:] = [checkpoint.open({})]
    computation.manifest = lambda begun, reports: (
        times.append(begun.timestamp_ms) or FakeWork().manifest(begun, reports)
    )
    steps: Any = Steps(computation, FakeWork(), checkpoint, None, FakeSink([]), lambda: False)
    for batch, started_ms in enumerate((1_000.7, 400.0, 1_000.9, 2_000.0)):
        steps.run(None, batch, 0, started_ms=started_ms)
    steps.close()
    assert times == [1_000, 1_000, 1_000, 2_000]


def test_the_ports_of_work_share_no_member() -> None:
    ports = [
        {name for name in vars(port) if not name.startswith("_")}
        for port in (Demand, Computation, StepNotes)
    ]
    assert sum(map(len, ports)) == len(set().union(*ports))
    assert max(map(len, ports)) <= 8
