"""Keeps the slot processes of one run of a pipe, and the numbers of those that serve."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.core.assignment import Assignment
from headgate.core.errors import EngineError
from headgate.spark.jvm.errors import text_of
from headgate.spark.realtime import words
from headgate.spark.realtime.channels import Channel, hang_up
from headgate.spark.realtime.fork_server import LOST
from headgate.spark.realtime.hosts import SlotHosts, SlotProgram

ENDS_S = 10.0
"""Time limit for the end of a part of a pipe. Chosen, not tuned."""

_SAYS_S = 1.0
"""Longest wait for the report that a slot's process has ended. Chosen, not tuned."""


class PartLost(EngineError):
    """Reports that a process or a host of a pipe is lost; the query goes on with another one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class PipeLost(EngineError):
    """Reports that a feeder, a router or a slot is lost; ``__cause__`` is the error behind the loss."""

    @classmethod
    def of(cls, error: BaseException) -> PipeLost:
        """Return a loss with `error` as its cause."""
        lost = cls(text_of(error).partition("\n")[0])
        lost.__cause__ = error
        return lost


class SlotsLost(PipeLost):
    """Reports that only slots are lost: feeders and routers can go on with new slots."""


@dataclass
class RunSlot:
    """Holds a slot's process on a host; it has an address once it accepts routers."""

    process: SlotProgram
    host: str
    peer: Channel | None = None
    address: str = ""

    def has_ended(self) -> bool:
        """Return whether the process has ended with a known exit code; waits up to `_SAYS_S`."""
        try:
            return self.process.wait(_SAYS_S) != LOST
        except subprocess.TimeoutExpired:
            return False

    def end(self) -> None:
        """Wait for the end of a process, and kill it after `ENDS_S`."""
        try:
            self.process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.peer is not None:
            hang_up(self.peer)


class RunSlots:
    """Holds the slots of a run; a number of a process is never used again in the run.

    Parameters
    ----------
    hosts : SlotHosts
    meeting : words.Meeting
        Meeting of the run.
    name : str
        Name of the query, for messages.

    Attributes
    ----------
    serving : dict of str to list of int
        By operator, the process numbers of the slots that serve, in the order of the assignment.
    """

    def __init__(self, hosts: SlotHosts, meeting: words.Meeting, name: str) -> None:
        self._hosts, self._meeting, self._name = hosts, meeting, name
        self._slots: dict[str, dict[int, RunSlot]] = {}
        self._begun: Counter[str] = Counter()
        self.serving: dict[str, list[int]] = {}

    @property
    def every(self) -> list[RunSlot]:
        """The slots of all operators."""
        return [slot for slots in self._slots.values() for slot in slots.values()]

    def get(self, operator: str, number: int) -> RunSlot | None:
        """Return a slot by its process number; None if it was given up."""
        return self._slots[operator].get(number)

    def at(self, address: str) -> tuple[str, int] | None:
        """Return operator and number of the slot at an address; None if it was given up."""
        for operator, slots in self._slots.items():
            for number, slot in slots.items():
                if slot.address == address:
                    return operator, number
        return None

    def that_serve(self, operator: str) -> list[RunSlot]:
        """Return the slots of an operator that serve, in the order of the assignment."""
        return [self._slots[operator][number] for number in self.serving[operator]]

    def dead(self, *, silent: bool) -> tuple[str, int] | None:
        """Return operator and number of a slot whose process has ended; None if there is none.

        `silent`: no message waits, so slots that have connected count as well. Their channels may stay
        open in processes that a user's function has forked.
        """
        for operator, slots in self._slots.items():
            for number, slot in slots.items():
                if (silent or slot.peer is None) and slot.process.poll() is not None:
                    return operator, number
        return None

    def have(self, counts: Mapping[str, int]) -> bool:
        """Start the missing slots, `counts` by operator in total; return whether all slots are ready.

        Raises
        ------
        PipeLost
        """
        for operator, count in counts.items():
            slots = self._slots.setdefault(operator, {})
            for host in self._missing(operator, count):
                # each number is used once, so that late messages of an old slot are not a new slot's
                number = self._begun[operator]
                self._begun[operator] += 1
                try:
                    process = self._hosts.start(self._meeting, operator, number, host)
                except EngineError as error:
                    raise PipeLost.of(error) from error
                slots[number] = RunSlot(process, host)
        return all(slot.address for slot in self.every)

    def _missing(self, operator: str, count: int) -> list[str]:
        """Return the hosts of the slots that an operator lacks for `count` slots."""
        have = Counter(slot.host for slot in self._slots[operator].values())
        need = Counter(self._places(operator, count))
        return list((need - have).elements())

    def _places(self, operator: str, count: int) -> list[str]:
        """Return the host of each slot of an operator with `count` slots."""
        try:
            return self._hosts.places(operator, count)
        except EngineError as error:
            raise PipeLost.of(error) from error

    def seated(self, operator: str, count: int) -> list[int]:
        """Return the process numbers of the slots for an assignment, each on the host of its place.

        A slot that serves on this host already keeps its place. Raises `PipeLost`: a host has no slot.
        """
        hosts = self._places(operator, count)
        slots, before = self._slots[operator], self.serving.get(operator, [])
        seats: list[int | None] = [None] * count
        for place, number in enumerate(before[:count]):
            if slots[number].host == hosts[place]:
                seats[place] = number
        for place, host in enumerate(hosts):
            if seats[place] is None:
                free = (n for n, slot in slots.items() if slot.host == host and n not in seats)
                seats[place] = next(free, None)
            if seats[place] is None:
                raise PipeLost.of(PartLost(f"a host of {self._name} was lost."))
        return [number for number in seats if number is not None]

    def routes(
        self, assignments: Mapping[str, Assignment], serving: Mapping[str, Sequence[int]]
    ) -> words.Routes:
        """Return the routers' routes: addresses of slots, and the slot of each key group."""
        return {
            operator: {
                "slots": [self._slots[operator][number].address for number in serving[operator]],
                "slot_of": list(one.slot_of),
            }
            for operator, one in assignments.items()
        }

    def end_all(self) -> list[tuple[str, int]]:
        """Kill all slots; return operator and number of each."""
        ended = [(operator, number) for operator, slots in self._slots.items() for number in slots]
        every = self.every
        for slot in every:
            slot.process.kill()
        for slot in every:  # a slot that still runs could write into the arena of its successor
            slot.end()
        self._slots, self.serving = {operator: {} for operator in self._slots}, {}
        return ended

    def end_spare(self, counts: Mapping[str, int]) -> list[tuple[str, int]]:
        """End slots that do not serve and exceed the `counts` slots of an operator; return them."""
        ended = []
        for operator, count in counts.items():
            slots, serving = self._slots[operator], self.serving[operator]
            spare = Counter(self._places(operator, count))
            spare.subtract(slots[number].host for number in serving)
            for number in [number for number in slots if number not in serving]:
                slot = slots[number]
                if spare[slot.host] > 0:
                    spare[slot.host] -= 1
                    continue
                del slots[number]
                ended.append((operator, number))
                if slot.peer is not None:
                    tell(slot.peer, (words.END,))
                in_background(slot.end)
        return ended


def tell(peer: Channel, message: Sequence[Any]) -> None:
    """Send a message; the thread that reads the peer's messages reports its loss."""
    try:
        peer.send(tuple(message))
    except OSError:
        return


def in_background(work: Callable[[], None]) -> None:
    """Run `work` in a new thread."""
    threading.Thread(target=work, name="headgate-pipe", daemon=True).start()
