"""Carries Spark's own log of a query whose checkpoint lies on an object store.

Spark writes its log on the driver's disk. headgate's manifest has the parts that a restart on another
machine needs. So one commit covers both logs, and neither has a step that the other lacks.
"""

from __future__ import annotations

import contextlib
import re
import uuid
import zlib
from dataclasses import replace
from typing import Any

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import SOURCES, FileEntry, Manifest, file_name
from headgate.checkpoint.manifest_log import carried_file, texts_in_manifest
from headgate.checkpoint.spark_log import needed_files
from headgate.core.errors import CheckpointError
from headgate.core.input import shown

_TEXT_BYTES = 2048
"""Largest file of a source's log in the manifest; a larger file is an object of its own. Not tuned."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=-]{0,199}(/[A-Za-z0-9][A-Za-z0-9_.=-]{0,199}){0,7}")
"""Allowed names of a file of Spark's log, which is written below headgate's directory."""


class CarriedLog:
    """Copies Spark's log from the driver's disk into manifests, and restores it from there.

    `checkpoint`: on a store; its `path` is the directory of Spark's log.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._log = checkpoint.path
        self._texts: dict[str, str] = {}
        self._objects: dict[str, FileEntry] = {}

    def restore(self, latest: Manifest) -> None:
        """Write the log of the newest manifest to the driver's disk.

        Raises `CheckpointError`: the manifest has no log, or a file of the log is missing.
        """
        carried = latest.engine.get("spark")
        if not isinstance(carried, dict):
            where = self._checkpoint.location
            msg = (
                f"checkpoint {where} has no log of Spark's in its manifest: a checkpoint of a directory "
                "was copied there, and cannot go on in a store; begin with a new checkpointLocation."
            )
            raise CheckpointError(msg)
        for path in (*carried["texts"], *carried["objects"]):
            data = carried_file(self._checkpoint, latest, path)
            assert data is not None
            self._write(path, data)
        intent = self._checkpoint.read_intent(latest.step) or {}
        if intent.get("digest") == latest.digest:
            self._write(f"commits/{latest.spark_batch}", str(intent["spark_commit"]).encode())
        # the manifest goes beside the log, because a sink reads earlier outputs there
        name = f"manifests/{file_name(latest.step)}"
        self._write(f"headgate/{name}", self._checkpoint.files.get(name))

    def read_log(self, batch_id: int) -> None:
        """Read Spark's log up to a batch that Spark has begun; write larger files to the store."""
        texts: dict[str, str] = {}
        objects: dict[str, FileEntry] = {}
        for path in needed_files(self._log, batch_id):
            if path in self._objects:  # Spark never changes a file of its log
                objects[path] = self._objects[path]
                continue
            try:
                data = (self._log / path).read_bytes()
            except FileNotFoundError:
                continue  # Spark does not need a file that it has purged meanwhile
            text = _text(data)
            if text is not None and (len(data) <= _TEXT_BYTES or not path.startswith("sources/")):
                texts[path] = text
                continue
            name = uuid.uuid4().hex
            self._checkpoint.write_file(SOURCES, name, data)
            objects[path] = FileEntry(f"{SOURCES}/{name}", len(data), zlib.crc32(data))
        self._texts, self._objects = texts, objects

    def into(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the log that `read_log` read last."""
        names = {path: entry.name.partition("/")[2] for path, entry in self._objects.items()}
        engine = {**manifest.engine, "spark": {"texts": self._texts, "objects": names}}
        return replace(manifest, engine=engine, files=(*manifest.files, *self._objects.values()))

    def note_commit(self, latest: Manifest | None) -> None:
        """Note at a query's end that Spark committed the last batch, and so the sink has its output."""
        if latest is None or f"commits/{latest.spark_batch}" in texts_in_manifest(latest):
            return
        intent = self._checkpoint.read_intent(latest.step) or {}
        if intent.get("digest") != latest.digest:
            self._note(latest, intent)

    def note_delivered(self, latest: Manifest) -> None:
        """Note Spark's commit while the source is quiet; ignore a store that cannot be reached."""
        if f"commits/{latest.spark_batch}" not in texts_in_manifest(latest):
            with contextlib.suppress(CheckpointError):
                self._note(latest, {})

    def _note(self, latest: Manifest, intent: dict[str, Any]) -> None:
        """Write Spark's commit, if there is one, into the intent of the committed step."""
        commit = self._log / f"commits/{latest.spark_batch}"
        if commit.is_file():
            text = commit.read_text(encoding="utf-8")
            note = {"step": latest.step, "spark_commit": text, "digest": latest.digest}
            self._checkpoint.write_intent(latest.step, {**intent, **note})

    def _write(self, path: str, data: bytes) -> None:
        if not _PLAIN.fullmatch(path):
            msg = (
                f"the newest manifest of {self._checkpoint.location} names {shown(path, 80)} as a file "
                "of Spark's log, so the manifest is damaged; restore the checkpoint from a copy."
            )
            raise CheckpointError(msg)
        file = self._log / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
