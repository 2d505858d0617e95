"""Which query of this process has a checkpoint, and what a query gives back; here without Spark."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import CheckpointError, ConfigError, UnsupportedQuery
from headgate.spark.api import launch
from headgate.spark.cluster.location import Place


class Run:
    """A query of this process."""

    def __init__(self, name: str | None = None) -> None:
        self.name, self.isActive = name, True

    def stop(self) -> None:
        self.isActive = False


def session(replaces: str | None = None, *names: str) -> Any:
    conf = SimpleNamespace(get=lambda key, default: default if replaces is None else replaces)
    active = [SimpleNamespace(name=name) for name in names]
    return SimpleNamespace(conf=conf, streams=SimpleNamespace(active=active))


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    made: dict[str, Any] = {}
    monkeypatch.setattr(launch, "_runs", made)
    return made


def test_two_active_queries_have_no_name_in_common() -> None:
    launch.check_name(session(None, "clicks"), None)
    launch.check_name(session(None, "clicks"), "others")
    with pytest.raises(ConfigError, match='"clicks" is that of a query which is active'):
        launch.check_name(session(None, "others", "clicks"), "clicks")


def test_a_new_run_on_a_checkpoint_stops_the_one_before_by_whatever_link_it_comes(
    tmp_path: Path,
) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ck")
    first, other = Run(), Run()
    assert launch.register_run(Place(tmp_path / "ck"), first) is first
    launch.register_run(Place(tmp_path / "elsewhere"), other)
    launch._replace_run(session(), Place(tmp_path / "link"))
    assert (first.isActive, other.isActive) == (False, True)
    launch._replace_run(session("false"), Place(tmp_path / "link"))  # nobody runs there any more


@pytest.mark.parametrize(
    ("name", "called"), [("clicks", 'query "clicks"'), (None, "a query without a name")]
)
def test_a_run_that_may_not_be_replaced_is_named(
    tmp_path: Path, name: str | None, called: str
) -> None:
    run, where = Run(name), Place(tmp_path, url="s3://b/ck")
    launch.register_run(where, run)
    with pytest.raises(
        CheckpointError, match=f"checkpoint s3://b/ck is in use by {called} of this"
    ):
        launch._replace_run(session("False"), where)
    assert run.isActive


def test_a_run_that_has_ended_is_forgotten_with_the_next_one(
    tmp_path: Path, runs: dict[str, Any]
) -> None:
    ended, going = Run(), Run()
    launch.register_run(Place(tmp_path / "a"), ended)
    launch.register_run(Place(tmp_path / "b"), going)
    ended.stop()
    launch.register_run(Place(tmp_path / "c"), Run())
    assert set(runs) == {str(tmp_path / "b"), str(tmp_path / "c")}


@pytest.mark.parametrize("failure", [None, ValueError()])
def test_all_is_given_back_the_last_first_whatever_goes_wrong(failure: Any) -> None:
    did: list[Any] = []

    def fail() -> None:
        did.append("second")
        raise OSError("it is stuck")

    where: Any = SimpleNamespace(leave=lambda *, failed: did.append(("left", failed)))
    inner: Any = SimpleNamespace(exception=lambda: failure)
    release = launch.giving_back(
        inner, where, lambda: did.append("first"), fail, lambda: did.append("third")
    )
    assert did == []
    with pytest.raises(OSError, match="it is stuck"):
        release()
    assert did == ["third", "second", "first", ("left", failure is not None)]


class Machine:
    """A machine of steps over a stream."""

    def __init__(self, *, finite: bool) -> None:
        self.did: list[Any] = []
        self.batches_begun, self.settled, self.spark = 0, True, "spark"
        self.process = self.give_up = lambda *_: self.did.append("given up")
        intake = SimpleNamespace(stream="the stream", start_ticking=self.did.append)
        self.work = SimpleNamespace(intake=intake)
        self.finite = finite


@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("limits", [False, True])
def test_sparks_query_is_started_and_ticks_begin_batches_where_a_source_has_no_end(
    monkeypatch: pytest.MonkeyPatch, *, finite: bool, limits: bool
) -> None:
    machine: Any = Machine(finite=finite)
    inner = SimpleNamespace(status={"isDataAvailable": True})
    raw: list[Any] = []
    monkeypatch.setattr(launch, "limits", lambda stream: limits)
    monkeypatch.setattr(launch, "raw_local_files", lambda spark: raw.append(spark) or ExitStack())

    def begin(start: Any, stream: Any, has_begun: Any) -> Any:
        assert (start(), stream, has_begun()) == ("started", "the stream", False)
        machine.batches_begun = 1
        assert has_begun()
        return inner

    monkeypatch.setattr(launch, "begin", begin)
    given: list[Any] = []
    writer: Any = SimpleNamespace(
        foreachBatch=lambda function: given.append(function) or writer, start=lambda: "started"
    )
    with ExitStack() as undo:
        assert launch.launched(machine, writer, undo, finite=finite) is inner
        assert given == [machine.process]
        assert raw == [] if limits else ["spark"]
        ticks = list(machine.did)
        assert len(ticks) == (not finite)
        for tick in ticks:
            assert tick() is True
            inner.status = {"isDataAvailable": False}
            assert tick() is False
            inner.status, machine.settled = {"isDataAvailable": True}, False
            assert tick() is False
    assert machine.did[len(ticks) :] == ["given up"], "where the start is undone"


@pytest.mark.parametrize("chosen", ["true", "TRUE"])
def test_sources_that_must_have_names_are_refused(chosen: str) -> None:
    launch.check_evolution(session())
    launch.check_evolution(session("false"))
    with pytest.raises(UnsupportedQuery, match=r"enableSourceEvolution is true .* set it to false"):
        launch.check_evolution(session(chosen))
