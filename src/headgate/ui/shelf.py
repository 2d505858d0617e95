"""Finds journals, and reads each journal once for all viewers of the page."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.core.errors import CheckpointError, HeadgateError
from headgate.core.input import is_file
from headgate.journal.reader import FLEET_JOURNAL, CopiedJournal, Tail, journals_below
from headgate.journal.writer import wall_clock_ms
from headgate.report.fleet import fleet_status
from headgate.report.limits import DriverSeen
from headgate.report.now import STALE_MS, health
from headgate.ui.history import JournalHistory

_NUMBERS = re.compile(r"[0-9][0-9.,:]*")

READ_AGAIN_S = 0.5
"""Least time between two reads of a journal, in s, for any number of viewers."""


@dataclass(frozen=True)
class Glance:
    """Holds the line of a query in the list of journals, and the inputs of this line."""

    events: int
    state: tuple[str, bool]
    """Health of the query without numbers, which grow while nothing happens; whether it is silent."""
    driver: DriverSeen
    line: dict[str, Any]


@dataclass
class Book:
    """Holds a journal, and reads it as it grows."""

    path: Path
    tail: Tail
    copied: CopiedJournal | None
    history: JournalHistory = field(default_factory=JournalHistory)
    error: str = ""
    damage: str = ""
    read_ms: int = 0
    events: int = 0
    """Number of events read."""
    glance: Glance | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_fleet(self) -> bool:
        """Return whether the journal is of a fleet."""
        return self.path.name == FLEET_JOURNAL

    @property
    def checkpoint(self) -> str | Path:
        """The journal's checkpoint, or the journal itself if it has no checkpoint."""
        if self.copied is not None:
            return self.copied.place
        return self.path.parent.parent if self.path.parent.name == "headgate" else self.path

    def refresh(self, now_ms: int) -> None:
        """Read new events; `error` reports a store's error, or a damaged line, which ends all reads."""
        if self.damage or now_ms - self.read_ms < READ_AGAIN_S * 1e3:
            return
        self.error = "" if self.copied is None else self.copied.refresh()
        try:
            for event in self.tail.events():
                self.history.absorb(event)
                self.events += 1
        except HeadgateError as error:
            self.error = str(error)
            if is_file(self.path):  # otherwise the place is gone, perhaps for a while
                self.damage = self.error
        self.read_ms = now_ms


class Shelf:
    """Holds the journals of some places.

    `places` (iterable of path or CopiedJournal): checkpoints, journals, or directories with
    checkpoints; for a checkpoint on a store, its copied journal. `driver_of`: returns the driver's
    state from a checkpoint's files. Raises `CheckpointError`: there is nothing at a place.
    """

    def __init__(
        self,
        places: Iterable[str | os.PathLike[str] | CopiedJournal],
        driver_of: Callable[[str | Path], DriverSeen],
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._places = list(places)
        self._driver_of = driver_of
        self._now_ms = now_ms
        self._books: dict[str, Book] = {}
        self._lock = threading.Lock()
        self._look()

    def index(self) -> list[dict[str, Any]]:
        """Return all journals: id, kind, name, place.

        A query also has health, slots, limit, and of its SLO met, since_ms, success, latency_ms and slo.
        """
        with self._lock:
            self._look((CheckpointError,))
            books = list(self._books.items())
        return [self._entry(name, book) for name, book in books]

    def query(self, name: str, points: int) -> dict[str, Any] | None:
        """Return the page's content for a query, as `JournalHistory.describe`; None if unknown."""
        book = self.book(name)
        if book is None:
            return None
        with book.lock:
            book.refresh(self._now_ms())
            driver = self._driver_of(book.checkpoint)
            answer = book.history.describe(str(book.checkpoint), self._now_ms(), driver, points)
        return answer | {"id": name, "error": book.error}

    def book(self, name: str) -> Book | None:
        """Return the journal of a query; None if unknown."""
        book = self._books.get(name)
        return None if book is None or book.is_fleet else book

    def checkpoint(self, name: str) -> str | Path | None:
        """Return a query's checkpoint, or its journal if it has no checkpoint; None if unknown."""
        book = self.book(name)
        return None if book is None else book.checkpoint

    def fleet(self, name: str) -> dict[str, Any] | None:
        """Return the state of a fleet; None if unknown."""
        book = self._books.get(name)
        if book is None or not book.is_fleet:
            return None
        try:
            return {"id": name, "error": "", **fleet_status(book.path)}
        except HeadgateError as error:
            return {"id": name, "error": str(error)}

    def _look(self, passed_over: tuple[type[Exception], ...] = ()) -> None:
        """Look for new journals; a place that raises one of `passed_over` keeps its books."""
        for place in self._places:
            if not isinstance(place, str | os.PathLike):
                self._put(place.place, place.path, place)
                continue
            with contextlib.suppress(*passed_over):
                for path in journals_below(place):
                    self._put(str(path), path)

    def _put(self, place: str, path: Path, copied: CopiedJournal | None = None) -> None:
        name = hashlib.sha256(place.encode()).hexdigest()[:12]
        if name not in self._books:
            tail = Tail(path, place if copied else "")
            self._books[name] = Book(path, tail, copied)

    def _entry(self, name: str, book: Book) -> dict[str, Any]:
        place = str(book.checkpoint)
        if book.is_fleet:
            return {"id": name, "kind": "fleet", "name": book.path.parent.name, "place": place}
        with book.lock:
            now_ms = self._now_ms()
            book.refresh(now_ms)
            line = self._line(book, place, now_ms)
            return {"id": name, "kind": "query", "place": place, **line}

    def _line(self, book: Book, place: str, now_ms: int) -> dict[str, Any]:
        """Return the line of a query in the list; makes a new line only if something has happened."""
        run, before = book.history.reading.run, book.glance
        unread = before is None or before.events != book.events
        # after a query has ended, a new driver writes a start event
        over = before is not None and (run.stop is not None or before.driver.holds is False)
        driver = (
            before.driver
            if before is not None and over and not unread
            else self._driver_of(book.checkpoint)
        )
        now = book.error or health(run, now_ms, driver.holds)
        state = _NUMBERS.sub("", now), now_ms - run.ended_ms > STALE_MS
        if before is None or (before.events, before.state, before.driver) != (
            book.events,
            state,
            driver,
        ):
            told = book.history.reading.glance(place, now_ms, driver)
            title = (run.start.workload or run.start.name) if run.start else ""
            line = {
                "name": title or Path(place).name,
                "slots": run.last.slots if run.last else None,
                "limit": told["limit"]["cause"],
                **{key: told["slo"][key] for key in ("met", "since_ms", "success", "latency_ms")},
                "slo": "; ".join(told["slo"]["texts"]),
            }
            before = book.glance = Glance(book.events, state, driver, line)
        return before.line | {"health": now}
