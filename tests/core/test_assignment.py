"""Laws of assignments: every group has one slot, loads are even, little moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.assignment import Assignment, rescale, spread
from headgate.core.errors import ConfigError


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    groups = draw(st.integers(1, 200))
    slots = draw(st.integers(1, groups))
    slot_of = draw(st.lists(st.integers(0, slots - 1), min_size=groups, max_size=groups))
    return Assignment(tuple(slot_of), slots, draw(st.integers(0, 9)))


def loads(assignment: Assignment) -> list[int]:
    held = Counter(assignment.slot_of)
    return [held[slot] for slot in range(assignment.slots)]


@given(groups=st.integers(1, 300), data=st.data())
def test_a_fresh_assignment_is_balanced_within_one_and_contiguous(
    groups: int, data: st.DataObject
) -> None:
    slots = data.draw(st.integers(1, groups))
    made = spread(slots, groups)
    assert max(loads(made)) - min(loads(made)) <= 1
    assert list(made.slot_of) == sorted(made.slot_of)
    assert made.epoch == 0


@given(current=assignments(), data=st.data())
def test_every_group_is_owned_once_and_no_slot_is_over_its_share(
    current: Assignment, data: st.DataObject
) -> None:
    slots = data.draw(st.integers(1, current.key_groups))
    new = rescale(current, slots)
    assert max(loads(new)) - min(loads(new)) <= 1
    owned = sorted(g for slot in range(slots) for g in new.groups_of(slot))
    assert owned == list(range(current.key_groups))
    assert (new.slots, new.epoch) == (slots, current.epoch + 1)


@given(current=assignments(), data=st.data())
def test_no_rescale_moves_more_groups_than_balance_needs(
    current: Assignment, data: st.DataObject
) -> None:
    slots = data.draw(st.integers(1, current.key_groups))
    base, larger = divmod(current.key_groups, slots)
    held = Counter(s for s in current.slot_of if s < slots)
    fullest = sorted((held[s] for s in range(slots)), reverse=True)
    stays = sum(min(n, base + (rank < larger)) for rank, n in enumerate(fullest))
    assert len(current.moved(rescale(current, slots))) == current.key_groups - stays


@given(current=assignments())
def test_a_balanced_assignment_is_left_as_it_is(current: Assignment) -> None:
    balanced = rescale(current, current.slots)
    assert rescale(balanced, current.slots).slot_of == balanced.slot_of


def test_8_to_12_slots_of_128_groups_moves_exactly_40() -> None:
    before = spread(8, 128)
    assert len(before.moved(rescale(before, 12))) == 40


@given(current=assignments(), data=st.data())
def test_a_remap_moves_what_it_names_and_nothing_else(
    current: Assignment, data: st.DataObject
) -> None:
    group = st.integers(0, current.key_groups - 1)
    changes = data.draw(st.dictionaries(group, st.integers(0, current.slots - 1)))
    new = current.remap(changes)
    assert set(current.moved(new)) <= set(changes)
    assert all(new.slot_of[g] == s for g, s in changes.items())
    assert new.epoch == current.epoch + 1


def test_a_remap_to_a_slot_that_does_not_exist_says_which_do() -> None:
    with pytest.raises(ConfigError, match=r"key group 3 is assigned to slot 4.*use 0 to 3"):
        spread(4, 8).remap({3: 4})


def test_a_remap_of_a_group_that_does_not_exist_says_which_do() -> None:
    with pytest.raises(ConfigError, match="key group 8 does not exist; use 0 to 7"):
        spread(4, 8).remap({8: 0})


@pytest.mark.parametrize("group", [-1, -8])
def test_a_negative_group_is_no_group(group: int) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        spread(4, 8).remap({group: 0})


@pytest.mark.parametrize("slots", [0, -1, 9])
def test_slots_outside_1_to_the_key_groups_are_refused(slots: int) -> None:
    for make in (lambda: spread(slots, 8), lambda: rescale(spread(2, 8), slots)):
        with pytest.raises(ConfigError, match=rf"slots={slots} is out of range; use 1 to 8"):
            make()


def test_an_assignment_that_leaves_a_group_without_a_slot_is_refused() -> None:
    with pytest.raises(ConfigError, match="key group 1 is assigned to slot -1"):
        Assignment((0, -1), 2)
