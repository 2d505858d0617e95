"""A fleet of made-up queries: all that it does in a drawn course, without a session, as recorded."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.control.fleet.view import Action, FleetDecision, FleetOperator, FleetView
from headgate.core.errors import ConfigError, EngineError, EngineGone
from headgate.core.slo import parse_slo
from headgate.spark.fleet import admission, fleet_journal, member
from headgate.spark.fleet import fleet as fleets
from headgate.spark.fleet.fleet import Fleet
from headgate.spark.fleet.hosts import HostTime
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import OperatorState
from headgate.spark.settings.query_settings import QuerySettings, SlotRange
from headgate.spark.steer.operator_slots import OperatorSlots

Recorded = Callable[[str, Iterable[str]], None]
ROUND_S = 4.0
SLOS = ("mean < 1 s over 10 s", "juice >= 0.5 over 1 min")
LATE = "Python worker failed to connect back."
FAILURES = (
    ValueError("no more\nValueError: bad row\n"),
    EngineError(""),
    RuntimeError("[STREAM_FAILED] Query x terminated with exception: the disk is full"),
)


def shown(event: Any) -> Any:
    """Return an event without what is empty or says when it was written."""
    if isinstance(event, dict) and "job" in event and "utility" in event:
        return " ".join(
            str(value) for value in event.values()
        )  # a line per round has many of these
    if isinstance(event, dict):
        kept = {k: shown(v) for k, v in event.items() if k not in ("version", "at_ms")}
        return {k: v for k, v in kept.items() if v or v is False}
    return [shown(one) for one in event] if isinstance(event, list | tuple) else event


class World:
    """A clock that only waiting moves, the queries of a fleet, and what is written down."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.now_s = dice, 1000.0
        self.queries: dict[str, FakeQuery] = {}
        self.said: list[str] = []
        self.pool: str | None = None
        self.events: list[Callable[[], None]] = []
        self.fails_to_start = self.comes_late = 0
        self.is_slow = False
        self.may_end = threading.Event()

    def monotonic(self) -> float:
        return self.now_s

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.leavers_end()
        for query in self.queries.values():
            query.batches += 1

    def say(self, text: str) -> None:
        self.said.append(text)

    def leavers_end(self) -> None:
        """Let the threads that stop queries do so, and wait for them."""
        self.may_end.set()
        for thread in threading.enumerate():
            if thread.name.startswith("headgate-leave"):
                thread.join()
        self.may_end.clear()

    # what stands in for Spark's context

    def getConf(self) -> Any:
        return {"spark.scheduler.mode": "FAIR"}

    defaultParallelism, master = 3, "local[3]"

    def getLocalProperty(self, name: str) -> str | None:
        return self.pool

    def setLocalProperty(self, name: str, value: str | None) -> None:
        self.pool = value

    def start(self, df: Any, settings: Any, observe: Any = None, watch_pools: Any = None) -> Any:
        name, policy = settings.name, settings.policy and settings.policy.name
        latencies = [str(slo) for slo in settings.slos]
        kind = "operators" if watch_pools is None else "pools"
        probe = (observe or watch_pools).__self__
        self.say(
            f"  {name} starts in pool {self.pool}: {policy}, {latencies}, {kind}, {probe.facts}"
        )
        if self.fails_to_start:
            self.fails_to_start -= 1
            raise EngineError(f"{name} cannot start")
        self.queries[name] = FakeQuery(self, name, settings.slots.start)
        if self.comes_late:
            self.comes_late -= 1
            self.queries[name].leave(RuntimeError(LATE))
        return self.queries[name]


class FakeQuery:
    """A query with one operator or two, whose batches come when the course says so."""

    def __init__(self, world: World, name: str, asked: int | str) -> None:
        slots = world.defaultParallelism if asked == "auto" else int(asked)
        self.world, self.name, self.batches, self.is_idle = world, name, 0, True
        operators = {"a": slots, "b": 1} if name.startswith("two") else {"a": slots}
        if name.startswith("bare"):
            operators = {}
        states = {op: OperatorState.fresh(n, 8) for op, n in operators.items()}
        self.changes = Changes(states, 8)
        said = SimpleNamespace(requests=lambda: self.wanted, limit=lambda grant: None)
        self.wanted: dict[str, int] = {}
        self._slots = OperatorSlots(
            self.changes, said, lambda event: world.say(f"  {name} notes {shown(asdict(event))}")
        )
        self.isActive, self.failure, self.stops = True, None, not name.endswith("slow")

    @property
    def lastProgress(self) -> Any:
        return {"batch": self.batches}

    def _progress(self) -> tuple[int, bool]:
        return self.batches, self.is_idle

    def exception(self) -> Exception | None:
        return self.failure

    def leave(self, failure: Exception | None = None) -> None:
        self.isActive, self.failure = False, failure

    # events of the course

    def end(self, dice: random.Random) -> None:
        self.leave()

    def fail(self, dice: random.Random) -> None:
        self.leave(dice.choice(FAILURES))

    def hang(self, dice: random.Random) -> None:
        self.is_idle = not self.is_idle

    def hold(self, dice: random.Random) -> None:
        self.changes.hold({"a": 4_000_000_000.0} if dice.random() < 0.3 else {})

    def wish(self, dice: random.Random) -> None:
        self.wanted = {"a": dice.randint(2, 6)}

    def stop(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.world.may_end.wait()
        if self.stops:
            self.leave()

    def scale(self, slots: int, *, operator: str, by: str, reason: str) -> None:
        self.changes.ask(self.changes.scaled(slots, operator), by, reason)


class FakeProbe:
    """Says what the course says; a pool's probe is a class of its own."""

    def __init__(self, *facts: float) -> None:
        self.facts, self.job = facts, None

    def around(self, *inner: Any) -> FakeProbe:
        return self

    def note_progress(self, progress: Any) -> None:
        assert progress["batch"] >= 0

    def values(self, intents: Any) -> tuple[float, ...] | None:
        dice = DICE[0]
        if dice.random() < 0.05:
            raise ValueError("nothing is known")
        if dice.random() < 0.1:
            return None
        return tuple(dice.choice([0.4, 0.9999999, 2.0]) for _ in intents)

    def operators(self) -> dict[str, FleetOperator]:
        slots = DICE[0].randint(1, 3)
        return {"a": FleetOperator(slots, DICE[0].choice([0.0, 0.5, 1.0]), source=True)}

    def input_rate(self) -> float:
        return 12.34567

    def hosts(self, seconds: float) -> dict[str, HostTime]:
        return {"local": HostTime(seconds * DICE[0].choice([0.5, 2.0, 4.0]), 1.5)}


class FakePoolProbe(FakeProbe):
    """Of a query over pools."""


OWN = SimpleNamespace(name="streamswitch")
DICE = [random.Random(0)]


class FakeOver:
    """An event for which a wait takes no time, and which one step of the course precedes."""

    world: World

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float) -> None:
        self.world.now_s += timeout_s
        if timeout_s not in (ROUND_S, fleets._SETTLE_S):
            self.world.say(f"  waits {timeout_s:g} s")
        if timeout_s < 1.0 and self.world.dice.random() < 0.8:
            return  # a grant waits, and it is looked again and again whether there is room
        if self.world.events:
            self.world.events.pop(0)()
        else:
            self._is_set = True


class FakeTimer:
    """Fires at once where a start is slow."""

    world: World

    def __init__(self, after_s: float, work: Callable[[], None]) -> None:
        self.world.say(f"  patience {after_s:g} s")
        self.work = work

    def start(self) -> None:
        if self.world.is_slow:
            self.work()

    def cancel(self) -> None:
        """It has not fired, or is over."""


class FakeThread:
    def __init__(self, **told: Any) -> None:
        self.name, self.work = told["name"], told.get("target")
        self.args = told.get("args", ())

    def start(self) -> None:
        FakeTimer.world.say(f"  thread {self.name}")
        if self.args:
            self.work(*self.args)

    def join(self, timeout_s: float) -> None:
        FakeTimer.world.say(f"  joins for {timeout_s:g} s at most")


class Drawn:
    """Wants other slots for some jobs, or nothing."""

    name = "drawn"

    def __init__(self, world: World) -> None:
        self.world = world

    def decide(self, view: FleetView) -> FleetDecision:
        dice = self.world.dice
        free = f"{view.slots_free} of {view.slots_max}"
        congested = f"{view.hosts_congested} of {view.hosts}"
        self.world.say(f"  sees {view.slots}, free {free}, congested {congested}")
        wants = {
            name: {op: dice.randint(1, 5) for op in of}
            for name, of in view.slots.items()
            if dice.random() < 0.7
        }
        if dice.random() < 0.05:
            raise ArithmeticError("no decision")
        if not wants:
            return FleetDecision(rule="nothing", reason="enough.")
        return FleetDecision(Action.RECONFIGURATION, wants, "so it is drawn", "drawn", {"n": 1.0})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(random.Random(260))
    DICE[0] = made.dice
    FakeOver.world = FakeTimer.world = made
    fakes = SimpleNamespace(
        Event=FakeOver, Timer=FakeTimer, Thread=FakeThread, RLock=threading.RLock
    )
    monkeypatch.setattr(fleets, "threading", fakes)
    for module in (fleets, member, fleet_journal):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(fleets, "require_session", lambda spark, what: None)
    monkeypatch.setattr(fleets, "asked", lambda spark: contextlib.nullcontext())
    monkeypatch.setattr(fleets, "start", made.start)
    monkeypatch.setattr(fleets, "PoolProbe", FakePoolProbe)
    monkeypatch.setattr(admission, "PoolProbe", FakePoolProbe)
    monkeypatch.setattr(admission, "Probe", FakeProbe)
    monkeypatch.setattr(admission, "has_stages", lambda df: df == "stages")
    monkeypatch.setattr(member, "_STOP_S", 5.0)
    write = fleet_journal.FleetJournal._write

    def written(journal: Any, event: Any) -> None:
        made.say(f"  {type(event).__name__} {shown(asdict(event))}")
        write(journal, event)

    monkeypatch.setattr(fleet_journal.FleetJournal, "_write", written)
    return made


def writer(name: str | None, **settings: Any) -> Any:
    slots = settings.pop("slots", 2)
    df = settings.pop("df", "rows")
    slos = tuple(parse_slo(one) for one in settings.pop("slos", SLOS))
    range_ = SlotRange(1, 8, slots)
    return SimpleNamespace(
        settings=QuerySettings(name=name, slots=range_, slos=slos, **settings), df=df
    )


def state(fleet: Fleet) -> Iterator[str]:
    jobs = {name: str(standing) for name, standing in fleet.jobs.items()}
    yield f"  {fleet!r}"
    yield f"  {jobs} grants {fleet.grants} failures {fleet.failures}"


class Course:
    """What happens to a fleet, drawn by lot: each method is one kind of event."""

    names = ("one", "two", "own", "two own", "one slow", "bare", "late", "never")
    kinds = ("add",) * 5 + ("budget", "priority", "hang", "hold", "wish", "wish", "nothing")
    rare = ("remove", "fail", "end", "advise")

    def __init__(self, world: World, fleet: Fleet) -> None:
        self.world, self.fleet, self.dice = world, fleet, world.dice

    def act(self) -> None:
        """Let something happen, and perhaps a batch of each query."""
        dice, world = self.dice, self.world
        kind = dice.choice([*self.kinds, dice.choice(self.rare)])
        name = dice.choice(self.names)
        live = [query for query in world.queries.values() if query.isActive]
        query = dice.choice(live) if live else None
        comes = dice.random() < 0.7
        called = query and query.name
        world.say(f"{world.now_s - 1000:g} s: {kind} {name} {called}{', batches' * comes}")
        for one in live if comes else ():
            one.batches += 1
            one.changes.put_in_force()
        try:
            if hasattr(FakeQuery, kind):
                if query is not None:
                    getattr(query, kind)(dice)
            else:
                getattr(self, kind)(name)
        except (ConfigError, EngineError) as error:
            world.say(f"  {type(error).__name__}: {error}")
        world.leavers_end()
        world.said.extend(state(self.fleet))

    def add(self, name: str) -> None:
        self.world.fails_to_start = int(name == "never")
        self.world.comes_late = {"late": self.dice.randint(1, 3)}.get(name, 0)
        policy = OWN if "own" in name else None
        self.fleet.add(writer(name, slots=self.dice.choice([1, 2, 5]), policy=policy), 3.0)

    def remove(self, name: str) -> None:
        self.fleet.remove(name)

    def priority(self, name: str) -> None:
        self.fleet.set_priority(name, self.dice.choice([1.0, 2.5]))

    def budget(self, name: str) -> None:
        self.fleet.set_budget(self.dice.choice([1, 4, 6, 12]))

    def advise(self, name: str) -> None:
        self.fleet.limits = replace(self.fleet.limits, advise=self.dice.random() < 0.3)

    def nothing(self, name: str) -> None:
        """Nothing happens."""


def test_a_drawn_course_of_a_fleet(world: World, tmp_path: Path, recorded: Recorded) -> None:
    lines = world.said
    fleet = Fleet(
        SimpleNamespace(sparkContext=world),
        round_s=ROUND_S,
        policy=Drawn(world),
        journal=tmp_path / "fleet.jsonl",
        actions_per_minute=5,
        hang_s=17.0,
        cooldown_s=5.0,
    )
    world.events = [Course(world, fleet).act for _ in range(80)]
    for name in ("one", "never", "two own"):
        fleet.add(writer(name, policy=OWN if "own" in name else None), 2.0)
        lines.extend(state(fleet))
    fleet.set_priority("one", 7.0)
    fleet.remove("never")
    assert fleet.start() is fleet
    fleet._run()
    lines.extend(state(fleet))
    with pytest.raises(ConfigError) as refused:
        fleet.add(writer("one"))
    lines += [str(refused.value), f"pool at the end: {world.pool}"]
    lines.append(f"rounds {len(fleet.rounds)}, actions {len(fleet.actions)}")
    lines.append(f"took {fleet.rounds_took_s[:3]}")
    fleet.stop(1.0)
    world.leavers_end()
    lines.extend(state(fleet))
    recorded("fleet", lines)


def test_jobs_that_cannot_start_and_starts_that_take_long(world: World, recorded: Recorded) -> None:
    lines, spark = world.said, SimpleNamespace(sparkContext=world)
    for slow, fails in ((False, 1), (True, 1), (False, 2), (True, 2)):
        lines.append(f"slow: {slow}, fail: {fails} of 2")
        world.is_slow, world.fails_to_start = slow, fails
        fleet = Fleet(spark, 5, policy=Drawn(world))
        fleet.add(writer("one"))
        fleet.add(writer("pools", df="stages", slots="auto"))
        lines.extend(state(fleet))
        try:
            fleet.start()
        except EngineError as error:
            lines.append(f"  raised: {error}")
        lines.extend(state(fleet))
        if fleet._thread is not None:
            with pytest.raises(ConfigError) as refused:
                fleet.start()
            lines.append(str(refused.value))
            fleet.add(writer("more", slots=1))
            lines.append(str(fleet.query("more").name))
        fleet.stop(2.0)
        world.leavers_end()
        lines.extend(state(fleet))
    recorded("fleet_starts", lines)


def test_what_a_fleet_refuses(world: World, recorded: Recorded) -> None:
    spark, lines = SimpleNamespace(sparkContext=world), []
    fleet = Fleet(spark, 5, round_s=1.0)
    fleet.add(writer("there"))
    tries: list[Callable[[], Any]] = [
        lambda: Fleet(spark, "many"),
        lambda: Fleet(spark, 0),
        lambda: Fleet(spark, 1, round_s=0.0),
        lambda: Fleet(spark, 1, hang_s=0.0),
        lambda: Fleet(spark, 1, actions_per_minute=0),
        lambda: Fleet(spark, 1, cooldown_s=-1.0),
        lambda: Fleet(spark, 1, policy="heng"),
        lambda: fleet.add(writer(None)),
        lambda: fleet.add(writer("there")),
        lambda: fleet.add(writer("x", fallback="spark")),
        lambda: fleet.add(writer("x", trigger={"processingTime": "6 seconds"})),
        lambda: fleet.add(writer("x", slos=())),
        lambda: fleet.add(writer("x", slos=SLOS[1:], policy=OWN)),
        lambda: fleet.remove("ther"),
        lambda: fleet.set_priority("nobody", 1.0),
        lambda: fleet.query("there"),
    ]
    for attempt in tries:
        with pytest.raises(ConfigError) as refused:
            attempt()
        lines.append(str(refused.value))
    for taken in (
        writer("short", trigger={"processingTime": "5999 ms"}),
        writer("cron", trigger={"processingTime": "at dawn"}),
        writer("still", policy=SimpleNamespace(name="static")),
        writer("stages", df="stages", slos=SLOS[1:]),
    ):
        fleet.add(taken)
        prepared = fleet._prepared[taken.settings.name]
        kept = [str(slo) for slo in prepared.settings.slos]
        lines.append(f"{taken.settings.name}: {prepared.own_policy}, {kept}")
    world.getConf = dict  # type: ignore[method-assign]
    with pytest.raises(ConfigError) as refused:
        Fleet(spark, 5)
    lines.append(str(refused.value))
    recorded("fleet_refusals", lines)


def test_a_fleet_that_is_stopped_says_that_spark_has_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = SimpleNamespace(sparkContext=world)
    fleet = Fleet(spark, 5, policy=Drawn(world))
    fleet.add(writer("one"))
    fleet.start()
    world.queries["one"].leave(EngineGone("the JVM is gone."))
    with pytest.raises(EngineGone):
        fleet.stop()
    monkeypatch.setattr(fleets, "does_batch", lambda: True)
    fleet = Fleet(spark, 5, policy=Drawn(world))
    fleet.add(writer("slow"))
    fleet.start()
    before = len(world.said)
    fleet.stop(3.0)
    world.leavers_end()
    # the query never ends, and is not waited for longer than that
    assert world.said[before] == "  thread headgate-fleet-stop"
    assert "  joins for 3 s at most" in world.said[before:]
    assert world.queries["slow"].isActive


def test_a_job_that_is_started_again_is_told_its_grant(world: World) -> None:
    fleet = Fleet(SimpleNamespace(sparkContext=world), 6, policy=Drawn(world))
    fleet.add(writer("one", slots=4))
    fleet.start()
    world.comes_late = 2
    fleet.add(writer("late", slots=5))
    assert fleet.grants["late"] == {"a": 2}
    world.queries["late"].changes.put_in_force()
    assert world.queries["late"]._slots.held() == {"a": 2}
    fleet.stop()
    world.leavers_end()


def test_other_jobs_do_not_wait_for_the_end_of_a_hold(world: World) -> None:
    policy = Drawn(world)
    fleet = Fleet(SimpleNamespace(sparkContext=world), 6, policy=policy)
    fleet.add(writer("held", slots=4))
    fleet.add(writer("other", slots=2))
    fleet.start()
    held = world.queries["held"].changes
    held.hold({"a": 4_000_000_000.0})
    fleet.set_budget(3)
    for query in world.queries.values():
        query.changes.put_in_force()
    assert fleet.query("held")._slots.held() == {"a": 4}
    fleet._round()
    assert fleet.actions or fleet._journal._last_rule == "nothing"
    fleet.stop()
    world.leavers_end()
