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
def carrier():
    """A carrier that knows its hosts and has begun with nothing else."""
    job = Job("subscale")
    job.carrier._first.clear()
    job.carrier._hosts = job.hosts
    return job.carrier


def told(carrier, *instructions):
    carrier._carry_out_all(instructions)


def test_an_instruction_older_than_one_that_a_group_has_seen_changes_nothing(carrier):
    told(carrier, Hold(7, (GROUP,)))
    told(carrier, Route(3, (GROUP,), 2, 200), Prefetch(4, (GROUP,), THERE))
    assert carrier._durable.pending == {GROUP: Hold(7, (GROUP,))}
    assert carrier._transfers == {}
    # of another group it is the first
    told(carrier, Hold(3, (1,)))
    assert carrier._durable.pending[1] == Hold(3, (1,))


def test_a_route_that_is_given_again_once_it_is_in_force_changes_nothing(carrier):
    told(carrier, Route(7, (GROUP,), 2, 200))
    carrier._come_into_force(GROUP)
    told(carrier, Install(8, (GROUP,), THERE, resume=True))
    carrier._durable.fence[GROUP] = 7  # as if the install had not been heard of
    told(carrier, Route(7, (GROUP,), 2, 200))
    assert carrier._durable.pending == {}
    assert list(carrier._transfers) == [(THERE, GROUP)]


def test_a_group_that_goes_on_to_another_slot_of_the_host_is_still_not_there(carrier):
    told(carrier, Route(7, (GROUP,), 2, 200))
    carrier._come_into_force(GROUP)
    assert carrier.unserved() == {GROUP}
    told(carrier, Route(8, (GROUP,), 3, 200))  # on the same host
    carrier._come_into_force(GROUP)
    assert carrier.unserved() == {GROUP}


def test_a_group_that_is_routed_on_is_no_longer_installed_where_it_was(carrier):
    told(carrier, Route(7, (GROUP,), 2, 200))
    carrier._come_into_force(GROUP)
    told(carrier, Install(8, (GROUP,), THERE, resume=True))
    assert (THERE, GROUP) in carrier._transfers
    told(carrier, Route(9, (GROUP,), 0, 200))
    carrier._come_into_force(GROUP)
    assert carrier._transfers == {}


def test_an_install_is_not_put_back_to_a_prefetch(carrier):
    install = Install(7, (GROUP,), THERE, resume=True)
    told(carrier, install)
    told(carrier, Prefetch(8, (GROUP,), THERE))
    assert carrier._transfers[THERE, GROUP] == install


def test_a_copy_that_is_there_too_late_is_not_served_from(carrier):
    told(carrier, Route(7, (GROUP,), 2, 200))
    carrier._come_into_force(GROUP)
    install = Install(8, (GROUP,), HERE, resume=True)  # of an owner that it has no more
    told(carrier, install)
    carrier._transfers[HERE, GROUP] = install
    carrier._activate(HERE, GROUP, install)
    assert carrier.unserved() == {GROUP}
    assert not carrier._told


@pytest.mark.parametrize("resume", [True, False])
def test_what_is_installed_is_served_at_once_unless_it_waits_for_the_others(carrier, resume):
    told(carrier, Hold(5, (GROUP,)))
    carrier._come_into_force(GROUP)
    told(carrier, Route(6, (GROUP,), 2, 200))
    carrier._come_into_force(GROUP)
    install = Install(7, (GROUP,), THERE, resume=resume)
    told(carrier, install)
    carrier._activate(THERE, GROUP, install)
    assert carrier.unserved() == (frozenset() if resume else {GROUP})
    assert list(carrier._told) == [Installed(7, GROUP, THERE)]


def test_a_release_ends_what_was_to_come_into_force_for_a_group(carrier):
    told(carrier, Hold(5, (GROUP,)))
    told(carrier, Release(6, (GROUP,)))
    assert carrier._durable.pending == {}


def test_a_copy_that_is_wanted_again_is_not_dropped(carrier):
    told(carrier, Prefetch(5, (GROUP,), THERE))
    told(carrier, Release(6, (GROUP,)))
    assert carrier._drops == {(THERE, GROUP): 6}
    told(carrier, Prefetch(7, (GROUP,), THERE))
    assert carrier._drops == {}
