"""Adds batches to Spark's log for epochs of a query in real time, so that micro-batches can follow.

Spark continues from the newest batch in its log. Epochs are not in this log; their manifests have the
offsets and the watermark that Spark needs.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

from headgate.checkpoint.files import make_directory, read_regular, write_bytes
from headgate.checkpoint.manifest import NEXT_WATERMARK_US, REAL_TIME, Manifest
from headgate.checkpoint.spark_log import newest_batch
from headgate.core.errors import ConfigError

REAL_TIME_ONLY = "real_time_only"
"""Key in the JSON of offsets from which Spark's own source cannot continue."""

_VERSION = "v1"
_SOURCES, _FIRST = "sources", "0"


def write_identity(log: Path) -> None:
    """Write the id of a query in Spark's format, unless the log has an id."""
    if not (log / "metadata").exists():
        text = json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":"))
        write_bytes(log, "metadata", text.encode())


def first_offsets(log: Path, source: int) -> str | None:
    """Return the offsets at which a query began, from the log of Spark's Kafka source; or None."""
    content = read_regular(log, f"{_SOURCES}/{source}/{_FIRST}")
    return None if content is None else content.decode().partition("\n")[2]


def write_first_offsets(log: Path, source: int, offsets: str) -> None:
    """Write the offsets at which a query begins, for `first_offsets` and for Spark's Kafka source."""
    directory = log / _SOURCES / str(source)
    for path in (directory.parent, directory):
        make_directory(path)
    # Spark skips the first byte
    write_bytes(directory, _FIRST, b"\0" + f"{_VERSION}\n{offsets}".encode())


def next_watermark_us(log: Path, latest: Manifest | None) -> int:
    """Return the watermark of the step after a manifest (of an epoch or of a batch), microseconds."""
    if latest is None:
        return 0
    if (facts := latest.engine.get(REAL_TIME)) is not None:
        return int(facts[NEXT_WATERMARK_US])
    evicted_us = int(latest.watermarks.get("evict_us", 0))
    committed = read_regular(log, f"commits/{latest.spark_batch}") or b""
    match = re.search(rb'"nextBatchWatermarkMs":\s*(\d+)', committed)
    return evicted_us if match is None else max(evicted_us, int(match[1]) * 1000)


def write_log(log: Path, latest: Manifest | None) -> None:
    """Add batches to Spark's log if the newest manifest is that of an epoch.

    `log`: directory of Spark's log; the caller has the checkpoint's lock. `latest`: newest manifest.
    """
    if latest is None or REAL_TIME not in latest.engine or newest_batch(log) >= latest.spark_batch:
        return
    if _for_real_time_only(latest):
        return
    write_identity(log)
    lines = [*latest.engine["sources"], _newest_tick(log)]
    next_ms = next_watermark_us(log, latest) // 1000
    at_ms = latest.watermarks["evict_us"] // 1000
    notes = {"batchWatermarkMs": at_ms, "batchTimestampMs": 0, "conf": {}}
    for kind in ("offsets", "commits"):
        make_directory(log / kind)
    # Spark also reads the batch before the newest batch
    for batch, following_ms in ((latest.spark_batch - 1, at_ms), (latest.spark_batch, next_ms)):
        if batch < 0 or (log / "offsets" / str(batch)).exists():
            continue  # written by Spark
        commit = [_VERSION, json.dumps({"nextBatchWatermarkMs": following_ms})]
        offsets = [_VERSION, json.dumps(notes), *lines]
        # commits first: without offsets there is no batch, so after a crash both are written again
        for kind, content in (("commits", commit), ("offsets", offsets)):
            write_bytes(log / kind, str(batch), "\n".join(content).encode(), replace=True)


def check_batches_can_follow(latest: Manifest | None) -> None:
    """Raise `ConfigError` if Spark's own source cannot continue from the offsets in micro-batches."""
    if latest is not None and _for_real_time_only(latest):
        msg = (
            'the query has read format "rate" in real time, row by row, and Spark reads it second by '
            "second; go on with trigger(realTime=...), or begin with a new checkpointLocation."
        )
        raise ConfigError(msg)


def _for_real_time_only(latest: Manifest) -> bool:
    sources = latest.engine.get("sources") or []
    return any(f'"{REAL_TIME_ONLY}"' in offsets for offsets in sources)


def _newest_tick(log: Path) -> str:
    """Return the offset of headgate's tick, the last source, in the newest batch."""
    newest = newest_batch(log)
    if newest < 0:
        return "0"
    return (read_regular(log, f"offsets/{newest}") or b"").decode().rpartition("\n")[2]
