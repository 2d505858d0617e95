"""Holds the result of a step for its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.traffic import Traffic

R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """A step that is committed and out.

    Attributes
    ----------
    manifest : Manifest
    reports : list
        One of each task.
    phases_ms : dict of str to float
        Where its time went.
    attempts : int
    emitted : int
        Rows that were kept for the sink, before the user's filters.
    store : Traffic or None
        The driver's with the checkpoint's store, since the step before; None where there is none.
    """

    manifest: Manifest
    reports: list[R]
    phases_ms: dict[str, float]
    attempts: int
    emitted: int
    store: Traffic | None = None

    @property
    def step(self) -> int:
        """Its number."""
        return self.manifest.step
