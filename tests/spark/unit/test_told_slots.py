"""A slot that is told only what concerns it does as one that is told all."""

from __future__ import annotations

import dataclasses
import pickle
import random
from typing import Any

import pyarrow as pa
import pytest

from headgate.core.assignment import Assignment
from headgate.spark.worker.facts import SlotFacts


class Files:
    """A checkpoint that says what it is asked for; a file's rows bear its name."""

    def chain(self, *asked: Any) -> Any:
        return asked

    def read_file(self, kind: str, name: str, *, crc32: int) -> bytes:
        assert (kind, crc32) == ("backlog", int(name))
        rows = pa.table({"row": [f"{name}-{n}" for n in range(40)]})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        return sink.getvalue().to_pybytes()


def drawn(draw: random.Random) -> tuple[SlotFacts, Assignment]:
    """Return what the slots of an operator are told, whatever may be in it."""
    groups = draw.randint(1, 12)
    slots = draw.randint(1, min(groups, 4))
    slot_of = tuple(draw.randrange(slots) for _ in range(groups))
    split = {}
    for group in range(groups):
        others = draw.sample([s for s in range(slots) if s != slot_of[group]], slots - 1)
        if others and draw.random() < 0.4:
            split[group] = (slot_of[group], *others[: draw.randint(1, len(others))])
    held = Assignment(slot_of, slots, 0, split)
    keys = [held.share_key(g, n) for g in range(groups) for n in range(len(held.shares_of(g)))]
    names = [str(n) for n in range(4)]
    unused: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(SlotFacts))
    told = SlotFacts(**unused | {
        "step": 7,
        "slot_of": slot_of,
        "held": [g for g in range(groups) if draw.random() < 0.3],
        "snapshots": [g for g in range(groups) if draw.random() < 0.3],
        "tokens": [f"{g:032x}" for g in range(groups)],
        "steps": [draw.randint(-1, 6) for _ in range(groups)],
        "emitted_us": [draw.randrange(100) for _ in range(groups)],
        "due_us": [draw.randrange(100) for _ in range(groups)],
        "backlog": {
            str(key): [[draw.choice(names), draw.randrange(20), draw.randint(1, 20), 0.0]]
            for key in keys
            if draw.random() < 0.5
        },
        "waiting_crc32": {name: int(name) for name in names},
        "quotas": draw.choice([None, [draw.randrange(100) for _ in range(slots)]]),
        "split": {str(g): shares for g, shares in split.items()},
        # of groups that were split until now, too
        "stands_us": {
            str(g): draw.randrange(100)
            for g in range(groups)
            if g in split or draw.random() < 0.3
        },
        "slots": 0,
        "key_groups": 0,
    })  # fmt: skip
    return told, held


@pytest.mark.parametrize("seed", range(60))
def test_a_slot_does_the_same_whether_it_is_told_all_or_its_part(seed: int) -> None:
    told, held = drawn(random.Random(seed))
    files: Any = Files()
    shared, parts = pickle.loads(pickle.dumps(told.of_slots(held.slots)))
    for slot, fields in enumerate(parts):
        part = dataclasses.replace(shared, **fields)
        whole, own = (one.request(slot, "token", 5, files, "op") for one in (told, part))
        for field in dataclasses.fields(whole):
            if field.name != "chain":
                assert getattr(own, field.name) == getattr(whole, field.name), field.name
        for group in whole.groups:
            assert own.chain(group) == whole.chain(group)
        assert part.waiting(slot, files) == told.waiting(slot, files)
        assert part.shares_at(slot) == told.shares_at(slot)
        assert part.slot_count == held.slots


def test_what_all_slots_are_told_does_not_grow_with_their_number() -> None:
    groups = 512

    def size(slots: int) -> int:
        told, _ = drawn(random.Random(1))
        whole = dataclasses.replace(
            told,
            slot_of=[g % slots for g in range(groups)],
            tokens=[f"{g:032x}" for g in range(groups)],
            steps=[0] * groups,
            emitted_us=[0] * groups,
            due_us=[0] * groups,
            held=[], snapshots=[], backlog={}, quotas=[1] * slots, split={}, stands_us={},
        )  # fmt: skip
        return sum(len(pickle.dumps(part)) for part in whole.of_slots(slots)[1])

    assert size(64) < 3 * size(2)
