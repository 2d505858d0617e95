"""Defines the result of a step, for journal and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.traffic import Traffic

R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """Describes a committed step."""

    manifest: Manifest
    reports: list[R]
    """One report of each task."""
    phases_ms: dict[str, float]
    """Time by phase."""
    attempts: int
    emitted: int
    """Rows of the last operators' output, before the user's filters."""
    store: Traffic | None = None
    """The driver's requests to the checkpoint's store since the last step; None without a store."""

    @property
    def step(self) -> int:
        """The step's number."""
        return self.manifest.step
