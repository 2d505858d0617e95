"""A step that begins: what is known of it before its tasks run."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class Begun:
    """A step that begins.

    Attributes
    ----------
    number : int
    spark_batch : int
        The batch of Spark's that it belongs to; one may have several steps.
    watermark_us : int
    sources : list of str or None
        End offsets of the sources.
    read_ms, started_ms : float
        When the batch was read, and when the step began; since 1970.
    timestamp_ms : int
        The step's time for users' code: one for all attempts, and never put back.
    drain : bool
        True for a step after Spark's last batch.
    latest : Manifest or None
        What was committed before it.
    """

    number: int
    spark_batch: int
    watermark_us: int
    sources: list[str] | None
    read_ms: float
    started_ms: float
    timestamp_ms: int
    drain: bool
    latest: Manifest | None
