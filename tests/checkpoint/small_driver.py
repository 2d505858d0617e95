"""A small driver of a checkpoint, for the tests beside this file."""

from __future__ import annotations

import zlib
from pathlib import Path

from headgate.checkpoint import changelog
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import BlobEntry, FileEntry, Heads, Manifest, SectionEntry
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN
from headgate_lab.testing.stores import LAYOUT, apply_changes, contents, fresh_token

IDENTITY = {"keys": ["page"], "groups": 4, "layout": {"width": 5}}
GROUPS = 4
OPERATOR = "count"


class Driver:
    """A small driver: one operator of four groups, three of which change in each step."""

    def __init__(self, path: Path, *, every: int = 5, inline: bool = True) -> None:
        self.path = path
        self.checkpoint = Checkpoint(path)
        self.job = self.checkpoint.open(IDENTITY)
        self.store = HeapStore(LAYOUT)
        self.every = every
        self.inline = inline
        self.last = self.checkpoint.latest()

    def step(self) -> Manifest:
        number = 0 if self.last is None else self.last.step + 1
        heads = Heads((EMPTY_TOKEN,) * GROUPS, (-1,) * GROUPS)
        if self.last is not None:
            heads = self.last.heads[OPERATOR]
        tokens, steps, sections = list(heads.tokens), list(heads.steps), {}
        for group in range(GROUPS):
            full = (number + group) % self.every == 0
            if group == number % GROUPS and not full:
                continue
            chain = self.checkpoint.chain(OPERATOR, group, heads.steps[group])
            table = self.store.acquire(group, tokens[group], chain)
            table.begin()
            apply_changes(table, [(f"{number % 3}", group, number + 1)])
            tokens[group], steps[group] = fresh_token(), number
            sections[group] = table.section(tokens[group], full=full)
            self.store.commit(group, tokens[group])
            self.store.release(group)
        blob, refs = changelog.encode(sections)
        name = f"{OPERATOR}.{fresh_token()}.arrow"
        if not self.inline:
            self.checkpoint.write_file("changelog", name, blob)
        output = f"{fresh_token()}.out"
        self.checkpoint.write_file("output", output, b"rows of %d" % number)
        self.checkpoint.write_intent(number, {"step": number})
        manifest = Manifest(
            job=self.job,
            step=number,
            spark_batch=number + 3,
            epoch=1,
            assignments={OPERATOR: {"slots": 2, "slot_of": [0, 1, 0, 1]}},
            watermarks={"late_us": None, "evict_us": number},
            heads={OPERATOR: Heads(tuple(tokens), tuple(steps))},
            sections={
                OPERATOR: {
                    group: SectionEntry(0, refs[group], heads.steps[group]) for group in sections
                }
            },
            blobs=(
                BlobEntry(
                    None if self.inline else name,
                    "blob" if self.inline else None,
                    len(blob),
                    zlib.crc32(blob),
                ),
            ),
            files=(FileEntry(f"output/{output}", 8 + len(str(number)), crc(number)),),
            engine={"spark": {"x": 1}},
            previous=self.last.digest if self.last else None,
            payloads={"blob": blob, "out": b"\n\n"} if self.inline else {},
        )
        self.last = self.checkpoint.commit(manifest)
        return self.last

    def state(self, store: HeapStore | None = None) -> list[dict]:
        assert self.last is not None
        heads = self.last.heads[OPERATOR]
        store = HeapStore(LAYOUT) if store is None else store
        found = []
        for group in range(GROUPS):
            chain = Checkpoint(self.path).chain(OPERATOR, group, heads.steps[group])
            found.append(contents(store.acquire(group, heads.tokens[group], chain)))
            store.release(group)
        return found


def crc(number: int) -> int:
    return zlib.crc32(b"rows of %d" % number)
