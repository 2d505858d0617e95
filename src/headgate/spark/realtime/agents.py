"""Keeps an agent on each host of a cluster, from the driver, and starts slots through the agents."""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import AuthenticationError
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import EngineError
from headgate.operators.build import Spec
from headgate.spark.jvm.executors import ExecutorPool
from headgate.spark.jvm.hosts import THIS_HOST, living_hosts, pinned
from headgate.spark.jvm.plans import ArrowMap
from headgate.spark.jvm.sessions import driver_conf
from headgate.spark.move.host_tasks import GroupOrder, TaskAnswer
from headgate.spark.move.placement import Placement, wait_for_hosts
from headgate.spark.realtime import words
from headgate.spark.realtime.agent import BEAT_S, LEASE_S, Charge, launch
from headgate.spark.realtime.channels import Channel, Door, TcpDoor, hang_up
from headgate.spark.realtime.fork_server import LOST, ForkedProcess
from headgate.spark.realtime.run_slots import PartLost

_COMES_S, _COMES_AGAIN_S = 60.0, 10.0
"""Longest wait of `gather` for agents: while the query has none, and otherwise. Chosen, not
tuned."""

_LOOK_S = 0.05
_COMERS_S = 10.0
"""Interval of looking for new hosts while the pipe runs. Chosen, not tuned."""


@dataclass
class _Agent:
    """Holds the driver's side of one host's agent."""

    host: str
    channel: Channel
    process: int
    slots: dict[int, ForkedProcess] = field(default_factory=dict)
    copied: queue.SimpleQueue[tuple[int, TaskAnswer | str] | None] = field(
        default_factory=queue.SimpleQueue
    )

    def tell(self, *message: Any) -> None:
        """Send a message; the thread that reads the agent's messages reports its loss."""
        with suppress(OSError):
            self.channel.send(message)


class Agents:
    """Holds the agents of a query on a cluster; the `SlotHosts` of its pipe, and its `Copier`.

    Parameters
    ----------
    spark : SparkSession
    name : str
        Name of the query, for messages.
    placements : mapping of str to Placement
        By operator.
    specs : mapping of str to Spec
        By operator.
    store : mapping of str to str
        Options of the checkpoint's store.
    facts : mapping
        See `HostTasks`.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        placements: Mapping[str, Placement],
        specs: Mapping[str, Spec],
        store: Mapping[str, str],
        facts: Mapping[str, Any],
    ) -> None:
        self._spark, self._name = spark, name
        self._placements = placements
        for placement in placements.values():
            placement.follow(lambda: self.hosts)
        conf = driver_conf(spark)
        self._shown = conf.get("spark.driver.host")
        self._bound = conf.get("spark.driver.bindAddress", self._shown)
        self._key = secrets.token_bytes(32)
        self._door = self._opened(self._key)
        meeting = words.Meeting(self._door.address, self._key)
        application = conf.get("spark.app.id")
        self._charge = Charge(meeting, specs, store, facts, application=application)
        self._agents: dict[str, _Agent] = {}
        self._changed = threading.Condition()
        self._lost: Callable[[str], None] = lambda _: None
        self._run = b""
        self._numbers = 0
        self._errands = 0
        self._ending = threading.Event()
        self._gathers = threading.Lock()
        self._looks_s = time.monotonic() + _COMERS_S
        for work in (self._let_in, self._beat):
            _in_background(work)

    @property
    def hosts(self) -> list[str]:
        """Hosts whose agents answer, sorted."""
        with self._changed:
            return sorted(self._agents)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of agents on their hosts, as ``agent 10.0.0.1``."""
        with self._changed:
            return {f"agent {host}": agent.process for host, agent in self._agents.items()}

    def _opened(self, key: bytes) -> TcpDoor:
        return TcpDoor(self._bound, key, self._shown)

    # -- the port SlotHosts ---------------------------------------------------------------------------

    @property
    def meeting(self) -> words.Meeting:
        """Return the meeting of the query."""
        return self._charge.meeting

    def begin(self, lost: Callable[[str], None]) -> tuple[words.Meeting, Door]:
        """Start an agent on each host; return the meeting of a new run, and the driver's door.

        Raises
        ------
        EngineError
            No host has an agent.
        """
        self._lost = lost
        self.gather()
        self._run = secrets.token_bytes(32)
        meeting = self._charge.meeting.of_run(self._run)
        door = self._opened(meeting.key)
        return replace(meeting, driver=door.address), door

    def places(self, operator: str, slots: int) -> list[str]:
        """Return the host of each slot of an operator.

        Raises
        ------
        EngineError
            All hosts are lost.
        """
        found = self._placements[operator].hosts_of(slots)
        if not found:
            raise PartLost(f"no host of {self._name} answers.")
        return found

    def start(self, meeting: words.Meeting, operator: str, slot: int, host: str) -> ForkedProcess:
        """Have an agent start the process of a slot."""
        with self._changed:  # the loss of the host then ends this process as well
            agent = self._agents.get(host)
            if agent is None:
                raise PartLost(f"host {host} is lost.")
            self._numbers += 1
            number = self._numbers
            process = agent.slots[number] = ForkedProcess(partial(agent.tell, words.KILL, number))
        agent.tell(words.START, number, meeting.driver, meeting.run, operator, slot)
        return process

    def look_for_stopped(self, feeders: Mapping[str, tuple[str, int]]) -> None:
        """Have each agent look for stopped processes of its host."""
        with self._changed:
            agents = list(self._agents.values())
        for agent in agents:
            agent.tell(words.STOPPED, self._run, dict(feeders))

    def end(self, meeting: words.Meeting) -> None:
        """Do nothing: a run has no files."""

    def close(self) -> None:
        """End all agents, and so the slots and the query's arenas on their hosts."""
        self._ending.set()
        self._lost = lambda _: None
        self._door.close()
        with self._changed:
            agents = list(self._agents.values())
        for agent in agents:
            agent.tell(words.END)
        with self._changed:
            self._changed.wait_for(lambda: not self._agents, _COMES_AGAIN_S)

    # -- agents ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """Start agents in the background on hosts that are new since the pipe began."""
        if time.monotonic() < self._looks_s or self._gathers.locked():
            return
        self._looks_s = time.monotonic() + _COMERS_S
        if set(living_hosts(self._spark)) - set(self.hosts):
            _in_background(self._gather_beside)

    def _gather_beside(self) -> None:
        with suppress(Exception):  # the next look tries again
            self.gather()

    def gather(self) -> None:
        """Start agents on hosts of executors without an agent, and wait for them for a limited time.

        Raises
        ------
        EngineError
            No host has an agent.
        """
        with self._gathers:
            self._gather()

    def _gather(self) -> None:
        had_some = bool(self.hosts)
        until_s = time.monotonic() + (_COMES_AGAIN_S if had_some else _COMES_S)
        said = ""
        while time.monotonic() < until_s and not self._ending.is_set():
            missing = sorted(set(living_hosts(self._spark)) - set(self.hosts))
            if not missing and self.hosts:
                return
            if missing:
                said = self._launch(missing, until_s) or said
            else:
                time.sleep(_LOOK_S)
        if not self.hosts:
            why = said or "its executors are gone or busy"
            msg = (
                f"no host of the cluster can run slots of {self._name} ({why}); the pipe needs a free "
                "core on a host to begin there."
            )
            raise EngineError(msg, transient=True)

    def _launch(self, hosts: Sequence[str], until_s: float) -> str:
        """Run a task on each of the hosts that starts an agent; return an error, or an empty text."""
        wait_for_hosts(self._spark)
        group, said = f"headgate-{uuid.uuid4()}", list[str]()

        def run() -> None:
            context = self._spark.sparkContext
            context.setJobGroup(group, f"{self._name}: agents on {', '.join(hosts)}", True)
            count = len(hosts)
            rows = self._spark.range(0, count, 1, count)
            schema = T.StructType([T.StructField("answer", T.StringType())])
            named = pinned(rows, hosts).select("id", F.expr(THIS_HOST).alias("host"))
            try:
                made = ArrowMap(_Start(self._charge, tuple(hosts)), schema).apply(named)
                said.extend(json.loads(row.answer) for row in made.collect())
            except Exception as error:  # an executor may have ended; the caller tries again
                said.append(str(error).partition("\n")[0])

        thread = _in_background(run)
        while thread.is_alive() and time.monotonic() < until_s:
            if not set(hosts) - set(self.hosts):
                break
            thread.join(_LOOK_S)
        if thread.is_alive() and set(hosts) - set(self.hosts):
            self._spark.sparkContext.cancelJobGroup(group)
        thread.join(max(until_s - time.monotonic(), _LOOK_S))
        with self._changed:  # an agent that runs connects to the driver itself
            self._changed.wait_for(lambda: not set(hosts) - self._agents.keys(), _LOOK_S * 10)
        return next((one for one in said if one), "")

    def _let_in(self) -> None:
        while True:
            try:
                channel = self._door.accept()
            except OSError:
                return
            _in_background(partial(self._hear, channel))

    def _hear(self, channel: Channel) -> None:
        """Process an agent's messages until it ends or is silent for too long."""
        why = "has ended"
        agent = None
        try:
            if not channel.poll(LEASE_S):
                return
            _, host, process = channel.recv()
            agent = _Agent(host, channel, process)
            with self._changed:
                if host in self._agents or self._ending.is_set():
                    channel.send((words.END,))
                    return
                self._agents[host] = agent
                self._changed.notify_all()
            while True:
                if not channel.poll(LEASE_S):
                    why = f"has not answered for {LEASE_S:g} s"
                    break
                word, *said = channel.recv()
                if word == words.ENDED:
                    agent.slots.pop(said[0]).end(said[1])
                elif word == words.STOPPED:
                    run, name, stopped = said
                    if run != self._run:  # that run has ended with all its processes
                        continue
                    self._lost(
                        f"{name} on host {host} is stopped (process {stopped}), and is ended."
                    )
                elif word == words.COPIES:
                    agent.copied.put(tuple(said))
        except (OSError, EOFError, AuthenticationError):
            pass
        finally:
            if agent is not None and self._agents.get(agent.host) is agent:
                self._lose(agent, why)
            hang_up(channel)

    def _lose(self, agent: _Agent, why: str) -> None:
        """Take a host for lost: end its slots, and ignore its later messages."""
        with self._changed:
            del self._agents[agent.host]
            self._changed.notify_all()
        for slot in list(agent.slots.values()):
            slot.end(LOST)
        agent.copied.put(None)
        if self._ending.is_set():
            return
        if why != "has ended":
            self._end_executors(agent.host)
        self._lost(f"the agent of host {agent.host} {why}.")

    def _end_executors(self, host: str) -> None:
        """Have Spark end the executors of a silent host, which Spark would notice after minutes only."""
        with suppress(Exception):
            pool = ExecutorPool(self._spark)
            for executor in pool.living():
                if executor.host == host:
                    pool.kill(executor)

    def _beat(self) -> None:
        while not self._ending.wait(BEAT_S):
            with self._changed:
                agents = list(self._agents.values())
            for agent in agents:
                agent.tell(words.ALIVE)

    # -- the port Copier ------------------------------------------------------------------------------

    def run(self, work: Mapping[str, Sequence[GroupOrder]], slice_s: float) -> list[TaskAnswer]:
        """Carry out each host's orders, as `HostTasks.run` does; a lost host delays no other host."""
        with self._changed:
            agents = {host: self._agents.get(host) for host in work}
        self._errands += 1
        for host, agent in agents.items():
            if agent is not None:
                agent.tell(words.COPIES, self._errands, work[host], slice_s)
        return [self._answer_of(host, agent) for host, agent in agents.items()]

    def _answer_of(self, host: str, agent: _Agent | None) -> TaskAnswer:
        while agent is not None and (found := agent.copied.get()) is not None:
            if found[0] != self._errands:
                continue
            if isinstance(found[1], TaskAnswer):
                return found[1]
            return TaskAnswer(host, "", "", problem=found[1])
        return TaskAnswer(host, "", "", problem=f"host {host} is lost")


@dataclass(frozen=True)
class _Start:
    """Starts an agent if the task runs on the wanted host; the function that `mapInArrow` runs."""

    charge: Charge
    hosts: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index, host in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                wished = self.hosts[index]
                said = launch(self.charge, host) if host == wished else f"no core of {wished}"
                yield pa.RecordBatch.from_pydict({"answer": [json.dumps(said)]})


def _in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="headgate-agents", daemon=True)
    thread.start()
    return thread
