"""When the header of a table is believed."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.core.errors import StateError
from headgate.tables.header import (
    AT_CAPACITY,
    AT_COUNTS,
    AT_HEAP,
    AT_INDEX,
    AT_STATE,
    AT_STRINGS,
    Geometry,
    Header,
)
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


@pytest.mark.parametrize(
    ("words", "is_good"),
    [
        ({AT_STRINGS: 96, AT_HEAP: 0}, False),
        ({AT_STRINGS: 95, AT_HEAP: 8}, True),
        ({AT_STRINGS: 97, AT_HEAP: -8}, False),
        ({AT_STRINGS: 0, AT_HEAP: 768}, False),
        ({AT_STRINGS: 1, AT_HEAP: 760}, True),
        ({AT_CAPACITY: 4, AT_HEAP: 512 + 60 * 40}, False),
        ({AT_CAPACITY: 8, AT_HEAP: 512 + 56 * 40}, True),
        ({AT_CAPACITY: 24, AT_HEAP: 512 + 40 * 40}, False),
        ({AT_INDEX: 4, AT_HEAP: 512 + 60 * 8}, False),
        ({AT_INDEX: 8, AT_HEAP: 512 + 56 * 8}, True),
        ({AT_INDEX: 48, AT_HEAP: 512 + 16 * 8}, False),
        ({AT_INDEX: 0, AT_HEAP: 512 + 64 * 8}, False),
    ],
)
def test_parts_that_fill_the_buffer_are_believed_only_if_each_makes_sense(
    words: dict[int, int], is_good: bool
) -> None:
    """With a checksum that is right, and sizes that add up to the buffer's."""
    header, size = sealed()
    for at, value in words.items():
        header.words[at] = value
    header.seal("1" * 32, EMPTY_TOKEN)
    assert header.geometry().total_bytes == size
    if is_good:
        assert header.check(LAYOUT, size) == header.geometry()
    else:
        with pytest.raises(StateError, match="header is damaged"):
            header.check(LAYOUT, size)
