"""Defines the facts of a step that are known before its tasks run."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class Begun:
    """Holds number, sources and times of a step that begins."""

    number: int
    spark_batch: int
    """The Spark batch to which the step belongs; a batch may have several steps."""
    watermark_us: int
    sources: list[str] | None
    """End offsets of the sources."""
    read_ms: float
    started_ms: float
    """`read_ms`, `started_ms`: times at which the batch was read and the step began, ms since 1970."""
    timestamp_ms: int
    """The processing time for users' code: the same in all attempts, never less than in earlier steps."""
    drain: bool
    """True for a step that no batch of Spark's commits: after Spark's last batch, or in real time."""
    latest: Manifest | None
    """The manifest of the step before; None before the first step."""
