"""The loop of a query in real time over a made-up pipe: what it asks of whom in a drawn course."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import EngineError
from headgate.spark.realtime import epochs, pauses
from headgate.spark.realtime.deliveries import MOST_APART, MOST_TOGETHER
from headgate.spark.realtime.epochs import Epochs
from headgate.spark.realtime.feed import Feeds
from headgate.spark.realtime.run_slots import PartLost, PipeLost, SlotsLost

Recorded = Callable[[str, Iterable[str]], None]


class World:
    """A clock that only waiting moves, and all that the loop works with."""

    def __init__(self, path: Path, seed: int, *, source: bool = True) -> None:
        self.dice, self.now_s, self.lines = random.Random(seed), 50.0, list[str]()
        self.say = self.lines.append
        (path / "metadata").write_text('{"id":"the-id"}')
        self.pipe = FakePipe(self)
        self.work = FakeWork(self)
        self.machine = FakeMachine(self, path)
        self.work.feeds = Feeds((FakeSource(self),), (0,)) if source else Feeds((), ())
        self.waits, self.partitions_come = 30, False

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1000.0 + self.now_s


class FakeSource:
    """A source with one offset, which grows as records come."""

    keeps_first, readers = True, 1

    def __init__(self, world: World) -> None:
        self.world, self.end, self.silent = world, 5, False

    def first(self) -> str:
        self.world.say("  asks where to begin")
        return "5"

    def grown(self, offsets: str) -> str:
        if self.silent:
            self.silent = False
            raise EngineError("Kafka does not answer.", transient=True)
        return offsets

    def newest(self, since: str) -> str:
        return str(self.end)

    def merged(self, parts: Iterable[str]) -> str:
        return next(iter(parts))

    def reached(self, offsets: str, wanted: str) -> bool:
        return int(offsets) >= int(wanted)


class FakePipe:
    """A pipe whose feeders cut where the course says so."""

    def __init__(self, world: World) -> None:
        self.world, self.is_cut, self.may, self.slots = world, False, -1, 2
        self.read_ms: float | None = None
        self.processes = {"feeder 0": 7}
        self.halted = self.runs = False

    def _happens(self) -> None:
        """Let something happen, as while the loop waits."""
        world, dice = self.world, self.world.dice
        world.waits -= 1
        kind = dice.choice(["record"] * 5 + ["due", "scale", "lost", "partitions", "nothing"])
        if world.waits == 0:
            kind = "stop"
            world.machine.stopping.set()
        world.say(f"{world.now_s:g} s: {kind}")
        if kind == "record":
            world.work.feeds.feeds[0].end += 1
            self.is_cut = self.may >= 0
            self.read_ms = world.time() * 1e3 if self.is_cut else None
        elif kind == "due":
            world.work.is_due, world.work.next_us = True, world.work.next_us + 1
        elif kind == "scale":
            world.work.changing, self.slots = True, dice.randint(1, 3)
        elif kind == "lost":
            world.work.feeds.feeds[0].silent = dice.random() < 0.3
            raise PipeLost.of(PartLost("slot 1 ended."))
        elif kind == "partitions":
            world.partitions_come = True

    def wait(self, timeout_s: float) -> None:
        self.world.say(f"  waits {timeout_s:.3f} s")
        if timeout_s > 0:
            self.world.now_s += timeout_s
            self._happens()

    def let_cut(self, epoch: int, after_s: float) -> None:
        self.world.say(f"  feeders may cut epoch {epoch} after {after_s:.3f} s")
        self.may = epoch

    def may_cut(self, epoch: int) -> bool:
        return self.may == epoch

    def cut(self, epoch: int, *, still: bool, switch: Any) -> str:
        assert self.may != epoch or not (still or switch)
        self.is_cut, self.may = False, -1
        self.world.say(f"  cuts epoch {epoch}{', still' * still}, switches {switch}")
        self.world.now_s += 0.004
        return json.dumps([str(self.world.work.feeds.feeds[0].end)])

    def have_slots(self, counts: dict[str, int]) -> bool:
        return all(count <= 2 or self.world.dice.random() < 0.5 for count in counts.values())

    def go(self, assignments: Any, kept: Any) -> None:
        self.world.say(f"  goes on to {assignments}, keeps {kept}")

    def switched(self, kept: Any) -> None:
        self.world.say(f"  has switched, keeps {kept}")

    def stop(self, *, clean: bool) -> None:
        self.is_cut, self.may = False, -1
        self.world.say(f"  the pipe ends{' cleanly' * clean}")

    def halt(self) -> None:
        self.halted = True


class FakeWork:
    """The work of epochs, of which changes of slots and things that are due come."""

    delivers_together, allowed_failures = True, 3

    def __init__(self, world: World) -> None:
        self.world, self.pipe = world, world.pipe
        self.next_us, self.is_due, self.changing, self.delivered = 0, False, False, -1
        said = world.say
        self.intake = SimpleNamespace(
            settle_in_alone=lambda: said("  settles in"),
            enter=lambda: said("  enters the session"),
            stream="stream",
        )
        group = SimpleNamespace(
            setJobGroup=lambda run, about, interruptOnCancel: said(
                f"  jobs of a group{about!r} {interruptOnCancel}"
            )
        )
        self.spark = SimpleNamespace(sparkContext=group)
        self.changes = SimpleNamespace(withdraw=lambda: said("  withdraws"))
        self.feeds: Any = None
        self.before_commit: Callable[[Any], None]

    @property
    def wanted_slots(self) -> dict[str, int]:
        return {"op": self.pipe.slots}

    assignments = "the assignments in force"

    @property
    def must_hold_still(self) -> bool:
        return self.world.dice.random() < 0.3

    def start(self, offsets: str) -> None:
        self.world.say(f"  the pipe starts behind {offsets}")

    def rest_s(self) -> float:
        return self.world.dice.choice([0.0, 0.25, 9.0, 9.0, 9.0])

    def due(self, watermark_us: int, clock_ms: float) -> bool:
        assert clock_ms == 0
        return self.is_due and watermark_us == self.next_us

    def arrived(self) -> None:
        self.world.say("  asks for executors")

    def look(self, *, quiet: bool) -> None:
        self.world.say(f"  looks{' quietly' * quiet}")

    def record(self, took_ms: Callable[[], float]) -> None:
        assert took_ms() == 0.5

    def announce(self, step: int) -> dict[str, Any]:
        self.world.say(f"  announces behind {step}")
        if self.world.dice.random() < 0.2:
            return {}
        more = self.world.dice.choice([0, 0, 3])
        return {"op": SimpleNamespace(slots=more or self.pipe.slots)}

    def change(self, step: int, *, still: bool) -> None:
        self.changing = False
        self.world.say(f"  changes before {step}{' still' * still}")

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        self.world.say(f"  step {step} is tried again, {attempt}: {error}")

    def put_early(self, manifest: Any) -> None:
        self.world.say(f"  puts {manifest.step} out early")

    def deliver(self, manifests: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.world.say("  the work is closed")


class FakeMachine:
    """Commits epochs."""

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        self.checkpoint = SimpleNamespace(path=path)
        self.latest: Any = None
        self.stopping, self.idle = threading.Event(), threading.Event()
        self.idle.set()
        self.threads = "threads"
        self.steps = SimpleNamespace(
            note_delivered=lambda manifests: world.say(
                f"  delivered {[one.step for one in manifests]}"
            )
        )

    def run_commands(self) -> None:
        self.world.say("  runs commands")

    def note_failure(self, error: BaseException) -> BaseException:
        return error

    def epoch(
        self, batch: int, at_us: int, sources: list[str], clock: Any, *, read_ms: float
    ) -> Any:
        work, world = self.world.work, self.world
        assert list(clock.phases_ms) == ["cut"]
        step = 0 if self.latest is None else self.latest.step + 1
        manifest = SimpleNamespace(step=step, spark_batch=batch, engine={"sources": sources})
        work.before_commit(manifest)
        if world.dice.random() < 0.08:
            raise PipeLost.of(EngineError("a slot was lost meanwhile.", transient=True))
        world.say(f"  commits {step} as batch {batch} at {at_us} us, {sources}, read {read_ms:.0f}")
        work.is_due = False
        self.latest = manifest
        return manifest


class FakeDeliveries:
    """Says what is put out, and delivers it when it is committed."""

    failure: BaseException | None = None
    fails: BaseException | None = None
    """What a delivery fails with as soon as there is one."""

    def __init__(self, threads: Any, deliver: Any, note: Any, begin: Any, most: int) -> None:
        self.note, self.say = note, deliver.__self__.world.say
        assert threads == "threads"
        self.has_failed = False
        self.say(f"  {most} epochs may be open")
        begin()

    def took_ms(self) -> float:
        return 0.5

    def wait_for_room(self, stopping: threading.Event) -> None:
        assert stopping is not None

    def check(self) -> None:
        if self.has_failed:
            assert self.fails is not None
            raise self.fails

    def put_rows(self, manifest: Any) -> None:
        self.say(f"  gives the rows of {manifest.step}")
        self.has_failed = self.fails is not None

    def put_committed(self, manifest: Any) -> None:
        self.note([manifest])

    def close(self) -> None:
        self.say("  all is out")
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[World, Epochs]]:
    """Makes a loop over a made-up pipe."""

    def made(world: World, *, early: bool = False) -> tuple[World, Epochs]:
        for module in (epochs, pauses):
            monkeypatch.setattr(module, "time", world)
        monkeypatch.setattr(epochs, "Deliveries", FakeDeliveries)
        monkeypatch.setattr(
            epochs, "NewPartitions", lambda grown, start: SimpleNamespace(have_come=come)
        )

        def come() -> bool:
            found, world.partitions_come = world.partitions_come, False
            return found

        loop = Epochs(
            world.machine, world.work, interval_s=0.1, name="q", first_batch=4, early=early
        )

        def paused(seconds: float) -> bool:
            world.now_s += seconds
            world.say(f"  pauses {seconds:g} s")
            return False

        monkeypatch.setattr(world.machine.stopping, "wait", paused)
        return world, loop

    return made


@pytest.mark.parametrize("early", [False, True])
def test_a_drawn_course_of_epochs(
    over: Callable[..., Any], tmp_path: Path, recorded: Recorded, early: bool
) -> None:
    lines = []
    for seed in range(3):
        path = tmp_path / str(seed)
        path.mkdir()
        world, loop = over(World(path, seed), early=early)
        if seed == 1:
            world.work.delivers_together = False
        assert (MOST_TOGETHER, MOST_APART) == (16, 2)
        assert (loop.id, loop.name, loop.isActive) == ("the-id", "q", True)
        loop._run()
        assert not loop.isActive
        lines += [f"course {seed}", *world.lines]
        lines.append(f"failed: {loop.exception()}, {loop.status}, batch {loop._batch}")
        lines.append(f"first offsets {loop._committed()}, newest {loop.newest()}")
    recorded(f"epochs{'_early' * early}", lines)


@pytest.mark.parametrize("delivery_fails", [False, True])
def test_what_ends_a_loop(
    over: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    delivery_fails: bool,
) -> None:
    """An error of its own counts before one of deliveries; where to begin is asked once."""
    world, loop = over(World(tmp_path, 0))
    mine, others = EngineError("bad rows", transient=False), EngineError("the sink is gone")
    if delivery_fails:
        monkeypatch.setattr(FakeDeliveries, "failure", others)
    monkeypatch.setattr(world.machine, "epoch", lambda *a, **b: (_ for _ in ()).throw(mine))
    loop.start()
    with pytest.raises(EngineError) as raised:
        loop.awaitTermination()
    assert raised.value is mine is loop.exception()
    assert world.lines[-3:] == ["  the pipe ends", "  the work is closed", "  all is out"]

    (tmp_path / "b").mkdir()
    world, loop = over(World(tmp_path / "b", 0))
    world.machine.stopping.set()
    loop._run()
    assert loop.exception() is (others if delivery_fails else None)
    assert [line for line in world.lines if "pipe" in line] == ["  the pipe ends cleanly"]
    assert loop._committed() == loop._committed() == '["5"]'
    assert world.lines.count("  asks where to begin") == 1
    assert (tmp_path / "b" / "sources" / "0" / "0").exists()


def test_a_delivery_that_fails_ends_a_query_whose_source_is_quiet(
    over: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, loop = over(World(tmp_path, 0))
    lost = EngineError("the sink is gone")
    monkeypatch.setattr(FakeDeliveries, "fails", lost)
    world.waits = 10**6
    settled: list[bool] = []
    happens, look = world.pipe._happens, world.work.look

    def first_epoch_alone() -> None:
        if world.machine.latest is None:
            happens()

    def looks(*, quiet: bool) -> None:
        look(quiet=quiet)
        if world.machine.latest is not None:
            settled.append(loop.settled(loop.newest()))
            assert len(settled) < 5

    monkeypatch.setattr(world.pipe, "_happens", first_epoch_alone)
    monkeypatch.setattr(world.work, "look", looks)
    monkeypatch.setattr(loop, "_follows", lambda: False)
    loop._run()
    assert loop.exception() is lost
    assert not any(settled)
    assert [line for line in world.lines if "commits" in line][1:] == []


def test_where_only_slots_are_lost_the_pipe_is_not_ended(
    over: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, loop = over(World(tmp_path, 0))
    losses = iter(
        [SlotsLost.of(PartLost("slot 1 ended.")), PipeLost.of(PartLost("feeder 0 ended."))]
    )
    epoch = world.machine.epoch

    def fails(*args: Any, **named: Any) -> Any:
        lost = next(losses, None)
        if lost is not None:
            raise lost
        world.machine.stopping.set()
        return epoch(*args, **named)

    monkeypatch.setattr(world.machine, "epoch", fails)
    loop._run()
    said = [
        line for line in world.lines if "pipe" in line or "tried again" in line or "starts" in line
    ]
    assert said == [
        '  the pipe starts behind ["5"]',
        "  step 0 is tried again, 1: slot 1 ended.",
        '  the pipe starts behind ["5"]',
        "  the pipe ends",
        "  step 0 is tried again, 2: feeder 0 ended.",
        '  the pipe starts behind ["5"]',
        "  the pipe ends cleanly",
    ]


def test_what_others_ask_a_loop(
    over: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world, loop = over(World(tmp_path, 0))
    machine, work = world.machine, world.work
    monkeypatch.setattr(epochs, "physical", lambda frame: f"plan of the {frame}")
    loop.explain()
    assert capsys.readouterr().out == "plan of the stream\n"
    assert loop.processes == {"feeder 0": 7}
    assert loop.feeds is work.feeds
    assert not loop.settled('["5"]')  # nothing is committed yet
    machine.latest = SimpleNamespace(step=0, engine={"sources": ["5"]})
    loop._had_records = False
    monkeypatch.setattr(work, "rest_s", lambda: 1.0)
    assert loop.settled('["5"]')
    assert not loop.settled('["6"]')
    work.changing = True
    monkeypatch.setattr(world.pipe, "have_slots", None)  # the pipe may be lost while others ask
    assert loop.settled('["5"]')  # no result waits for a change of slots
    work.changing, work.is_due = False, True
    assert loop.settled('["5"]')  # what stays due waits for the watermark
    work.next_us = 1
    assert not loop.settled('["5"]')
    work.is_due = False
    monkeypatch.setattr(work, "rest_s", lambda: 0.0)
    assert not loop.settled('["5"]')
    monkeypatch.setattr(work, "rest_s", lambda: 1.0)
    status = {"isDataAvailable": False, "isTriggerActive": True}
    assert loop.status == {"message": "Waiting for data to arrive", **status}
    machine.idle.clear()
    world.pipe.is_cut = True
    assert not loop.settled('["5"]')
    status["isDataAvailable"] = True
    assert loop.status == {"message": "Processing new data", **status}
    loop._cuts_no_more.set()
    loop._over.set()
    loop.stop()
    assert world.pipe.halted
    assert loop.status == {"message": "Stopped", **status, "isTriggerActive": False}
