"""Undoing a step in which the index of strings grew leaves every older string where it was."""

from __future__ import annotations

import random

import numpy as np

from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN, I64, U8, TableLayout


def _packed(texts: list[str]) -> tuple[I64, U8]:
    encoded = [text.encode() for text in texts]
    offsets = np.array([0, *np.cumsum([len(x) for x in encoded])], dtype=np.int64)
    return offsets, np.frombuffer(b"".join(encoded), dtype=np.uint8)


def test_a_string_keeps_its_id_when_a_step_that_grew_the_index_is_undone() -> None:
    # a cluster that wraps around the end of the old index once put newer strings before older ones;
    # it takes some hundred tries to meet one
    for seed in range(300):
        chance = random.Random(seed)
        known = chance.randint(20, 31)
        table = HeapStore(TableLayout(key_words=2, fresh=(0, 0))).acquire(
            0, EMPTY_TOKEN, lambda _: []
        )
        table.begin()
        old = [f"k{chance.random()}" for _ in range(known)]
        ids = table.intern(*_packed(old))
        table.commit("a" * 32)
        table.begin()
        added = chance.randint(32 - known, 60)
        table.intern(*_packed([f"n{chance.random()}" for _ in range(added)]))
        table.commit("b" * 32)
        assert table.can_roll_back()
        table.roll_back()
        table.begin()
        assert table.intern(*_packed(old)).tolist() == ids.tolist(), seed
