"""Checkpoints made by hand, without an engine."""

from __future__ import annotations

import uuid
import zlib
from pathlib import Path
from typing import Any

from headgate.checkpoint import changelog
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import BlobEntry, Heads, Manifest, SectionEntry
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN
from headgate_lab.testing.stores import LAYOUT, apply_changes

OPERATOR = "aggregate-0"


def of_two_steps(path: Path, migration: dict[str, Any] | None = None) -> Path:
    """Three key groups, of which group 0 has state; a waiting row; Spark committed step 0 only."""
    moving = {} if migration is None else {"migration": migration}
    checkpoint = Checkpoint(path)
    job = checkpoint.open({"key_groups": 3})
    store = HeapStore(LAYOUT)
    token, previous = EMPTY_TOKEN, None
    for step in range(2):
        table = store.acquire(0, token, checkpoint.chain(OPERATOR, 0, step - 1))
        table.begin()
        apply_changes(table, [("a", 0, step + 1)])
        token = uuid.uuid4().hex
        section = table.section(token, full=False)
        store.commit(0, token)
        store.release(0)
        blob, refs = changelog.encode({0: section})
        waiting = {"0": [["segment", 0, 7, 1]]}
        checkpoint.write_intent(step, {"step": step})
        previous = checkpoint.commit(
            Manifest(
                job=job,
                step=step,
                spark_batch=step,
                epoch=0,
                assignments={OPERATOR: {"slots": 1, "slot_of": [0, 0, 0]}},
                watermarks={"late_us": 0, "evict_us": 5},
                heads={OPERATOR: Heads((token, EMPTY_TOKEN, EMPTY_TOKEN), (step, -1, -1))},
                sections={OPERATOR: {0: SectionEntry(0, refs[0], step - 1)}},
                blobs=(BlobEntry(None, "blob", len(blob), zlib.crc32(blob)),),
                engine={"operators": {OPERATOR: {"rows": [1, 0, 0], "backlog": waiting, **moving}}},
                previous=None if previous is None else previous.digest,
                payloads={"blob": blob},
            )
        )
    (path / "metadata").write_text('{"id":"0"}')
    for name, text in {
        "offsets/0": "v1\n{}\n1",
        "offsets/1": "v1\n{}\n2",
        "commits/0": "v1\n{}",
    }.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path
