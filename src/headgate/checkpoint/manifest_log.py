"""Reads the files of Spark's own log in a manifest; `headgate.spark.step.carried` writes them."""

from __future__ import annotations

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import SOURCES, Manifest


def offsets_text(latest: Manifest, batch: int) -> str | None:
    """Return Spark's offset log of a batch; None if the manifest does not have it."""
    return texts_in_manifest(latest).get(f"offsets/{batch}")


def committed_by_spark(checkpoint: Checkpoint, latest: Manifest) -> bool:
    """Return whether Spark is known to have committed the last batch, so that its output is delivered."""
    intent = checkpoint.read_intent(latest.step) or {}
    return (
        f"commits/{latest.spark_batch}" in texts_in_manifest(latest)
        or intent.get("digest") == latest.digest
    )


def carried_file(checkpoint: Checkpoint, latest: Manifest, path: str) -> bytes | None:
    """Return a file of Spark's log, from the manifest or from a file that the manifest names; or None."""
    carried = latest.engine.get("spark", {})
    text, name = carried.get("texts", {}).get(path), carried.get("objects", {}).get(path)
    if text is not None:
        return str(text).encode()
    if name is None:
        return None
    files = {file.name: file for file in latest.files}
    entry = files[f"{SOURCES}/{name}"]
    return checkpoint.read_file(SOURCES, name, length=entry.length, crc32=entry.crc32)


def texts_in_manifest(latest: Manifest) -> dict[str, str]:
    """Return the files of Spark's log that are inside the manifest, by path."""
    texts: dict[str, str] = latest.engine.get("spark", {}).get("texts", {})
    return texts
