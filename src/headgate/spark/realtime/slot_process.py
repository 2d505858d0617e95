"""Runs a slot in its own process: receives records from routers, serves complete epochs, reports.

A fork server starts the process beside Spark. The process ends with its driver.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import AuthenticationError
from typing import Any

import pyarrow as pa

from headgate.core.errors import EngineError
from headgate.operators.warm import warm
from headgate.spark.jvm.pickled import take_broadcasts
from headgate.spark.realtime import words
from headgate.spark.realtime.channels import BrokenChannel, Channel, Door
from headgate.spark.realtime.router import stored_at
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.payloads import read_table
from headgate.spark.worker.slot import Began, SlotTask, freeze_once, no_records
from headgate.spark.worker.worker import operator_named

_AHEAD = 64
"""Messages that wait in the process; with more, routers wait. Chosen, not tuned."""

_DRIVER = (-1, -1)


_Sender = tuple[int, int]
"""Number of a router, and that of the channel by which its messages come. Another slot may come to relay
a router's messages with a new epoch, while the last of the old one are still on their way."""


@dataclass
class _Closed:
    """Holds the records of an epoch, by router that has sent all of them."""

    tables: dict[int, list[pa.Table]] = field(default_factory=dict)
    newest_us: dict[int, int] = field(default_factory=dict)


class SlotProcess:
    """Serves one slot.

    `number`: number of the process, until the driver sends the slot's number. `store`: options of the
    checkpoint's store.
    """

    def __init__(
        self, meeting: words.Meeting, operator: str, number: int, store: Mapping[str, str]
    ) -> None:
        self._meeting, self._operator, self._number = meeting, operator, number
        self._store = store
        self._said: queue.Queue[tuple[_Sender, Any]] = queue.Queue(_AHEAD)
        self._open: dict[_Sender, list[pa.Table]] = {}
        self._closed: dict[int, _Closed] = {}
        self._facts: SlotFacts | None = None
        self._told: list[pa.Table] = []
        """Records from the driver for the next step."""
        self._task: SlotTask
        self._routers = 0
        self._channels = itertools.count()

    def run(self) -> None:
        """Serve until the driver ends the slot, or ends itself."""
        with (
            self._meeting.connect(self._meeting.driver) as driver,
            self._meeting.door(f"{self._operator}-slot-{self._number}", driver) as door,
        ):
            driver.send((words.SLOT, (self._operator, self._number), os.getpid()))
            word, task, self._routers, broadcasts = driver.recv()
            assert word == words.BEGIN
            try:
                take_broadcasts(broadcasts)
                self._task = replace(pickle.loads(task), store=self._store)
                warm(self._task.spec)
            except Exception as error:
                driver.send((words.FAILED, _portable(error)))
                return
            _in_background(lambda: self._listen(_DRIVER, driver))
            _in_background(lambda: self._let_in(door))
            driver.send((words.READY, door.address))
            try:
                self._serve(driver)
            except (OSError, EOFError):
                return
            except Exception as error:  # the driver decides whether to retry
                driver.send((words.FAILED, _portable(error)))

    def _let_in(self, door: Door) -> None:
        with contextlib.suppress(OSError):  # the slot has ended
            while True:
                _in_background(partial(self._hear, door.accept()))

    def _hear(self, router: Channel) -> None:
        onward: dict[str, Channel] = {}
        try:
            number = router.recv()
        except (OSError, EOFError):
            return
        self._listen((number, next(self._channels)), router, onward)
        for slot in onward.values():
            slot.close()

    def _listen(
        self, who: _Sender, peer: Channel, onward: dict[str, Channel] | None = None
    ) -> None:
        """Queue what `peer` says until it ends; `onward`: channels to slots that get it from this one."""
        try:
            while True:
                message = peer.recv()
                if message[0] == words.RELAY and onward is not None:
                    message = self._relayed(who[0], onward, *message[1:])
                self._said.put((who, message))
        except BrokenChannel as error:
            self._said.put((who, (words.FAILED, EngineError(str(error), transient=True))))
        except (OSError, EOFError):
            if who == _DRIVER:
                self._said.put((who, (words.END,)))

    def _relayed(
        self, router: int, onward: dict[str, Channel], addresses: Sequence[str], message: Any
    ) -> Any:
        """Send a router's message on to other slots of this host, as that router; return it."""
        for address in onward.keys() - set(addresses):
            onward.pop(address).close()
        try:
            for address in addresses:
                if address not in onward:
                    onward[address] = self._meeting.connect(address)
                    onward[address].send(router)
                onward[address].send(message)
        except (OSError, EOFError, AuthenticationError):
            msg = f"the slot at {address} is lost: another one of its host cannot reach it."
            return (words.FAILED, EngineError(msg, transient=True))
        return message

    def _serve(self, driver: Channel) -> None:
        while True:
            who, (word, *said) = self._said.get()
            if word == words.END:
                return
            if word == words.FAILED:
                raise said[0]
            if word == words.RECORDS:
                self._open.setdefault(who, []).append(read_table(said[0]))
            elif word == words.EPOCH:
                epoch, newest_us, last = said
                closed = self._closed.setdefault(epoch, _Closed())
                tables = self._open.pop(who, [])
                if last is not None:
                    tables.append(read_table(last))
                closed.tables[who[0]] = tables
                closed.newest_us |= {
                    one: max(us, closed.newest_us.get(one, us)) for one, us in newest_us.items()
                }
            elif word == words.SERVE:
                shared, own, self._number = said
                self._facts = replace(pickle.loads(shared), **own)
                self._told = self._open.pop(_DRIVER, [])
            self._answer_if_complete(driver)

    def _answer_if_complete(self, driver: Channel) -> None:
        facts = self._facts
        if facts is None:
            return
        closed = self._closed.get(facts.step, _Closed())
        if len(closed.tables) < self._routers:
            return
        self._facts = None
        self._closed.pop(facts.step, None)
        # sorted by router, so that the same records in the same cut are served in the same way
        tables = [table for _, mine in sorted(closed.tables.items()) for table in mine]
        tables = [*self._told, *tables]
        if facts.slot_rate is not None:
            # before the records are served, so that their latency includes the time of their service
            time.sleep(sum(table.num_rows for table in tables) / facts.slot_rate)
        began = Began.now()
        records = (
            pa.concat_tables(tables, promote_options="default").combine_chunks()
            if tables
            else no_records(operator_named(self._task.operator, self._task.spec))
        )
        if self._task.spec.shared:
            records = stored_at(records, facts.groups_of(self._number))
        try:
            report, _ = self._task.answer(
                facts, self._number, records, (), facts.watermark_us, began
            )
        except OSError as error:  # `run` would take it for a lost connection, and end silently
            driver.send((words.FAILED, _portable(error)))
            return
        driver.send((words.REPORT, report, closed.newest_us))
        freeze_once()


def _portable(error: Exception) -> Exception:
    """Return the error if it can be pickled, otherwise an EngineError with its class and text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EngineError(f"{type(error).__name__}: {error}")
    return error


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
