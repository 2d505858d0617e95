"""Starts and ends slots on a host of a cluster at the driver's request, in a program beside Spark.

A Spark task starts this program, which outlives the task, because the pipe's tasks occupy the cores as
long as the query runs. The program and its slots end when the driver is silent for `LEASE_S`.
"""

from __future__ import annotations

import os
import pickle
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from headgate.operators.build import Spec
from headgate.spark.jvm.pickled import pickled
from headgate.spark.move.host_tasks import GroupOrder, carry_out
from headgate.spark.realtime import words
from headgate.spark.realtime.channels import Channel
from headgate.spark.realtime.fork_server import ForkedProcess, ForkServer, environment
from headgate.spark.realtime.hosts import FORK_SERVER
from headgate.spark.realtime.stopped import executors, find_stopped
from headgate.spark.worker.whereabouts import AGENT_HOST
from headgate.spark.worker.worker import leave_runs, run_named

BEAT_S = 1.0
"""Interval of the messages with which driver and agent show that they live."""

LEASE_S = 15.0
"""Longest silence: after it the driver takes the host for lost, and the agent ends. Chosen, not tuned:
longer than a pause of a busy machine."""

_STARTS_S = 60.0


@dataclass(frozen=True)
class Charge:
    """Holds the facts of a query that an agent needs.

    Attributes
    ----------
    meeting : words.Meeting
        Address and key of the driver for its agents.
    specs : mapping of str to Spec
        By operator.
    store : mapping of str to str
        Options of the checkpoint's store.
    facts : mapping
        See `HostTasks`.
    lease_s : float
        See `LEASE_S`.
    application : str
        Spark's id of the application.
    """

    meeting: words.Meeting
    specs: Mapping[str, Spec]
    store: Mapping[str, str] = field(repr=False)
    facts: Mapping[str, Any]
    lease_s: float = LEASE_S
    application: str = ""


def launch(charge: Charge, host: str) -> str:
    """Start an agent on this host, which outlives this process; return the error, or an empty text."""
    command = [sys.executable, "-m", "headgate.spark.realtime.agent"]
    told, _ = pickled((charge, host))
    try:
        # in a process session of its own, so that the end of an executor does not end the agent
        done = subprocess.run(
            command,
            input=told,
            env=environment(),
            capture_output=True,
            timeout=_STARTS_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip()[-500:]


class Agent:
    """Carries out the driver's requests on one host.

    Parameters
    ----------
    charge : Charge
    host : str
        Spark's name of the host.
    driver : Channel
    """

    def __init__(self, charge: Charge, host: str, driver: Channel) -> None:
        self._charge, self._host, self._driver = charge, host, driver
        self._server = ForkServer(charge.specs.values())
        self._slots: dict[int, tuple[str, ForkedProcess]] = {}
        """Running slots, by the number that the driver gave each process; with names for messages."""
        self._looks = threading.Lock()

    def run(self) -> None:
        """Work until the driver ends the agent, or is silent for too long."""
        self._in_background(self._beat)
        facts = self._charge.facts
        run_named(
            facts["arena_root"], facts["run_id"], facts["memory"]
        )  # this process stays in the run, so the run's shared memory stays when a slot ends
        try:
            while self._driver.poll(self._charge.lease_s):
                word, *said = self._driver.recv()
                if word == words.END:
                    return
                if word == words.START:
                    self._start(*said)
                elif word == words.KILL:
                    if (begun := self._slots.get(said[0])) is not None:
                        begun[1].kill()
                elif word == words.STOPPED:
                    self._in_background(partial(self._look, *said))
                elif word == words.COPIES:
                    self._in_background(partial(self._copy, *said))
        except (OSError, EOFError):
            return
        finally:
            self._server.close()  # ends all slots as well
            leave_runs()

    def _beat(self) -> None:
        while True:
            self._driver.send((words.ALIVE,))
            time.sleep(BEAT_S)

    def _start(self, number: int, driver: str, run: bytes, operator: str, slot: int) -> None:
        here = replace(self._charge.meeting.of_run(run, driver), host=self._host)
        if not self._server.is_alive:
            self._server.close()
            self._server = ForkServer(self._charge.specs.values())
        process = self._server.start(here, operator, slot, self._charge.store)
        whose = f"{operator} " if len(self._charge.specs) > 1 else ""
        self._slots[number] = f"{whose}{words.SLOT} {slot}", process
        self._in_background(partial(self._await_end, number, process))

    def _await_end(self, number: int, process: ForkedProcess) -> None:
        code = process.wait()
        del self._slots[number]
        self._driver.send((words.ENDED, number, code))

    def _look(self, run: bytes, feeders: Mapping[str, tuple[str, int]]) -> None:
        """Look for suspended processes (as by SIGSTOP); return if another thread is looking already."""
        if self._looks.acquire(blocking=False):
            try:
                self._look_for_stopped(run, feeders)
            finally:
                self._looks.release()

    def _look_for_stopped(self, run: bytes, feeders: Mapping[str, tuple[str, int]]) -> None:
        """Report the first process of the run on this host that is suspended, as by SIGSTOP.

        The processes are slots, the program that forks slots, feeders and the Python workers beside them,
        and executors. A suspended executor is killed at once, because records pass through the JVM. Spark
        would wait two minutes for the executor's heartbeat, and until then its cores would be taken by
        cancelled tasks.
        """
        mine = {
            name: process.pid
            for name, process in list(self._slots.values())
            if process.poll() is None and process.pid is not None
        }
        mine[FORK_SERVER] = self._server.pid
        mine |= {name: pid for name, (node, pid) in feeders.items() if node == platform.node()}
        jvms = executors(self._charge.application, self._host)
        found = find_stopped(mine | jvms)
        if found is not None:
            self._driver.send((words.STOPPED, run, *found))
            if found[0] in jvms:
                with suppress(OSError):  # the executor has ended already
                    os.kill(found[1], signal.SIGKILL)

    def _copy(self, errand: int, orders: Sequence[GroupOrder], slice_s: float) -> None:
        charge = self._charge
        facts = {**charge.facts, "slice_s": slice_s}
        try:
            answer: object = carry_out(charge.specs, charge.store, facts, self._host, orders)
        except Exception as error:  # the driver waits for an answer
            answer = f"{type(error).__name__}: {error}"
        self._driver.send((words.COPIES, errand, answer))

    def _in_background(self, work: Any) -> None:
        def run() -> None:
            try:
                work()
            except OSError:  # the connection to the driver is lost, which ends this agent
                return

        threading.Thread(target=run, daemon=True).start()


def main() -> None:
    """Connect to the driver that standard input describes, continue in a fork, and run an agent."""
    charge, host = pickle.load(sys.stdin.buffer)
    driver = charge.meeting.connect(charge.meeting.driver)
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(nothing, stream.fileno())
    os.environ[AGENT_HOST] = host
    driver.send((words.AGENT, host, os.getpid()))
    Agent(charge, host, driver).run()


if __name__ == "__main__":
    main()
