"""Writes a fleet's journal, and keeps the rounds and actions that `Fleet` shows."""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from headgate.control.fleet.view import FleetDecision
from headgate.core.errors import EngineError
from headgate.journal.fleet import (
    FleetDecided,
    FleetGranted,
    FleetJobChanged,
    FleetRound,
    FleetStart,
)
from headgate.journal.writer import JournalWriter

_KEPT_ROUNDS = 10_000


class FleetJournal:
    """Keeps a fleet's rounds and actions, and writes them into its journal, if it has one.

    `path`: path of the journal; None for no journal.

    Attributes
    ----------
    began_s : float    Time when the fleet began to decide, on the monotonic clock.
    took_s : deque of float    Duration of each round, in seconds.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.began_s = time.monotonic()
        self.rounds: deque[FleetRound] = deque(maxlen=_KEPT_ROUNDS)
        self.actions: list[FleetDecided] = []
        self.took_s: deque[float] = deque(maxlen=_KEPT_ROUNDS)
        self.journal = JournalWriter(path) if path is not None else None
        self._lock = threading.Lock()
        self._last_rule = ""

    @property
    def time_s(self) -> float:
        """Seconds since the fleet began to decide."""
        return time.monotonic() - self.began_s

    def started(self, event: FleetStart) -> None:
        """Write the fleet's settings."""
        self._write(event)

    def round(self, event: FleetRound) -> None:
        """Write the observations of a round."""
        self.rounds.append(event)
        self._write(event)

    def decided(self, policy: str, decision: FleetDecision, *, advise: bool) -> None:
        """Write a decision, unless it does nothing and has the same rule as the one before."""
        event = FleetDecided(
            policy=policy,
            action=str(decision.action),
            rule=decision.rule,
            reason=decision.reason,
            acts=bool(decision) and not advise,
            slots={job: dict(slots) for job, slots in decision.slots.items()},
            numbers=dict(decision.numbers),
            time_s=round(self.time_s, 3),
        )
        if decision:
            self.actions.append(event)
        if decision or decision.rule != self._last_rule:
            self._write(event)
        self._last_rule = decision.rule

    def job(self, name: str, state: str, why: str) -> None:
        """Write a job's state."""
        self._write(FleetJobChanged(job=name, state=state, why=why))

    def granted(
        self,
        job: str,
        granted: Mapping[str, int],
        held: Mapping[str, int],
        requested: Mapping[str, int],
        by: str,
        reason: str,
    ) -> None:
        """Write a job's new grant."""
        time_s = round(self.time_s, 3)
        self._write(
            FleetGranted(job, dict(granted), dict(held), by, reason, dict(requested), time_s)
        )

    def close(self) -> None:
        """Close the journal; later events are not written."""
        with self._lock:
            journal, self.journal = self.journal, None
        if journal is not None:
            journal.close()

    def _write(
        self, event: FleetStart | FleetRound | FleetDecided | FleetJobChanged | FleetGranted
    ) -> None:
        with self._lock:
            if self.journal is None:
                return
            try:
                self.journal.write(event)
            except EngineError as error:  # jobs need their slots also while a disk is full
                warnings.warn(str(error), stacklevel=3)
