"""Whether executors follow a query's slots; here without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import ConfigError
from headgate.spark.cluster import allocation
from headgate.spark.cluster.allocation import follow_slots
from headgate.spark.job.ports import SameExecutors


class Pool:
    """Executors of an application, of which two were asked for at its start."""

    local = managed_by_spark = False
    configured = 2
    cores = 6

    def __init__(self, spark: Any) -> None:
        del spark


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(allocation, "ExecutorPool", Pool)
    monkeypatch.setattr(allocation, "_needs", {})
    context = SimpleNamespace(defaultParallelism=3, applicationId="app")
    return SimpleNamespace(sparkContext=context)


def follow(session: Any, choice: str = "follow", specs: Any = ("a spec",), run: str = "q") -> Any:
    return follow_slots(session, specs, run, lambda event: None, choice)


def test_executors_are_left_alone_where_that_is_chosen_or_others_decide(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert follow(session, "keep") == SameExecutors(3)
    assert follow(session, specs=()) == SameExecutors(3)
    for name in ("local", "managed_by_spark"):
        with monkeypatch.context() as patched:
            patched.setattr(Pool, name, True)
            assert follow(session) == SameExecutors(3)
    session.sparkContext.defaultParallelism = 0
    assert follow(session, "keep") == SameExecutors(1)


def test_queries_of_an_application_share_their_needs(session: Any) -> None:
    one, other = follow(session), follow(session, run="p")
    assert one._follower._needs is other._follower._needs
    session.sparkContext.applicationId = "another"
    assert follow(session)._follower._needs is not one._follower._needs


def test_workers_of_executors_that_have_come_are_warmed_before_their_cores_count(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = follow(session)
    assert following.cores == 3
    warmed: list[Any] = []
    monkeypatch.setattr(
        allocation, "warm_workers", lambda *given: warmed.append((given, following.cores))
    )
    following._grown()
    assert warmed == [((session, ("a spec",)), 3)]
    assert following.cores == 6


def test_another_choice_is_refused(session: Any) -> None:
    with pytest.raises(ConfigError, match=r'headgate\.executors="fellow" is not known; use follow'):
        follow(session, "fellow")
