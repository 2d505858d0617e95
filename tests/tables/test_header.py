"""When the header of a table is believed."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.core.errors import StateError
from headgate.tables.header import AT_COUNTS, AT_STATE, Geometry, Header
from headgate.tables.ports import EMPTY_TOKEN, TableLayout

LAYOUT = TableLayout(2, (0, 0))


def sealed() -> tuple[Header, int]:
    geometry = Geometry(LAYOUT.width)
    header = Header(np.zeros(geometry.total_bytes, dtype=np.uint8))
    header.write_geometry(geometry, LAYOUT, nonce=7)
    header.seal("1" * 32, EMPTY_TOKEN)
    return header, geometry.total_bytes


def test_a_sealed_header_is_believed_until_a_word_of_it_changes() -> None:
    header, size = sealed()
    assert header.check(LAYOUT, size) == Geometry(LAYOUT.width)
    header.words[AT_COUNTS + 4] += 1
    assert not header.sealed()
    with pytest.raises(StateError, match="header is damaged"):
        header.check(LAYOUT, size)


def test_a_table_that_is_being_written_is_not_believed() -> None:
    header, size = sealed()
    header.words[AT_STATE] += 1
    assert not header.sealed()
    with pytest.raises(StateError, match="dirty"):
        header.check(LAYOUT, size)


def test_a_table_with_other_keys_is_not_taken_for_one_of_the_same_width() -> None:
    header, size = sealed()
    other = TableLayout(1, (0, 0, 0))
    assert other.width == LAYOUT.width
    with pytest.raises(StateError, match="rebuild it"):
        header.check(other, size)
