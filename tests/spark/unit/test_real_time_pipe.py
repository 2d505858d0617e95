"""A pipe with real slots and no JVM: epochs are cut where all of them say, and a loss is told."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from share_slots import GROUPS, NAME, Slots
from test_shares import MERGED

from headgate.core.assignment import Assignment
from headgate.operators.spec import AggregateSpec, Kind, Leaf, OutputMode
from headgate.operators.step import GROUP, RECORDS
from headgate.spark.job.columns import MARKER_US
from headgate.spark.realtime import feeder as feeders
from headgate.spark.realtime import pipe as pipes
from headgate.spark.realtime import router as routers
from headgate.spark.realtime import run_slots, words
from headgate.spark.realtime.channels import hang_up
from headgate.spark.realtime.feed import BranchTasks
from headgate.spark.realtime.feeder import Feeder
from headgate.spark.realtime.hosts import FORK_SERVER, OneHost, SlotHosts
from headgate.spark.realtime.pipe import Pipe
from headgate.spark.realtime.pipe_run import JOINED
from headgate.spark.realtime.router import Router
from headgate.spark.realtime.run_slots import PipeLost, SlotsLost
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import next_manifest
from headgate.spark.worker.slot import SlotTask

pytestmark = pytest.mark.slow  # processes of their own

SPEC = AggregateSpec((Leaf(Kind.BYTES),), None, MERGED, OutputMode.UPDATE)
SCHEMA = pa.schema([("n", pa.int64())])


@dataclass
class Numbers:
    """A source of numbers: each reader has its own, from 0 on, as far as `until` allows."""

    readers: int
    until: list[int] = field(default_factory=list)
    schema: pa.Schema = SCHEMA
    copies: int = 0

    def reader(self, start: Any, number: int, count: int) -> Any:
        assert count == self.readers
        return _Reader(self, number, start[number])

    def grown(self, offsets: str) -> str:
        return offsets

    def merged(self, parts: Any) -> str:
        return json.dumps([[json.loads(part) for part in parts]])


class _Reader:
    def __init__(self, feed: Numbers, number: int, at: int) -> None:
        self.feed, self.number, self.at = feed, number, at

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        stop = min(self.feed.until[self.number], self.at + 7)
        if stop == self.at:
            time.sleep(timeout_s)
            return None
        made = pa.RecordBatch.from_arrays([pa.array(range(self.at, stop))], schema=SCHEMA)
        self.at = stop
        return made

    def offsets(self) -> str:
        return json.dumps(self.at)

    def close(self) -> None:
        """Nothing to give back."""


class Threads:
    """Runs feeders and routers as threads, and between them what a query's plan would do."""

    def __init__(self, feed: Numbers) -> None:
        self.feed = feed
        self.failed: list[BaseException] = []
        self.was_cancelled = False

    def run(self, meeting: Any, group: str) -> None:
        del group
        threads = [
            threading.Thread(target=self._one, args=(meeting, n)) for n in range(self.feed.readers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]

    def _one(self, meeting: Any, number: int) -> None:
        context.number = number
        share = BranchTasks(0, 0, self.feed.readers, 0)
        feeder = Feeder(meeting, self.feed, share, SCHEMA, [None] * 3)
        try:
            for _ in Router(meeting, NAME, False)(map(self._plan, feeder(iter(())))):
                pass
        except BaseException as error:
            self.failed.append(error)

    def _plan(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        n, to, token = batch.columns
        numbers = n.to_pylist()
        columns = {
            GROUP: pa.array([None if x is None else x % 10 % GROUPS for x in numbers], pa.int32()),
            "k0": pa.array([None if x is None else str(x % 10) for x in numbers]),
            "v0": pa.array([1] * len(n), pa.int64()),
            "v1": n,
            "v2": n,
            RECORDS: pa.array([1] * len(n), pa.int64()),
            f"{MARKER_US}0": n,
            "m_to": to,
            "m_token": token,
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def cancel(self, group: str) -> None:
        """Take note; threads end by themselves when their driver is gone."""
        self.was_cancelled = True

    def failure(self, group: str) -> BaseException | None:
        """Nobody tries a thread again."""


cloudpickle.register_pickle_by_value(sys.modules[__name__])
context = threading.local()


class _Context:
    @staticmethod
    def get() -> Any:
        return _Context()

    def partitionId(self) -> int:
        return int(context.number)


@pytest.fixture(autouse=True)
def in_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(feeders, "TaskContext", _Context)
    monkeypatch.setattr(routers, "TaskContext", _Context)
    yield
    while NamedHosts.made:
        NamedHosts.made.pop().close()


class NamedHosts(OneHost):
    """One host that bears several names."""

    made: ClassVar[list[NamedHosts]] = []

    def __init__(self) -> None:
        self.made.append(self)
        super().__init__([SPEC])
        self.names = [""] * GROUPS

    def places(self, operator: str, slots: int) -> list[str]:
        return self.names[:slots]


class Driver:
    """Does epochs and commits them, as the loop of a query does."""

    def __init__(
        self,
        path: Path,
        readers: int,
        slots: int,
        task: Callable[..., SlotTask] = SlotTask,
        hosts: SlotHosts | None = None,
    ) -> None:
        self.slots = Slots(SPEC, path, slots=slots)
        self.feed = Numbers(readers, [0] * readers)
        tasks = {NAME: task(NAME, SPEC, None)}
        self.hosts = NamedHosts()
        self.job, routers = Threads(self.feed), {NAME: readers}
        self.pipe = Pipe(self.job, self.feed, tasks, routers, "test", hosts or self.hosts)
        self.offsets = json.dumps([[0] * readers])
        self.out: Counter[str] = Counter()

    def start(self) -> None:
        self.pipe.start(self.offsets, {NAME: self.slots.state.assignment})

    def epoch(self, *, still: bool = False, switch: Assignment | None = None) -> None:
        held = self.slots
        step = 0 if held.latest is None else held.latest.step + 1
        then = {} if switch is None else {NAME: switch}
        offsets = self.pipe.cut(step, still=still, switch=then)
        reports = self.pipe.serve(NAME, held.facts(step, 0, None))
        begun = Begun(step, step, 0, [offsets], 0.0, 0.0, 0, drain=True, latest=held.latest)
        made = next_manifest(begun, held.uuid, 0, {NAME: held.state}, reports)
        held.latest = held.checkpoint.commit(made)
        self.offsets = offsets
        if switch is not None:
            held.state.assign(switch)
            self.pipe.switched({NAME: switch.slots})

    def run(self) -> None:
        self.start()
        self.epochs_without_end()

    def epochs_without_end(self) -> None:
        while True:
            self.epoch()

    def totals(self) -> dict[str, tuple[int, int]]:
        """Count and sum of each key, as the committed state has them."""
        found = {}
        for payload in self._outputs():
            for key, count, total, _ in payload:
                found[key] = (count, total)
        return found

    def _outputs(self) -> Any:
        for step in self.slots.checkpoint.steps():
            manifest = self.slots.checkpoint.read(step)
            for entry in manifest.engine["outputs"]:
                data = bytes(manifest.payloads[entry["inline"]])
                with pa.ipc.open_stream(data) as stream:
                    yield [
                        tuple(v.decode() if isinstance(v, bytes) else v for v in row.values())
                        for row in stream.read_all().to_pylist()
                    ]


def expected(numbers: list[int]) -> dict[str, tuple[int, int]]:
    every = [n for until in numbers for n in range(until)]
    return {
        str(key): (sum(n % 10 == key for n in every), sum(n for n in every if n % 10 == key))
        for key in range(10)
        if any(n % 10 == key for n in every)
    }


@contextlib.contextmanager
def running(driver: Driver) -> Any:
    driver.start()
    try:
        yield driver
    finally:
        driver.pipe.stop(clean=True)
        driver.hosts.close()


def test_epochs_hold_what_came_before_their_cut(tmp_path: Path) -> None:
    with running(Driver(tmp_path, readers=2, slots=2)) as driver:
        driver.epoch()
        assert json.loads(driver.offsets)[0] == [0, 0]
        for until in ([30, 5], [31, 400], [900, 400]):
            driver.feed.until[:] = until
            driver.pipe.let_cut(driver.slots.latest.step + 1, 0.0)
            driver.pipe.wait(60.0)
            assert driver.pipe.is_cut
            while json.loads(driver.offsets)[0] != until:
                driver.epoch()
            assert driver.totals() == expected(until)
        assert driver.pipe.newest_us == {0: 899}
        pids = list(driver.pipe.processes.values())
    assert not driver.job.was_cancelled, "feeders end by themselves if they are asked to"
    assert len(pids) == 5
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids if pid != os.getpid())


def test_a_feeder_cuts_by_itself_once_it_may_and_has_a_record(tmp_path: Path) -> None:
    """The epoch is cut before anybody asks for it; the feeder without a record cuts with the other."""
    with running(Driver(tmp_path, readers=2, slots=1)) as driver:
        driver.epoch()
        driver.pipe.let_cut(1, 0.0)
        driver.feed.until[:] = [30, 0]
        driver.pipe.wait(60.0)
        driver.feed.until[:] = [500, 0]
        driver.epoch()
        first, second = json.loads(driver.offsets)[0]
        assert 0 < first <= 30, "those that were there when it was cut"
        assert second == 0
        driver.feed.until[:] = [500, 500]
        while json.loads(driver.offsets)[0] != [500, 500]:
            driver.epoch()
        assert driver.totals() == expected([500, 500])


def test_a_wait_goes_on_behind_any_word_but_that_the_query_is_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, now_s, said = Driver(tmp_path, readers=1, slots=1), [0.0], deque[Any]()
    monkeypatch.setattr(pipes, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    run = SimpleNamespace(cuts={}, said=SimpleNamespace(put=said.append))
    monkeypatch.setattr(driver.pipe, "_run", run)

    def next_word(left_s: float) -> Any:
        assert left_s == 60.0 - now_s[0]
        now_s[0] += 10.0
        return said.popleft()

    monkeypatch.setattr(driver.pipe, "_next", next_word)
    said.extend([None, (words.READY,)])
    driver.pipe.halt()
    said.append(None)
    driver.pipe.wait(60.0)
    assert list(said) == [None], "it has heard the halt"
    said.extend([None] * 6)
    now_s[0] = 0.0
    driver.pipe.wait(60.0)
    assert list(said) == [None], "its time is over"
    run.cuts[0] = "offsets", None
    driver.pipe.wait(60.0)
    assert list(said) == [None], "an epoch is cut"


class Script:
    """A driver of which a feeder hears some words; None where it says nothing for once."""

    def __init__(self, said: list[tuple[Any, ...] | None]) -> None:
        self.said, self.heard = deque(said), list[tuple[Any, ...]]()

    def poll(self, timeout_s: float | None) -> bool:
        if self.said[0] is None:
            self.said.popleft()
            return False
        return True

    def recv(self) -> Any:
        return self.said.popleft()

    def send(self, message: tuple[Any, ...]) -> None:
        self.heard.append(message)


class OneByOne:
    """A reader that has a record whenever it is asked."""

    def __init__(self) -> None:
        self.read = 0

    def poll(self, timeout_s: float) -> pa.RecordBatch:
        self.read += 1
        return pa.RecordBatch.from_arrays([pa.array([self.read])], schema=SCHEMA)

    def offsets(self) -> str:
        return str(self.read)

    def close(self) -> None:
        """Nothing to give back."""


def test_records_of_several_polls_go_with_the_marker_as_one_batch() -> None:
    end = (words.CUT, 5, None, False, {})
    driver, reader = Script([(words.GO, {}), *[None] * 6, end, (words.END,)]), OneByOne()
    feeder = Feeder(None, None, None, SCHEMA, [None] * 3)
    batches = [batch.num_rows for batch in feeder._read(driver, reader)]
    assert batches == [4, 1, reader.read + 4, 1]
    (said,) = driver.heard
    assert said[:3] == (words.CUT, 5, str(reader.read))
    assert reader.read >= 6


@pytest.mark.thorough
def test_slots_change_behind_an_epoch_that_holds_still(tmp_path: Path) -> None:
    with running(Driver(tmp_path, readers=2, slots=1)) as driver:
        state = driver.slots.state
        for count, until in ((3, 100), (2, 250), (4, 300)):
            driver.feed.until[:] = [until, until]
            driver.epoch(still=True)
            driver.slots.split({}, [g % count for g in range(GROUPS)], slots=count)
            driver.pipe.go({NAME: state.assignment})
            while json.loads(driver.offsets)[0] != [until, until]:
                driver.epoch()
            assert driver.totals() == expected([until, until])
            assert len(driver.pipe.processes) == 3 + count


def test_slots_change_behind_a_marker_while_records_flow(tmp_path: Path) -> None:
    with running(Driver(tmp_path, readers=2, slots=1)) as driver:
        driver.feed.until[:] = [20_000, 20_000]  # more than is read before the last change
        for count in (3, 2, 3):
            driver.pipe._await(lambda n=count: driver.pipe.have_slots({NAME: n}), 60)
            held = driver.slots.state.assignment
            slot_of = tuple((g + held.epoch) % count for g in range(GROUPS))
            driver.epoch(switch=Assignment(slot_of, count, held.epoch + 1))
            driver.epoch()
        while json.loads(driver.offsets)[0] != [20_000, 20_000]:
            driver.epoch()
        assert driver.totals() == expected([20_000, 20_000])


def test_a_slot_stays_on_its_host_when_slots_are_numbered_anew(tmp_path: Path) -> None:
    driver = Driver(tmp_path, readers=1, slots=3)
    driver.hosts.names = ["a", "b", "c"]
    with running(driver):
        driver.feed.until[:] = [100]
        driver.epoch(still=True)
        before = driver.pipe.processes
        driver.hosts.names = ["a", "c"]  # slot 1 is given up, and slot 2 becomes slot 1
        driver.slots.split({}, [g % 2 for g in range(GROUPS)], slots=2)
        driver.pipe.go({NAME: driver.slots.state.assignment})
        after = driver.pipe.processes
        assert after == {name: pid for name, pid in before.items() if name != "slot 1"}
        while json.loads(driver.offsets)[0] != [100]:
            driver.epoch()
        assert driver.totals() == expected([100])


def test_a_slot_that_begins_is_not_taken_for_one_that_has_just_ended(tmp_path: Path) -> None:
    """As with a request for more slots just behind one for fewer."""
    driver = Driver(tmp_path, readers=1, slots=3)
    with running(driver):
        driver.feed.until[:] = [100]
        for slots in (2, 3):
            driver.epoch(still=True)
            driver.slots.split({}, [g % slots for g in range(GROUPS)], slots=slots)
            driver.pipe.go({NAME: driver.slots.state.assignment})
            driver.pipe.have_slots({NAME: 3})  # before anybody hears that the third one has ended
        while json.loads(driver.offsets)[0] != [100]:
            driver.epoch()
        assert driver.totals() == expected([100])


def test_a_slot_that_ends_before_it_comes_is_a_loss_though_records_flow(tmp_path: Path) -> None:
    """Else no change would ever find all of its slots."""
    driver = Driver(tmp_path, readers=1, slots=1)
    with running(driver):
        assert not driver.pipe.have_slots({NAME: 2})
        driver.pipe._running.slots.every[-1].process.kill()
        with pytest.raises(PipeLost, match="slot 1 of test ended unexpectedly"):
            driver.pipe.have_slots({NAME: 2})


LOST = {
    signal.SIGKILL: r"slot 1 of test ended unexpectedly",
    signal.SIGSTOP: r"slot 1 of test is stopped \(process \d+\), and is ended",
}


@pytest.mark.parametrize("how", LOST)
def test_a_slot_that_is_lost_is_told_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setattr(pipes, "_LOOK_S", 0.05)
    driver = Driver(tmp_path, readers=1, slots=2)
    driver.feed.until[:] = [200]
    driver.start()
    driver.epoch()
    driver.epoch()
    os.kill(driver.pipe.processes["slot 1"], how)
    with pytest.raises(PipeLost, match=LOST[how]):
        driver.epochs_without_end()
    driver.pipe.stop(clean=False)
    driver.feed.until[:] = [300]
    with running(driver):
        while json.loads(driver.offsets)[0] != [300]:
            driver.epoch()
    assert driver.totals() == expected([300])


def _kill_last(run: Any) -> None:
    for slot in run.slots.every[-1:]:
        slot.process.kill()


@pytest.mark.parametrize("seed", range(3))
def test_feeders_and_routers_go_on_with_other_slots(tmp_path: Path, seed: int) -> None:
    """Slots are killed at any moment, also while others begin."""
    driver, rng = Driver(tmp_path, readers=2, slots=3), random.Random(seed)
    with running(driver):
        run = driver.pipe._running
        feeders = dict(run.feeders)
        for until in range(500, 4000, 500):
            driver.feed.until[:] = [until, until]
            slot = rng.choice(run.slots.every).process
            threading.Timer(rng.random() / 50, slot.kill).start()
            with pytest.raises(SlotsLost, match=r"slot \d+ of test ended unexpectedly"):
                driver.epochs_without_end()
            if rng.random() < 0.3:
                threading.Timer(rng.random() / 5, _kill_last, [run]).start()
            while True:
                with contextlib.suppress(SlotsLost):
                    driver.start()
                    break
        while json.loads(driver.offsets)[0] != [until, until]:
            with contextlib.suppress(SlotsLost):
                driver.epoch()
                continue
            driver.start()
        assert driver.pipe._running is run
        assert run.feeders == feeders
        assert driver.totals() == expected([until, until])


def test_only_the_newest_word_to_begin_again_counts_as_answered(tmp_path: Path) -> None:
    """Slots are lost again before a feeder behind a slow reader has answered the first word."""
    driver = Driver(tmp_path, readers=1, slots=2)
    with running(driver):
        driver.epoch()
        run = driver.pipe._running
        run.rewound, run.rewinding = 2, {0}
        cut = (words.CUT, 7, json.dumps([[9]]), None, 0)
        for said in ((words.REWIND, 1, 0), cut):
            run.said.put(said)
            driver.pipe._next(1.0)
        assert (run.rewinding, run.cuts) == ({0}, {})
        for said in ((words.REWIND, 2, 0), cut):
            run.said.put(said)
            driver.pipe._next(1.0)
        assert (run.rewinding, run.cuts) == (set(), {0: (json.dumps([[9]]), None)})


def test_a_slot_that_a_router_cannot_reach_is_not_said_to_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_slots, "_SAYS_S", 0.1)
    driver = Driver(tmp_path, readers=1, slots=2)
    with running(driver):
        run = driver.pipe._running
        number = run.slots.serving[NAME][1]
        slot = run.slots.get(NAME, number)
        assert slot is not None
        run.said.put((JOINED, words.LOST, 0, None, slot.address))
        with pytest.raises(SlotsLost, match=r"slot 1 of test is lost \(a router cannot reach it\)"):
            driver.epochs_without_end()
        run.said.put((JOINED, words.LOST, 0, None, "somebody that was given up"))
        driver.pipe._next(1.0)


def test_slots_begin_again_though_what_forks_them_was_killed(tmp_path: Path) -> None:
    driver = Driver(tmp_path, readers=1, slots=2)
    with running(driver):
        driver.epoch()
        driver.feed.until[:] = [200]
        os.kill(driver.pipe.processes[FORK_SERVER], signal.SIGKILL)
        with pytest.raises(SlotsLost):
            driver.epochs_without_end()
        while json.loads(driver.offsets)[0] != [200]:
            with contextlib.suppress(SlotsLost):
                driver.start()
                while json.loads(driver.offsets)[0] != [200]:
                    driver.epoch()
        assert driver.totals() == expected([200])


class Forks(SlotTask):
    """A slot whose user's function leaves a process behind, which has the slot's channels, too."""

    def answer(self, *asked: Any) -> Any:
        if os.fork() == 0:
            signal.alarm(20)
            signal.pause()
        return super().answer(*asked)


def test_a_slot_that_has_ended_is_lost_though_its_channel_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "_LOOK_S", 0.05)
    monkeypatch.setattr(pipes, "_ANSWERS_S", 5.0)
    driver = Driver(tmp_path, readers=1, slots=2, task=Forks)
    driver.start()
    driver.epoch()
    os.kill(driver.pipe.processes["slot 1"], signal.SIGKILL)
    with pytest.raises(PipeLost, match=LOST[signal.SIGKILL]):
        driver.epochs_without_end()
    driver.pipe.stop(clean=False)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            TimeoutError(),
            "slot 1 of test is lost (its host does not answer).",
        ),
        (EOFError(), "slot 1 of test ended unexpectedly."),
        (ConnectionResetError(), "slot 1 of test ended unexpectedly."),
    ],
)
def test_a_peer_whose_host_is_away_is_told_from_one_that_has_ended(
    tmp_path: Path, error: Exception, said: str
) -> None:
    class Gone:
        def recv(self) -> Any:
            raise error

    driver = Driver(tmp_path, readers=1, slots=2)
    with running(driver):
        driver.pipe._running.listen(words.SLOT, (NAME, 1), Gone())  # type: ignore[arg-type]
        with pytest.raises(PipeLost, match=re.escape(said)):
            driver.epochs_without_end()


def test_sockets_have_room_for_their_names_whatever_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    hosts = OneHost([])
    meeting, door = hosts.begin(lambda _: None)
    with door, meeting.door(f"{'o' * 64}-slot-12345", driver=None):  # type: ignore[arg-type]
        assert os.stat(meeting.directory).st_mode & 0o777 == 0o700
    hosts.end(meeting)
    hosts.close()
    assert not os.path.exists(meeting.directory)
    assert list(deep.iterdir()) == []


def test_a_feeder_that_is_lost_while_the_pipe_starts_is_a_loss_of_the_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, takes = Driver(tmp_path, readers=1, slots=1), Pipe._take_in

    def take_in(pipe: Pipe, run: Any, kind: str, number: Any, peer: Any, said: Any) -> None:
        takes(pipe, run, kind, number, peer, said)
        if kind == words.FEEDER:
            with socket.socket(fileno=os.dup(peer.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)

    monkeypatch.setattr(Pipe, "_take_in", take_in)
    with pytest.raises(PipeLost):
        driver.start()
    driver.pipe.stop(clean=False)


class TriesAgain(Threads):
    """Goes on when a part has failed, as Spark's job on a cluster, which tries that again."""

    def __init__(self, feed: Numbers) -> None:
        super().__init__(feed)
        self.cancelled = threading.Event()

    def run(self, meeting: Any, group: str) -> None:
        with contextlib.suppress(BaseException):
            super().run(meeting, group)
        assert self.cancelled.wait(60)

    def cancel(self, group: str) -> None:
        self.cancelled.set()

    def failure(self, group: str) -> BaseException | None:
        return ValueError(f"seven is too much for {group[:9]}")


def test_a_pipe_says_what_a_task_failed_with_though_spark_tries_it_again(tmp_path: Path) -> None:
    driver = Driver(tmp_path, readers=1, slots=1)
    driver.pipe._job = TriesAgain(driver.feed)
    driver.start()
    hang_up(driver.pipe._running.feeders[0])
    with pytest.raises(PipeLost, match=r"^seven is too much for headgate-$"):
        driver.epochs_without_end()
    driver.pipe.stop(clean=False)


def test_a_second_try_of_a_feeders_task_is_the_loss_of_the_first(tmp_path: Path) -> None:
    """The first one may never say that it is gone: the JVM that ran it still waits for it."""
    driver = Driver(tmp_path, readers=1, slots=1)
    driver.pipe._job = TriesAgain(driver.feed)
    driver.start()
    meeting = driver.pipe._running.meeting
    with meeting.connect(meeting.driver) as second:
        second.send((words.FEEDER, 0, ("here", 1)))
        with pytest.raises(PipeLost, match=r"^seven is too much for headgate-$"):
            driver.epochs_without_end()
        driver.pipe.stop(clean=False)


def test_a_peer_that_never_says_its_name_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent: list[Any] = []

    class Haunted(NamedHosts):
        def begin(self, lose_host: Any) -> Any:
            meeting, door = super().begin(lose_host)
            comes = threading.Thread(target=lambda: silent.append(meeting.connect(meeting.driver)))
            comes.start()
            return meeting, door

    monkeypatch.setattr(pipes, "_STARTS_S", 10.0)
    driver = Driver(tmp_path, readers=1, slots=1, hosts=Haunted())
    driver.feed.until[:] = [10]
    with running(driver):
        driver.epoch()
    silent[0].close()


def test_a_pipe_ends_while_a_slot_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody lets that slot in any more; it is not waited for."""
    for module in (pipes, run_slots):
        monkeypatch.setattr(module, "ENDS_S", 600.0)
    driver = Driver(tmp_path, readers=1, slots=1)
    driver.start()
    driver.epoch()
    assert not driver.pipe.have_slots({NAME: 3})
    begins = driver.pipe._running.slots.every
    ending = threading.Thread(target=driver.pipe.stop, kwargs={"clean": True}, daemon=True)
    ending.start()
    ending.join(30.0)
    for slot in begins:
        slot.process.kill()
    assert not ending.is_alive()
    assert begins[0].process.poll() == 0


class Refusal(Exception):
    """An error that pickle takes and does not give back."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"no {what} {where}")


class SystemRefusal(OSError):
    """The same of a kind that an operating system has."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"no {what} {where}")


class RefusedBySystem(SlotTask):
    """A slot whose work ends with such an error."""

    def answer(self, *_: Any) -> Any:
        raise SystemRefusal("room", "here")


class WithoutRoom(SlotTask):
    """A slot whose work the system refuses: that is no error of a connection."""

    def answer(self, *_: Any) -> Any:
        msg = "no room here"
        raise OSError(msg)


class Refused(SlotTask):
    """A slot whose work ends with an error of somebody's own."""

    def answer(self, *_: Any) -> Any:
        raise Refusal("room", "here")


class Unreadable(SlotTask):
    """A slot that cannot begin."""

    def __setstate__(self, state: Any) -> None:
        raise Refusal("room", "here")


@pytest.mark.parametrize("task", [WithoutRoom, Refused, RefusedBySystem, Unreadable])
def test_a_slot_says_why_it_cannot_go_on(tmp_path: Path, task: type[SlotTask]) -> None:
    driver = Driver(tmp_path, readers=1, slots=1, task=task)
    driver.feed.until[:] = [20]
    try:
        with pytest.raises(PipeLost, match="no room here"):
            driver.run()
    finally:
        driver.pipe.stop(clean=False)


class Large:
    """A reader that has as many records of a megabyte as anybody takes."""

    def __init__(self) -> None:
        self.read = 0

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        self.read += 1
        assert self.read < 1000, "an epoch must end before it has a gigabyte"
        return pa.RecordBatch.from_arrays([pa.array([bytes(1 << 20)])], names=["n"])

    def offsets(self) -> str:
        return str(self.read)


def test_a_feeder_waits_for_the_next_cut_before_large_records_outgrow_memory() -> None:
    class Patient(Script):
        def poll(self, timeout_s: float | None) -> bool:
            return timeout_s is None or len(self.said) > 2

    end = (words.CUT, 5, None, False, {})
    driver, reader = Patient([(words.GO, {}), end, (words.END,)]), Large()
    feeder = Feeder(None, None, None, pa.schema([("n", pa.binary())]), [None] * 3)
    rows = sum(batch.num_rows for batch in feeder._read(driver, reader))
    ((_, _, cut, _),) = driver.heard
    assert rows > reader.read > int(cut) > 100


def test_a_router_sends_large_records_on_before_they_outgrow_arrow() -> None:
    sent: list[Any] = []

    class Slot:
        send = staticmethod(sent.append)

    routing = routers._Routing(Router(None, NAME, False), 0, {"a": Slot()})  # type: ignore[arg-type, dict-item]
    routing.slot_of = np.zeros(GROUPS, np.int32)
    names = [GROUP, "v", "m_to", "m_token"]
    arrays = [[0], [bytes(1 << 20)], pa.nulls(1, pa.int32()), pa.nulls(1, pa.string())]
    batch = pa.RecordBatch.from_arrays([pa.array(one) for one in arrays], names=names)
    for _ in range(100):
        routing.route(batch)
    assert len(sent) >= 5
    assert {word for word, _ in sent} == {words.RECORDS}
