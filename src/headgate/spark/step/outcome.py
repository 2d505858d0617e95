"""Holds the result of a step for its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.traffic import Traffic

R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """A step that is committed and out."""

    manifest: Manifest
    reports: list[R]
    """One of each task."""
    phases_ms: dict[str, float]
    """Where its time went."""
    attempts: int
    emitted: int
    """Rows that were kept for the sink, before the user's filters."""
    store: Traffic | None = None
    """The driver's with the checkpoint's store, since the step before; None where there is none."""

    @property
    def step(self) -> int:
        """Its number."""
        return self.manifest.step
