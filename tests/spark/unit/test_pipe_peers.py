"""A run of a pipe hears its peers; its job, its fork server's children and Spark are made up."""

from __future__ import annotations

import os
import queue
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.realtime import fork_server, pipe_run, words
from headgate.spark.realtime import job as job_module
from headgate.spark.realtime.channels import BrokenChannel
from headgate.spark.realtime.job import SparkJob
from headgate.spark.realtime.pipe_run import GONE, JOB, JOINED, PipeRun


class Peer:
    """A peer that says some words, and then is gone in some way."""

    def __init__(self, *says: Any, end: Exception | None = None) -> None:
        self.says, self.end = list(says), end or EOFError()

    def recv(self) -> Any:
        if not self.says:
            raise self.end
        return self.says.pop(0)


def run(**facts: Any) -> Any:
    nobody: Any = None
    return PipeRun(words.Meeting("d", b"k"), nobody, "group", queue.SimpleQueue(), nobody, **facts)


def heard(made: PipeRun) -> list[Any]:
    return [made.said.get_nowait() for _ in range(made.said.qsize())]


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (BrokenChannel("a broken message."), "a broken message"),
        (TimeoutError(), "its host does not answer"),
        (EOFError(), ""),
        (OSError("reset"), ""),
    ],
)
def test_what_a_peer_says_comes_with_its_number_and_how_it_went(end: Exception, why: str) -> None:
    made = run()
    made.listen("slot", 3, Peer(("report", 1), ("ready",), end=end))
    assert heard(made) == [("report", 1, 3), ("ready", 3), (GONE, "slot", 3, why)]


@pytest.mark.parametrize(
    ("kind", "goes"), [("slot", True), ("feeder", True), ("copy", False), ("lost", False)]
)
def test_a_peer_comes_by_its_name_and_is_listened_to_unless_it_says_no_more(
    kind: str, goes: bool
) -> None:
    made, peer = run(), Peer((kind, 3, 77))
    made._hear(peer)
    gone = [(GONE, kind, 3, "")] if goes else []
    assert heard(made) == [(JOINED, kind, 3, peer, 77), *gone]


def test_a_peer_that_is_gone_before_it_says_its_name_is_none() -> None:
    made = run()
    made._hear(Peer())
    made._hear(Peer(end=OSError()))
    assert heard(made) == []


def test_peers_are_let_in_until_the_run_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe_run, "in_background", lambda work: work())
    made = run()
    peers = [Peer(("copy", 1, "a")), None, Peer(("copy", 2, "b"))]

    def accept() -> Any:
        peer = peers.pop(0)
        if peer is None:
            raise OSError("one that went at once")
        made.closing = not peers
        return peer

    made.door = SimpleNamespace(accept=accept)
    made.let_in()
    assert [told[2] for told in heard(made)] == [1, 2]


@pytest.mark.parametrize("error", [None, ValueError("failed"), KeyboardInterrupt()])
def test_the_end_of_a_job_is_heard_with_its_error(error: BaseException | None) -> None:
    made = run()

    def flow(meeting: Any, group: str) -> None:
        assert (meeting, group, made.ended.is_set()) == (made.meeting, "group", False)
        if error is not None:
            raise error

    made.flow(SimpleNamespace(run=flow))
    assert heard(made) == [(JOB, error)]
    assert made.ended.is_set()


# --- The job ------------------------------------------------------------------------------------------


class Frame:
    """The pipe's plan."""

    def __init__(self, did: list[str]) -> None:
        self.collect = lambda: did.append("collect")


@pytest.mark.parametrize(
    ("stages", "in_driver", "pipelined"),
    [((0, 1), True, True), ((0, 0), True, False), ((1,), False, False)],
)
def test_a_job_is_planned_once_and_pipelines_the_users_functions_in_this_process(
    stages: tuple[int, ...], in_driver: bool, pipelined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[Any] = []
    context = SimpleNamespace(
        setJobGroup=lambda *told, **named: did.append((*told, named)),
        setLocalProperty=lambda _, told: did.append(told),
        cancelJobGroup=lambda group: did.append(f"cancel {group}"),
    )
    conf: dict[str, str] = {"spark.sql.optimizer.excludedRules": "mine"}
    settings = SimpleNamespace(get=conf.get, set=conf.__setitem__)
    session = SimpleNamespace(sparkContext=context, conf=settings)

    class Pipelined:
        def __enter__(self) -> None:
            did.append("pipelined")

        def __exit__(self, *_: Any) -> None:
            did.append("as before")

    fails = [True]

    def computed(_: Any) -> None:
        did.append("plan")
        if fails.pop():
            fails.append(False)
            raise ValueError("a table is away")

    monkeypatch.setattr(job_module, "clone_of", lambda _: session)
    monkeypatch.setattr(job_module, "make_active", lambda _: None)
    monkeypatch.setattr(job_module, "ExecutorPool", lambda _: SimpleNamespace(in_driver=in_driver))
    monkeypatch.setattr(job_module, "pipelined_python", lambda _: Pipelined())
    monkeypatch.setattr(job_module, "computed_rows", computed)
    plan = SimpleNamespace(branches=[SimpleNamespace(stages=n) for n in stages])
    nobody: Any = None
    made: Any = SparkJob(nobody, plan, nobody, set(), nobody, "clicks")  # type: ignore[arg-type]
    rules = conf["spark.sql.optimizer.excludedRules"].split(",")
    assert rules[:2] == [
        "mine",
        "org.apache.spark.sql.catalyst.optimizer.PushDownPredicates",
    ]
    assert len(rules) == 6
    assert conf["spark.sql.adaptive.enabled"] == "false"
    monkeypatch.setattr(made, "_whole", lambda: Frame(did))
    meeting = words.Meeting("driver", b"k", run=b"r")
    with pytest.raises(ValueError, match="a table is away"):
        made.run(meeting, "g")
    made.run(meeting, "g")
    made.run(meeting, "g")
    rows = "64" if any(stages) else "10000"
    assert conf["spark.sql.execution.arrow.maxRecordsPerBatch"] == rows
    begins = [("g", "clicks: pipe", {"interruptOnCancel": True}), meeting.told()]
    around = (["pipelined"], ["as before"]) if pipelined else ([], [])
    runs = [
        [*begins, *around[0], *parts, *around[1]]
        for parts in (["plan"], ["plan", "collect"], ["collect"])
    ]
    assert did == [*runs[0], *runs[1], *runs[2]]
    made.cancel("g")
    assert did[-1] == "cancel g"


def test_what_a_task_has_failed_with_is_the_jobs_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"g": "ValueError: mine"}
    monkeypatch.setattr(job_module, "failure_of_tasks", lambda _, group: said.get(group, ""))
    made: Any = object.__new__(SparkJob)
    made._session = None
    assert "ValueError: mine" in str(made.failure("g"))
    assert made.failure("other") is None


# --- The children of the fork server ------------------------------------------------------------------


def server(monkeypatch: pytest.MonkeyPatch, **numbers: int) -> tuple[Any, list[Any]]:
    """Return a server in this process, and what it says and kills."""
    did: list[Any] = []
    starter: Any = SimpleNamespace(send=did.append)
    made: Any = fork_server._Server(starter)
    os.close(made._follows)
    os.close(made._holds)
    made._numbers = {pid: int(number.removeprefix("n")) for number, pid in numbers.items()}
    monkeypatch.setattr(os, "kill", lambda pid, sign: did.append((pid, sign)))
    return made, did


def test_children_that_have_ended_are_told_with_their_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, did = server(monkeypatch, n1=71, n2=72, n3=73)
    ended = [(72, 0), (71, signal.SIGKILL), (0, 0)]
    monkeypatch.setattr(os, "waitpid", lambda pid, options: ended.pop(0))
    made._reap()
    assert did == [(2, 72, 0), (1, 71, -signal.SIGKILL)]
    assert made._numbers == {73: 3}
    ended.append((73, 256))
    made._reap()
    assert did[2:] == [(3, 73, 1)], "and nobody is asked of when no child is left"


def test_the_child_of_a_number_is_killed_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made, did = server(monkeypatch, n1=71, n2=72)
    made._kill(2)
    made._kill(9)
    assert did == [(72, signal.SIGKILL)]


def test_a_server_ends_all_its_children_and_their_sockets_with_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    made, did = server(monkeypatch, n1=71, n2=72)
    waited: list[int] = []
    monkeypatch.setattr(os, "waitpid", lambda pid, _: waited.append(pid))
    (tmp_path / "run").mkdir()
    made._directories = {str(tmp_path / "run")}

    def gone() -> None:
        raise EOFError

    made._serve = gone
    with pytest.raises(EOFError):
        made.run()
    assert did == [(71, signal.SIGKILL), (72, signal.SIGKILL)]
    assert waited == [71, 72]
    assert list(tmp_path.iterdir()) == []


def test_a_child_is_told_with_its_process_or_as_lost_where_there_can_be_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, did = server(monkeypatch)
    monkeypatch.setattr(fork_server, "_forked", lambda: 80)
    made._fork(5, [])
    assert (did, made._numbers) == ([(5, 80, None)], {80: 5})

    def full() -> int:
        raise OSError("no more processes")

    monkeypatch.setattr(fork_server, "_forked", full)
    made._fork(6, [])
    assert (did[1:], made._numbers) == ([(6, 0, fork_server.LOST)], {80: 5})
    assert "headgate: a slot cannot be started: no more processes" in capsys.readouterr().err
