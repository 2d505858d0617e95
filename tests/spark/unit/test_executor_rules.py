"""What an engine owes the migration protocol (`headgate.migration.instructions`), rule by rule."""

from __future__ import annotations

import pytest
from carried import Job

from headgate.migration.events import Installed
from headgate.migration.instructions import Hold, Install, Prefetch, Release, Route

HERE, THERE = "a", "b"
GROUP = 0
"""Of slot 0, on host a; slots 2 and 3 are on host b."""


@pytest.fixture
def migration():
    """A migration executor that knows its hosts and has begun with nothing else."""
    job = Job("subscale")
    job.migration._first.clear()
    job.migration._hosts = job.hosts
    return job.migration


def told(migration, *instructions):
    migration._carry_out_all(instructions)


def test_an_instruction_older_than_one_that_a_group_has_seen_changes_nothing(migration):
    told(migration, Hold(7, (GROUP,)))
    told(migration, Route(3, (GROUP,), 2, 200), Prefetch(4, (GROUP,), THERE))
    assert migration._durable.pending == {GROUP: Hold(7, (GROUP,))}
    assert migration._transfers == {}
    # of another group it is the first
    told(migration, Hold(3, (1,)))
    assert migration._durable.pending[1] == Hold(3, (1,))


def test_a_route_that_is_given_again_once_it_is_in_force_changes_nothing(migration):
    told(migration, Route(7, (GROUP,), 2, 200))
    migration._come_into_force(GROUP)
    told(migration, Install(8, (GROUP,), THERE, resume=True))
    migration._durable.fence[GROUP] = 7  # as if the install had not been heard of
    told(migration, Route(7, (GROUP,), 2, 200))
    assert migration._durable.pending == {}
    assert list(migration._transfers) == [(THERE, GROUP)]


def test_a_group_that_goes_on_to_another_slot_of_the_host_is_still_not_there(migration):
    told(migration, Route(7, (GROUP,), 2, 200))
    migration._come_into_force(GROUP)
    assert migration.unserved() == {GROUP}
    told(migration, Route(8, (GROUP,), 3, 200))  # on the same host
    migration._come_into_force(GROUP)
    assert migration.unserved() == {GROUP}


def test_a_group_that_is_routed_on_is_no_longer_installed_where_it_was(migration):
    told(migration, Route(7, (GROUP,), 2, 200))
    migration._come_into_force(GROUP)
    told(migration, Install(8, (GROUP,), THERE, resume=True))
    assert (THERE, GROUP) in migration._transfers
    told(migration, Route(9, (GROUP,), 0, 200))
    migration._come_into_force(GROUP)
    assert migration._transfers == {}


def test_an_install_is_not_put_back_to_a_prefetch(migration):
    install = Install(7, (GROUP,), THERE, resume=True)
    told(migration, install)
    told(migration, Prefetch(8, (GROUP,), THERE))
    assert migration._transfers[THERE, GROUP] == install


def test_a_copy_that_is_there_too_late_is_not_served_from(migration):
    told(migration, Route(7, (GROUP,), 2, 200))
    migration._come_into_force(GROUP)
    install = Install(8, (GROUP,), HERE, resume=True)  # of an owner that it has no more
    told(migration, install)
    migration._transfers[HERE, GROUP] = install
    migration._activate(HERE, GROUP, install)
    assert migration.unserved() == {GROUP}
    assert not migration._told


@pytest.mark.parametrize("resume", [True, False])
def test_what_is_installed_is_served_at_once_unless_it_waits_for_the_others(migration, resume):
    told(migration, Hold(5, (GROUP,)))
    migration._come_into_force(GROUP)
    told(migration, Route(6, (GROUP,), 2, 200))
    migration._come_into_force(GROUP)
    install = Install(7, (GROUP,), THERE, resume=resume)
    told(migration, install)
    migration._activate(THERE, GROUP, install)
    assert migration.unserved() == (frozenset() if resume else {GROUP})
    assert list(migration._told) == [Installed(7, GROUP, THERE)]


def test_a_release_ends_what_was_to_come_into_force_for_a_group(migration):
    told(migration, Hold(5, (GROUP,)))
    told(migration, Release(6, (GROUP,)))
    assert migration._durable.pending == {}


def test_a_copy_that_is_wanted_again_is_not_dropped(migration):
    told(migration, Prefetch(5, (GROUP,), THERE))
    told(migration, Release(6, (GROUP,)))
    assert migration._drops == {(THERE, GROUP): 6}
    told(migration, Prefetch(7, (GROUP,), THERE))
    assert migration._drops == {}
