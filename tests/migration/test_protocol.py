from __future__ import annotations

import json

import pytest

from headgate.core.assignment import Assignment
from headgate.core.errors import ConfigError, ProtocolError
from headgate.migration.events import (
    Boundary,
    CaughtUp,
    Cause,
    Demanded,
    Failed,
    Forwarded,
    HostLost,
    Installed,
    Released,
    Requested,
)
from headgate.migration.instructions import (
    Forward,
    Hold,
    Install,
    Instruction,
    Prefetch,
    Release,
    Route,
)
from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.protocol import PATIENCE_BOUNDARIES, RETRIES, Migration
from headgate.migration.registry import strategy
from headgate.migration.strategy import UNBOUNDED, Situation

HOSTS = ("a", "b", "c", "d")


def request(
    new: tuple[int, ...],
    strategy: str = "",
    *,
    epoch: int = 1,
    cause: Cause = Cause.HAND,
    slot: int | None = None,
    hosts: tuple[str, ...] = HOSTS,
) -> Requested:
    return Requested(Assignment(new, max(new) + 1, epoch), hosts, cause, slot, strategy)


def begun(
    strategy: str, old: tuple[int, ...], new: tuple[int, ...]
) -> tuple[Migration, tuple[Instruction, ...]]:
    migration = Migration(Assignment(old, max(old) + 1))
    return migration, migration.handle(request(new, strategy))


class Clock:
    """Boundaries, one after the other."""

    def __init__(self, migration: Migration) -> None:
        self.migration = migration
        self.number = 0

    def tick(self, *in_force: int, hosts: tuple[str, ...] = HOSTS) -> tuple[Instruction, ...]:
        self.number += 1
        return self.migration.handle(Boundary(self.number, frozenset(in_force), hosts))


# One subscale from request to rest.


def test_a_subscale_is_prefetched_routed_forwarded_installed_and_released() -> None:
    migration, given = begun("subscale", (0, 0, 0), (0, 1, 1))
    clock = Clock(migration)
    assert given == (Prefetch(0, (1, 2), "b"),)
    assert clock.tick() == ()
    assert migration.handle(CaughtUp(0, 1, "b")) == ()
    assert migration.handle(CaughtUp(0, 2, "b")) == (Route(1, (1, 2), 1, UNBOUNDED),)
    assert clock.tick(1) == (Forward(2, (1, 2), 0, 1),)
    assert migration.handle(Forwarded(2, 2)) == ()
    assert migration.handle(Forwarded(2, 1)) == (Install(3, (1, 2), "b", resume=True),)
    assert migration.handle(Installed(3, 1, "b")) == ()
    assert migration.handle(Installed(3, 2, "b")) == (Release(4, (1, 2)),)
    assert migration.running
    assert migration.handle(Released(4, 1)) == ()
    assert migration.handle(Released(4, 2)) == ()
    assert not migration.running
    assert migration.current == Assignment((0, 1, 1), 2, 1)


def test_early_route_does_not_wait_for_the_catch_up() -> None:
    _, given = begun("subscale(early_route=true)", (0, 0), (0, 1))
    assert given == (Prefetch(0, (1,), "b"), Route(1, (1,), 1, UNBOUNDED))


def test_without_decoupling_groups_are_held_before_they_are_routed() -> None:
    migration, given = begun("subscale(decoupling=false)", (0, 0), (0, 1))
    assert given == (Hold(0, (1,)),)
    assert Clock(migration).tick(0) == (Route(1, (1,), 1, UNBOUNDED),)


def test_without_scheduling_nothing_may_be_deferred() -> None:
    migration, _ = begun("subscale(scheduling=false)", (0, 0), (0, 1))
    assert migration.handle(CaughtUp(0, 1, "b")) == (Route(1, (1,), 1, 0),)


def test_the_new_slot_is_told_how_many_records_it_may_defer() -> None:
    migration, _ = begun("subscale(deferred=50)", (0, 0), (0, 1))
    assert migration.handle(CaughtUp(0, 1, "b")) == (Route(1, (1,), 1, 50),)


def test_without_division_no_group_is_routed_before_the_last_caught_up() -> None:
    migration, given = begun("subscale(division=false)", (0, 0, 0), (0, 1, 2))
    assert given == (Prefetch(0, (1,), "b"), Prefetch(1, (2,), "c"))
    assert migration.handle(CaughtUp(0, 1, "b")) == ()
    routes = migration.handle(CaughtUp(1, 2, "c"))
    assert routes == (Route(2, (1,), 1, UNBOUNDED), Route(3, (2,), 2, UNBOUNDED))


def test_no_host_brings_state_for_more_than_two_subscales_at_once() -> None:
    migration, given = begun("subscale", (0, 0, 0, 0), (0, 1, 2, 3))
    assert [type(i) for i in given] == [Prefetch, Prefetch]
    assert {i.groups for i in given} == {(1,), (2,)}
    assert Clock(migration).tick() == ()
    # what follows the catch-up brings nothing, so the next one need not wait for it
    given = migration.handle(CaughtUp(0, 1, "b"))
    assert given == (Prefetch(2, (3,), "d"), Route(3, (1,), 1, UNBOUNDED))


def test_a_move_within_a_host_waits_for_no_state_of_others() -> None:
    hosts = ("a", "b", "c", "a")
    migration = Migration(Assignment((0, 0, 0, 0), 1))
    given = migration.handle(request((0, 1, 2, 3), "subscale(per_host=1)", hosts=hosts))
    assert {type(i): i.groups for i in given} == {Prefetch: (1,), Route: (3,)}


# The other strategies.


def test_shared_routes_and_ends_at_the_boundary() -> None:
    migration = Migration(Assignment((0, 0), 1))
    given = migration.handle(request((0, 1), "shared", hosts=("a", "a")))
    assert given == (Route(0, (1,), 1, UNBOUNDED),)
    assert Clock(migration).tick(0, hosts=("a", "a")) == ()
    assert not migration.running


def test_shared_refuses_a_move_between_hosts_and_changes_nothing() -> None:
    migration = Migration(Assignment((0, 0), 1))
    with pytest.raises(ConfigError, match=r"key group 1 moves from host a to b.* use subscale"):
        migration.handle(request((0, 1), "shared"))
    assert not migration.running


def test_stop_restart_holds_every_group_until_all_that_move_are_installed() -> None:
    migration, given = begun("stop-restart", (0, 0, 1), (0, 1, 1))
    clock = Clock(migration)
    assert given == (Hold(0, (0,)), Hold(1, (1,)), Hold(2, (2,)))
    assert clock.tick(0, 1) == ()
    assert clock.tick(0, 1, 2) == (Route(3, (1,), 1, 0),)
    assert clock.tick(3) == (Forward(4, (1,), 0, 1),)
    assert migration.handle(Forwarded(4, 1)) == (Install(5, (1,), "b", resume=False),)
    released = migration.handle(Installed(5, 1, "b"))
    assert [i.groups for i in released] == [(0,), (1,), (2,)]
    assert {type(i) for i in released} == {Release}


def test_all_at_once_releases_nothing_before_the_last_group_is_installed() -> None:
    migration, given = begun("all-at-once", (0, 0, 0), (0, 1, 2))
    clock = Clock(migration)
    assert given == (Hold(0, (1,)), Hold(1, (2,)))
    clock.tick(0, 1)
    clock.tick(2, 3)
    migration.handle(Forwarded(4, 1))
    given = migration.handle(Forwarded(5, 2))
    assert given == (Install(6, (1,), "b", resume=False), Install(7, (2,), "c", resume=False))
    assert migration.handle(Installed(6, 1, "b")) == ()
    assert migration.handle(Installed(7, 2, "c")) == (Release(8, (1,)), Release(9, (2,)))


def test_fluid_starts_a_group_only_when_the_one_before_is_released() -> None:
    migration, given = begun("fluid", (0, 0, 0), (0, 1, 1))
    clock = Clock(migration)
    assert given == (Hold(0, (1,)),)
    clock.tick(0)
    clock.tick(1)
    migration.handle(Forwarded(2, 1))
    migration.handle(Installed(3, 1, "b"))
    assert migration.handle(Released(4, 1)) == (Hold(5, (2,)),)


def test_on_demand_routes_all_and_installs_what_a_record_waits_for() -> None:
    migration, given = begun("on-demand", (0, 0, 0, 0), (0, 1, 1, 2))
    assert given == (Route(0, (1,), 1, 0), Route(1, (2,), 1, 0), Route(2, (3,), 2, 0))
    Clock(migration).tick(0, 1, 2)
    migration.handle(Demanded(3))
    migration.handle(Forwarded(3, 1))
    migration.handle(Forwarded(4, 2))
    given = migration.handle(Forwarded(5, 3))
    assert given == (Install(7, (3,), "c", resume=True),)


def test_on_demand_installs_the_rest_one_at_a_time_so_that_it_ends() -> None:
    migration, _ = begun("on-demand", (0, 0, 0), (0, 1, 1))
    Clock(migration).tick(0, 1)
    assert migration.handle(Forwarded(2, 1)) == (Install(4, (1,), "b", resume=True),)
    assert migration.handle(Forwarded(3, 2)) == ()
    given = migration.handle(Installed(4, 1, "b"))
    assert given == (Install(5, (2,), "b", resume=True), Release(6, (1,)))


# At rest.


def test_nothing_is_asked_of_the_engine_when_no_migration_runs() -> None:
    migration = Migration(Assignment((0, 1), 2))
    assert Clock(migration).tick() == ()
    assert migration.handle(Demanded(1)) == ()
    assert migration.handle(HostLost(1, "a", HOSTS)) == ()


def test_a_request_without_moves_ends_at_once() -> None:
    migration, given = begun("subscale", (0, 1), (0, 1))
    assert given == ()
    assert not migration.running
    assert migration.current.epoch == 1


def test_orders_go_on_from_one_migration_to_the_next() -> None:
    migration = Migration(Assignment((0, 0), 1))
    here = ("a", "a")
    migration.handle(request((0, 1), "shared", hosts=here))
    Clock(migration).tick(0, hosts=here)
    given = migration.handle(request((0, 0), "shared", epoch=2, hosts=here))
    assert given == (Route(1, (1,), 0, UNBOUNDED),)


# Messages that are lost, late, doubled, wrong.


def test_what_is_not_answered_is_given_again_under_the_same_order() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 1))
    clock = Clock(migration)
    migration.handle(CaughtUp(0, 1, "b"))
    for _ in range(PATIENCE_BOUNDARIES - 1):
        assert clock.tick() == ()
    assert clock.tick() == (Prefetch(0, (2,), "b"),)
    # and patience begins anew
    assert clock.tick() == ()


def test_a_boundary_older_than_the_last_is_ignored() -> None:
    migration, _ = begun("fluid", (0, 0), (0, 1))
    migration.handle(Boundary(7, frozenset(), HOSTS))
    assert migration.handle(Boundary(6, frozenset({0}), HOSTS)) == ()
    assert migration.handle(Boundary(8, frozenset({0}), HOSTS)) == (Route(1, (1,), 1, UNBOUNDED),)


def test_a_doubled_answer_is_taken_once() -> None:
    migration, _ = begun("subscale", (0, 0), (0, 1))
    assert migration.handle(CaughtUp(0, 1, "b")) != ()
    assert migration.handle(CaughtUp(0, 1, "b")) == ()


def test_an_answer_from_another_host_is_ignored() -> None:
    migration, _ = begun("subscale", (0, 0), (0, 1))
    assert migration.handle(CaughtUp(0, 1, "c")) == ()


def test_an_answer_to_what_was_never_asked_is_refused_with_the_story() -> None:
    migration, _ = begun("subscale", (0, 0), (0, 1))
    with pytest.raises(ProtocolError, match=r"order 9 was never given.*Requested"):
        migration.handle(CaughtUp(9, 1, "b"))
    with pytest.raises(ProtocolError, match="order 1 was never given"):
        migration.handle(CaughtUp(1, 1, "b"))
    with pytest.raises(ProtocolError, match="answers an order to prefetch"):
        migration.handle(Installed(0, 1, "b"))
    with pytest.raises(ProtocolError, match="names an order never given"):
        migration.handle(Boundary(1, frozenset({9}), HOSTS))
    with pytest.raises(ProtocolError, match="key group 2 does not exist"):
        migration.handle(CaughtUp(0, 2, "b"))


# Failures.


def test_a_new_host_is_asked_for_what_the_lost_one_had() -> None:
    migration, _ = begun("subscale", (0, 0), (0, 1))
    given = migration.handle(HostLost(0, "b", ("a", "e")))
    assert given == (Prefetch(1, (1,), "e"),)
    assert migration.handle(CaughtUp(0, 1, "b")) == ()
    assert migration.handle(CaughtUp(1, 1, "e")) == (Route(2, (1,), 1, UNBOUNDED),)


def test_a_new_host_is_asked_for_what_the_lost_one_had_brought_already() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 1))
    assert migration.handle(CaughtUp(0, 1, "b")) == ()
    assert migration.handle(HostLost(0, "b", ("a", "e"))) == (Prefetch(1, (1, 2), "e"),)


def test_a_boundary_tells_of_a_lost_host_as_well() -> None:
    migration, _ = begun("subscale", (0, 0), (0, 1))
    assert Clock(migration).tick(hosts=("a", "e")) == (Prefetch(1, (1,), "e"),)


def test_a_shared_move_whose_host_dies_in_between_is_installed() -> None:
    migration = Migration(Assignment((0, 0), 1))
    migration.handle(request((0, 1), "shared", hosts=("a", "a")))
    given = Clock(migration).tick(0, hosts=("b", "c"))
    assert given == (Forward(1, (1,), 0, 1),)


def test_a_shared_move_that_was_apart_for_a_moment_is_installed_too() -> None:
    migration = Migration(Assignment((0, 0), 1))
    migration.handle(request((0, 1), "shared", hosts=("a", "a")))
    migration.handle(HostLost(0, "a", ("b", "c")))
    migration.handle(HostLost(0, "c", ("b", "b")))
    assert Clock(migration).tick(0, hosts=("b", "b")) == (Forward(1, (1,), 0, 1),)


def test_a_failed_instruction_is_given_again_at_the_next_boundary() -> None:
    migration, _ = begun("subscale", (0, 0), (0, 1))
    assert migration.handle(Failed(0, "disk full")) == ()
    assert migration.handle(Failed(0, "disk full")) == ()
    assert Clock(migration).tick() == (Prefetch(1, (1,), "b"),)


def fail_until_it_goes_back(
    migration: Migration, clock: Clock, order: int
) -> tuple[Instruction, ...]:
    for _ in range(RETRIES):
        assert migration.handle(Failed(order, "disk full")) == ()
        (again,) = clock.tick()
        order = again.order
    return migration.handle(Failed(order, "disk full"))


def test_what_fails_too_often_before_its_route_ends_in_the_old_assignment() -> None:
    migration, _ = begun("subscale", (0, 0), (0, 1))
    given = fail_until_it_goes_back(migration, Clock(migration), 0)
    assert given == (Release(3, (1,)),)
    migration.handle(Released(3, 1))
    assert not migration.running
    assert migration.current == Assignment((0, 0), 1, 2)
    assert migration.failed == "disk full"


def test_what_fails_too_often_after_its_route_is_routed_back_and_installed_at_home() -> None:
    migration, _ = begun("on-demand", (0, 0), (0, 1))
    clock = Clock(migration)
    clock.tick(0)
    assert migration.handle(Forwarded(1, 1)) == (Install(2, (1,), "b", resume=True),)
    assert fail_until_it_goes_back(migration, clock, 2) == (Route(5, (1,), 0, 0),)
    assert clock.tick(5) == (Forward(6, (1,), 1, 0),)
    assert migration.handle(Forwarded(6, 1)) == (Install(7, (1,), "a", resume=True),)


# A second request.


def test_a_policy_may_not_supersede_its_own_migration() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 0))
    with pytest.raises(ProtocolError, match="a policy may not supersede"):
        migration.handle(request((1, 0, 0), cause=Cause.POLICY, epoch=2))


def test_a_slot_that_turned_severe_may_only_if_it_takes_no_part() -> None:
    migration, _ = begun("subscale", (0, 0, 2, 2), (0, 1, 2, 2))
    severe = request((0, 1, 3, 2), cause=Cause.SEVERE, slot=1, epoch=2)
    assert "slot 1 takes part" in (migration.refusal(severe) or "")
    assert migration.refusal(request((0, 1, 3, 2), cause=Cause.SEVERE, slot=2, epoch=2)) is None


@pytest.mark.parametrize("strategy", ["all-at-once", "fluid", "on-demand", "stop-restart"])
def test_only_subscale_can_be_superseded(strategy: str) -> None:
    migration, _ = begun(strategy, (0, 0), (0, 1))
    assert "cannot be superseded" in (migration.refusal(request((1, 0), epoch=2)) or "")


def test_a_severe_slot_must_be_named() -> None:
    with pytest.raises(ConfigError, match="must name the slot"):
        request((0, 0), cause=Cause.SEVERE)


def test_what_is_not_routed_yet_never_goes_to_the_first_target() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 0))
    given = migration.handle(request((0, 2, 0), epoch=2))
    assert given == (Release(1, (1,)),)
    assert migration.handle(CaughtUp(0, 1, "b")) == ()
    assert migration.handle(Released(1, 1)) == (Prefetch(2, (1,), "c"),)


def test_what_is_routed_is_sent_on_without_being_installed_in_between() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 0))
    migration.handle(CaughtUp(0, 1, "b"))
    assert migration.handle(request((0, 2, 0), epoch=2)) == ()
    clock = Clock(migration)
    assert clock.tick(1) == (Forward(2, (1,), 0, 1),)
    assert migration.handle(Forwarded(2, 1)) == (Route(3, (1,), 2, UNBOUNDED),)
    assert clock.tick(3) == (Forward(4, (1,), 1, 2),)
    assert migration.handle(Forwarded(4, 1)) == (Install(5, (1,), "c", resume=True),)


def test_what_is_sent_on_is_installed_also_within_the_host_that_it_never_reached() -> None:
    hosts = ("a", "b", "b")
    migration = Migration(Assignment((0, 0, 0), 1))
    migration.handle(request((0, 1, 0), "subscale", hosts=hosts))
    migration.handle(CaughtUp(0, 1, "b"))
    migration.handle(request((0, 2, 0), epoch=2, hosts=hosts))
    clock = Clock(migration)
    clock.tick(1, hosts=hosts)
    migration.handle(Forwarded(2, 1))
    assert clock.tick(3, hosts=hosts) == (Forward(4, (1,), 1, 2),)


def test_what_is_installed_moves_on_by_itself_and_what_is_not_is_sent_on() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 1))
    clock = Clock(migration)
    for group in (1, 2):
        migration.handle(CaughtUp(0, group, "b"))
    clock.tick(1)
    for group in (1, 2):
        migration.handle(Forwarded(2, group))
    migration.handle(Installed(3, 1, "b"))
    given = migration.handle(request((0, 2, 2), epoch=2))
    assert given == (Route(4, (2,), 2, UNBOUNDED), Release(5, (1,)))
    assert migration.handle(Released(5, 1)) == (Prefetch(6, (1,), "c"),)


def test_a_request_for_the_first_assignment_takes_everything_back() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 0))
    migration.handle(request((0, 0, 0), epoch=2))
    migration.handle(Released(1, 1))
    assert migration.current == Assignment((0, 0, 0), 1, 2)
    assert migration.failed == ""


# The manifest.


def test_a_restart_gives_again_what_is_not_answered() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 1))
    migration.handle(CaughtUp(0, 1, "b"))
    manifest = json.dumps(migration.to_dict())
    resumed = Migration.from_dict(json.loads(manifest))
    assert resumed.resume() == (Prefetch(0, (2,), "b"),)
    assert json.dumps(resumed.to_dict()) == manifest
    assert resumed.handle(CaughtUp(0, 2, "b")) == (Route(1, (1, 2), 1, UNBOUNDED),)


def test_the_manifest_names_what_was_superseded() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 0))
    migration.handle(request((0, 2, 0), epoch=2))
    superseded = Migration.from_dict(migration.to_dict()).superseded
    assert superseded == [Assignment((0, 1, 0), 2, 1)]


def test_all_of_it_is_in_the_manifest() -> None:
    migration, _ = begun("on-demand", (0, 0, 0), (0, 1, 1))
    clock = Clock(migration)
    clock.tick()
    migration.handle(Demanded(1))
    written = migration.to_dict()
    assert (written["boundary"], written["demanded"]) == (1, [1])
    assert Migration.from_dict(written).to_dict() == written


def test_a_migration_on_its_way_back_goes_on_with_that_after_a_restart() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 0))
    clock = Clock(migration)
    migration.handle(CaughtUp(0, 1, "b"))
    clock.tick(1)
    migration.handle(Forwarded(2, 1))
    for order in range(3, 4 + RETRIES):
        migration.handle(Failed(order, "no space"))
        clock.tick()
    assert (migration.running, migration.failed) == (True, "no space")
    assert Migration.from_dict(migration.to_dict()).failed == "no space"


# What strategies are shown, and choose.


def test_groups_on_their_way_are_not_held_by_who_has_them_still() -> None:
    migration, _ = begun("subscale", (0, 0, 0), (0, 1, 1))
    assert migration._situation().held == (1, 0, 0, 0)


def test_groups_whose_state_is_there_count_as_held_where_they_go() -> None:
    there, more, other = (
        SubscaleProgress(number, groups, 0, slot)
        for number, (groups, slot) in enumerate((((1, 2), 1), ((3,), 1), ((4,), 2)))
    )
    there.phase = Phase.ROUTE
    reached = {0: Phase.ROUTE, 1: Phase.PREFETCH, 2: Phase.PREFETCH}
    situation = Situation((there, more, other), reached, (1, 0, 1, 0), HOSTS, frozenset())
    chosen = strategy("subscale(per_host=1)").admit(Phase.PREFETCH, [more, other], situation)
    assert chosen == [other]


def test_a_pair_of_many_groups_is_divided_and_without_division_it_is_not() -> None:
    moves = {group: (0, 1) for group in range(20)}
    assert [len(s.groups) for s in strategy("subscale").divide(moves, {})] == [10, 10]
    assert len(strategy("subscale(division=false)").divide(moves, {})) == 1


def test_without_sharing_a_move_within_a_host_is_one_between_hosts() -> None:
    apart = strategy("subscale").path(across=True)
    assert strategy("subscale(share=false)").path(across=False) == apart
    assert strategy("subscale").path(across=False) == (Phase.ROUTE,)
