from __future__ import annotations

import pytest

from headgate.core.assignment import Assignment, rescale, spread
from headgate.core.errors import ConfigError
from headgate.migration.plan import Plan, Subscale, divide, schedule, uniform

PAPER = [(8, 12, 128, 111, 14, 40), (25, 30, 256, 229, 45, 40), (8, 9, 64, 28, 7, 7)]


def moves(old: Assignment, new: Assignment) -> dict[int, tuple[int, int]]:
    return {g: (old.slot_of[g], new.slot_of[g]) for g in old.moved(new)}


@pytest.mark.parametrize(("old", "new", "groups", "moved", "pairs", "fewest"), PAPER)
def test_uniform_moves_the_groups_and_pairs_that_drrs_reports(
    old: int, new: int, groups: int, moved: int, pairs: int, fewest: int
) -> None:
    before = spread(old, groups)
    plan = Plan(before, uniform(before, new), ("h",) * new)
    assert (len(plan.moved), len(plan.pairs)) == (moved, pairs)
    assert len(divide(moves(before, plan.new))) == pairs
    assert len(before.moved(rescale(before, new))) == fewest


def test_uniform_gives_flinks_ranges_and_the_next_epoch() -> None:
    new = uniform(Assignment((2, 1, 0, 2, 1, 0, 0), 3, epoch=4), 3)
    assert new == Assignment((0, 0, 0, 1, 1, 2, 2), 3, epoch=5)
    for i in range(3):
        owned = new.groups_of(i)
        assert (owned[0], owned[-1]) == (-(-i * 7 // 3), ((i + 1) * 7 - 1) // 3)


def test_a_large_pair_is_divided_as_equally_as_possible_in_order() -> None:
    subscales = divide({g: (0, 1) for g in range(23)}, groups_min=7)
    assert [s.groups for s in subscales] == [tuple(range(11)), tuple(range(11, 23))]


def test_no_moves_give_no_subscales() -> None:
    assert divide({}) == ()


def test_a_plan_knows_which_groups_change_their_host() -> None:
    plan = Plan(Assignment((0, 0, 1), 2), Assignment((1, 2, 1), 3), ("a", "a", "b"))
    assert plan.moved == (0, 1)
    assert plan.across == (1,)
    assert plan.pairs == {(0, 1): (0,), (0, 2): (1,)}


def test_a_slot_without_host_is_refused() -> None:
    with pytest.raises(ConfigError, match="slot 1 has no host"):
        Plan(Assignment((0, 0), 1), Assignment((0, 1), 2), ("a",))


def test_another_number_of_key_groups_is_refused() -> None:
    with pytest.raises(ConfigError, match="assignment of 3 key groups cannot follow one of 2"):
        Plan(Assignment((0, 0), 1), Assignment((0, 0, 0), 1), ("a",))


def test_the_slot_that_holds_least_is_served_first() -> None:
    waiting = [Subscale((0,), 0, 1), Subscale((1,), 0, 2), Subscale((2,), 0, 3)]
    assert schedule(waiting, (), (9, 5, 0, 3), "abcd", per_host=2) == (1, 2)


def test_groups_on_their_way_count_as_held() -> None:
    waiting = [Subscale((0, 1), 0, 1), Subscale((2,), 0, 1), Subscale((3,), 0, 2)]
    assert schedule(waiting, (), (9, 0, 1), "abc", per_host=9) == (0, 2, 1)


def test_of_equal_slots_the_pair_with_more_waiting_goes_first() -> None:
    waiting = [Subscale((0,), 0, 2), Subscale((1,), 1, 2), Subscale((2,), 1, 2)]
    assert schedule(waiting, (), (5, 5, 0), "abc", per_host=1) == (1,)


def test_a_host_takes_part_in_no_more_subscales_than_allowed() -> None:
    waiting = [Subscale((i,), 0, i) for i in range(1, 6)]
    running = (Subscale((9,), 0, 6),)
    assert len(schedule(waiting, running, (9,) * 7, "abcdefg", per_host=2)) == 1
    assert schedule(waiting, running, (9,) * 7, "abcdefg", per_host=1) == ()


def test_a_move_within_a_host_counts_once_for_it() -> None:
    waiting = [Subscale((0,), 0, 1), Subscale((1,), 0, 1)]
    assert len(schedule(waiting, (), (2, 0), "aa", per_host=2)) == 2


def test_a_host_takes_part_in_as_many_subscales_as_the_least_limit_of_its_slots() -> None:
    waiting = [Subscale((g,), 0, 1 + g % 2) for g in range(6)]
    hosts = ("a", "b", "b")
    assert len(schedule(waiting, (), (6, 0, 0), hosts, (4, 4, 4))) == 4
    assert len(schedule(waiting, (), (6, 0, 0), hosts, (4, 4, 1))) == 1


def test_a_subscale_that_started_no_longer_counts_as_waiting() -> None:
    pairs = [(1, 2), (0, 2), (0, 2), (0, 2), (1, 2)]
    waiting = [Subscale((group,), *pair) for group, pair in enumerate(pairs)]
    assert schedule(waiting, (), (5, 5, 0), "abc", per_host=9) == (1, 0, 2, 3, 4)


def test_groups_of_a_running_subscale_count_as_held() -> None:
    waiting = [Subscale((4,), 0, 1), Subscale((5,), 0, 2)]
    running = [Subscale((1, 2, 3), 0, 1)]
    assert schedule(waiting, running, (9, 0, 2), "abc", per_host=9) == (1, 0)
