"""When key groups write full sections."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoint.manifest import NO_STEP
from headgate.checkpoint.snapshots import LEAST, MOST, due, steps_between

GROUPS = 128


class Written:
    """The sections of some key groups, of which some change with each step."""

    def __init__(self, groups=GROUPS):
        self.steps, self.full_steps = [NO_STEP] * groups, [NO_STEP] * groups
        self.step = 0

    def serve(self, every, turn=1, touched=None):
        found = due(self.step, self.steps, self.full_steps, every, turn)
        for group in range(len(self.steps)) if touched is None else touched:
            self.steps[group] = self.step
        for group in found:
            self.steps[group] = self.full_steps[group] = self.step
        self.step += 1
        return found


def test_about_as_many_are_due_in_each_step():
    written = Written()
    written.serve(16)
    for _ in range(3):
        found = [written.serve(16) for _ in range(16)]
        sizes = [len(groups) for groups in found]
        assert max(sizes) <= 9
        assert sizes.count(0) <= 1, "the first ones took turns"
        assert set(group for groups in found for group in groups) == set(range(GROUPS))


def test_the_steps_between_two_turns_write_none():
    written = Written()
    found = [written.serve(128, turn=4) for _ in range(3 * 128)]
    assert all(3 <= len(groups) <= 5 for groups in found[4::4])
    assert not any(found[1::4] + found[2::4] + found[3::4])
    # each group once in about as many steps
    times = Counter(group for groups in found[128:] for group in groups)
    assert set(times.values()) <= {1, 2}
    assert len(times) == GROUPS


def test_a_group_that_has_not_changed_since_writes_none():
    written = Written(4)
    for _ in range(20):
        written.serve(4, touched=[1])
    assert written.full_steps[1] >= 15
    found = [written.serve(4, touched=[]) for _ in range(20)]
    # its last change was behind its last full section
    assert [groups for groups in found if groups] == [[1]]


def test_a_group_that_is_due_is_not_forgotten_while_nobody_touches_it():
    written = Written(4)
    written.serve(8)
    found = [written.serve(8, touched=[]) for _ in range(8)]
    assert sorted(group for groups in found for group in groups) == [0, 1, 2, 3]


def test_when_more_are_due_those_that_wait_longest_come_first():
    written = Written()
    for _ in range(256):
        written.serve(128)
    ages = list(written.full_steps)
    found = written.serve(32)
    assert len(found) == GROUPS // 32 + 1
    assert max(ages[group] for group in found) <= sorted(ages)[len(found) - 1]


@given(st.lists(st.sampled_from([32, 64, 128]), min_size=4, max_size=4))
def test_no_group_waits_much_longer_than_the_longest_of_what_was_asked(asked):
    written = Written(16)
    for every in asked:
        for _ in range(100):
            written.serve(every, turn=every // LEAST)
            assert written.step - min(written.full_steps) <= 1 + 128 + 2 * 4 * LEAST // 2


def test_so_many_steps_that_changes_are_half_of_what_is_whole_at_the_most():
    assert steps_between(1_000_000, 1_000_000, GROUPS) == LEAST
    assert steps_between(64_000, 1_000, GROUPS) == LEAST
    assert steps_between(128_000, 1_000, GROUPS) == 64
    assert steps_between(255_000, 1_000, GROUPS) == 64
    assert steps_between(256_000, 1_000, GROUPS) == MOST
    assert steps_between(1_000, 25, GROUPS) == MOST, "a restart reads 3,200 rows of changes"
    assert steps_between(1_000, 500, GROUPS) == LEAST
    assert steps_between(10**9, 0.0, GROUPS) == MOST


def test_more_key_groups_leave_room_for_fewer_manifests():
    assert steps_between(10**9, 1.0, 256) == 64
    assert steps_between(10**9, 1.0, 1024) == LEAST
    assert steps_between(10**9, 1.0, 16) == MOST
