"""Finds journals, and reads each of them once for all who look at the page."""

from __future__ import annotations

import contextlib
import hashlib
import os
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
from headgate.report.now import health
from headgate.ui.history import JournalHistory

READ_AGAIN_S = 0.5
"""A journal is read at most so often, however many look at it."""


@dataclass
class Book:
    """Holds a journal that is read as it grows."""

    path: Path
    tail: Tail
    copied: CopiedJournal | None = None
    history: JournalHistory = field(default_factory=JournalHistory)
    error: str = ""
    damage: str = ""
    read_ms: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_fleet(self) -> bool:
        """Return whether it is a fleet's."""
        return self.path.name == FLEET_JOURNAL

    @property
    def checkpoint(self) -> str | Path:
        """The checkpoint that it belongs to, or itself where it lies alone."""
        if self.copied is not None:
            return self.copied.place
        return self.path.parent.parent if self.path.parent.name == "headgate" else self.path

    def refresh(self, now_ms: int) -> None:
        """Read what is new; a damaged line ends that, and is told, as is a store that cannot be read."""
        if self.damage or now_ms - self.read_ms < READ_AGAIN_S * 1e3:
            return
        self.error = "" if self.copied is None else self.copied.refresh()
        try:
            for event in self.tail.events():
                self.history.absorb(event)
        except HeadgateError as error:
            self.error = str(error)
            if is_file(self.path):  # else the place is gone, perhaps for a while
                self.damage = self.error
        self.read_ms = now_ms


class Shelf:
    """Holds the journals of some places.

    `places` (iterable of path or CopiedJournal): checkpoints, journals, or directories with
    checkpoints; of a checkpoint on a store its copied journal. `driver_of`: says what a
    checkpoint's files tell of its driver. Raises `CheckpointError`: there is nothing at a place.
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

        Of a query also health, slots, limit, and of its SLO met, since_ms, success, latency_ms and slo.
        """
        with self._lock:
            self._look((CheckpointError,))
            books = list(self._books.items())
        return [self._entry(name, book) for name, book in books]

    def query(self, name: str, points: int) -> dict[str, Any] | None:
        """Return the page's content for a query, as `JournalHistory.describe`; None if unknown."""
        book = self._books.get(name)
        if book is None or book.is_fleet:
            return None
        with book.lock:
            book.refresh(self._now_ms())
            driver = self._driver_of(book.checkpoint)
            answer = book.history.describe(str(book.checkpoint), self._now_ms(), driver, points)
        return answer | {"id": name, "error": book.error}

    def checkpoint(self, name: str) -> str | Path | None:
        """Return the checkpoint of a query, or its journal where that lies alone; None for no query."""
        book = self._books.get(name)
        return None if book is None or book.is_fleet else book.checkpoint

    def fleet(self, name: str) -> dict[str, Any] | None:
        """Return the state of a fleet; None where there is none."""
        book = self._books.get(name)
        if book is None or not book.is_fleet:
            return None
        try:
            return {"id": name, "error": "", **fleet_status(book.path)}
        except HeadgateError as error:
            return {"id": name, "error": str(error)}

    def _look(self, passed_over: tuple[type[Exception], ...] = ()) -> None:
        """Look for new journals; where a place is gone and may be passed over, its books stay."""
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
            run, driver = book.history.reading.run, self._driver_of(book.checkpoint)
            told = book.history.reading.diagnosis(place, now_ms, driver)
            title = (run.start.workload or run.start.name) if run.start else ""
            return {
                "id": name,
                "kind": "query",
                "name": title or Path(place).name,
                "place": place,
                "health": book.error or health(run, now_ms, driver.holds),
                "slots": run.last.slots if run.last else None,
                "limit": told["limit"]["cause"],
                **{key: told["slo"][key] for key in ("met", "since_ms", "success", "latency_ms")},
                "slo": "; ".join(told["slo"]["texts"]),
            }
