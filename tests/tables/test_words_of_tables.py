"""Tests that the words of a table's header lie apart, and that a failed move leaves the table alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.tables import arena_file, header
from headgate.tables.arena_file import ArenaFile
from headgate.tables.room import MAKE_ROOM


def test_the_words_of_a_header_are_those_of_tables_that_were_written_before() -> None:
    words = {name: vars(header)[name] for name in vars(header) if name.startswith("AT_")}
    assert words == {
        "AT_MAGIC": 0, "AT_VERSION": 1, "AT_WIDTH": 2, "AT_KEY_WORDS": 3, "AT_CAPACITY": 4,
        "AT_INDEX": 5, "AT_STRINGS": 6, "AT_HEAP": 7, "AT_NONCE": 8, "AT_STATE": 9, "AT_TOKEN": 10,
        "AT_PREVIOUS": 12, "AT_COUNTS": 16, "AT_BEGUN": 24, "AT_CRC": 63,
    }  # fmt: skip
    assert (header.COUNT_WORDS, header.HEADER_WORDS, header.HEADER_BYTES) == (7, 64, 512)
    assert header.MAGIC.to_bytes(8, "little") == b"headgate"
    assert (header.VERSION, header.CLEAN, header.DIRTY) == (1, 1, 2)


def test_parts_of_a_table_lie_one_behind_the_other() -> None:
    made = header.Geometry(5, 8, 16, 9, 64)
    at = [made.rows_at, made.index_at, made.offsets_at]
    assert at == [512, 512 + 8 * 5 * 8, 512 + 8 * 5 * 8 + 16 * 8]


@pytest.mark.parametrize("fails", ["write", "publish", ""])
@pytest.mark.parametrize("current", [True, False])
def test_a_table_is_moved_by_a_copy_that_is_whole(
    monkeypatch: pytest.MonkeyPatch, fails: str, current: bool
) -> None:
    did: list[Any] = []

    def act(name: str) -> Any:
        def call(*given: Any) -> None:
            did.append((name, *given))
            if name == fails:
                raise OSError(28, "No space left")

        return call

    copy = SimpleNamespace(
        _write=act("write"), publish=act("publish"), discard=act("discard"), drop=act("copy drops")
    )

    def create(*given: Any) -> Any:
        did.append(("create", *given))
        return copy

    monkeypatch.setattr(ArenaFile, "create", create)
    monkeypatch.setattr(arena_file, "empty_file", act("empty"))
    file: Any = SimpleNamespace(
        buffer=SimpleNamespace(size=4096, data="data"), nonce=7, is_current=lambda: current,
        _unlink=act("unlink"), drop=act("drop"),
    )  # fmt: skip
    created = ("create", (str(Path("to")),), 4096, 7, MAKE_ROOM)
    begun = [created, ("write", "data")]
    if fails:
        with pytest.raises(OSError, match="No space left"):
            ArenaFile.move(file, "to")
        assert did == [*begun, *([("publish",)] if fails == "publish" else []), ("discard",)]
        return
    ArenaFile.move(file, "to")
    removed = [("unlink",), ("empty", file.buffer)] if current else []
    assert did == [*begun, ("publish",), ("copy drops",), *removed, ("drop",)]
