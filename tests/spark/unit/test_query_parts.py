"""What a query's handle passes on, how its checkpoint is opened, and what is read of a plain one.

No session is needed: the parts behind are made up.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source
from said_columns import F

from headgate.checkpoint.command_files import Command
from headgate.core.assignment import spread
from headgate.core.errors import CheckpointError, ConfigError, EngineError
from headgate.spark.api import begin, launch, query_view, running, waiting
from headgate.spark.api import query as handles
from headgate.spark.api.query import Query
from headgate.spark.api.running import RunningQuery
from headgate.spark.cluster.location import Place
from headgate.spark.plain import exporting, log

SPARK: Any = "the session"


# --- The handle ---------------------------------------------------------------------------------------


class Held:
    """A handle, and what it passed on."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.over = False
        self.assignments = {"a": spread(2, 8), "b": spread(3, 8)}
        changes = SimpleNamespace(
            assignment=lambda: self.assignments, check_operator=self._check,
            newest=lambda name: SimpleNamespace(remap=lambda changes: (name, changes)),
            ask=lambda *given: self.did.append(given),
        )  # fmt: skip
        self.query: Any = object.__new__(Query)
        vars(self.query).update(
            _work=SimpleNamespace(
                changes=changes, states={"a": 1, "b": 2},
                migrations=SimpleNamespace(stop=lambda: self.did.append("migrations stop")),
            ),
            _commands=SimpleNamespace(do=self._do),
            _controller=SimpleNamespace(
                decisions=lambda: ["a decision"], stop=lambda: self.did.append("controller stops")
            ),
            _end=SimpleNamespace(refuse_if_over=self._refuse),
        )  # fmt: skip

    def _check(self, operator: str | None) -> None:
        if operator not in (None, "a", "b"):
            raise ConfigError(f"no {operator}")

    def _do(self, command: Command) -> str:
        self.did.append(command)
        return f"{command.act} will hold"

    def _refuse(self, act: str) -> None:
        if self.over:
            raise EngineError(f"it takes no {act}")


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_handle_gives_commands_as_its_user_does(held: Held) -> None:
    query = held.query
    assert query.scale(3) == "scale will hold"
    query.scale(4, operator="a", partitioning="uniform", by="me", reason="why", hold="10 min")
    query.freeze()
    query.thaw()
    query.rollback(7, reason="worse")
    query.slo("mean < 2 s over 1 s")
    none = {"operator": None, "partitioning": "minimal", "hold_s": None}
    assert held.did == [
        Command("scale", "user", "", {"slots": 3, **none}),
        Command(
            "scale", "me", "why",
            {"slots": 4, "operator": "a", "partitioning": "uniform", "hold_s": 600.0},
        ),
        Command("freeze", "user"), Command("thaw", "user"),
        Command("rollback", "user", "worse", {"epoch": 7}),
        Command("slo", "user", "", {"slos": ("mean < 2 s over 1 s",)}),
    ]  # fmt: skip
    held.over = True
    for ask in (query.freeze, query.thaw, lambda: query.scale(1), lambda: query.rollback(1)):
        with pytest.raises(EngineError, match="it takes no"):
            ask()


def test_key_groups_move_to_other_slots_of_one_operator_or_of_all(held: Held) -> None:
    held.query.remap({0: 1})
    held.query.remap({3: 0}, operator="b", by="me", reason="hot")
    assert held.did == [
        ({"a": ("a", {0: 1}), "b": ("b", {0: 1})}, "user", ""), ({"b": ("b", {3: 0})}, "me", "hot"),
    ]  # fmt: skip
    for wrong in ([0, 1], {"0": 1}, {0: 1.5}, {0: 1, 2: "1"}):
        with pytest.raises(ConfigError, match="remap: changes="):
            held.query.remap(wrong)
    with pytest.raises(ConfigError, match="no c"):
        held.query.remap({0: 1}, operator="c")
    held.over = True
    with pytest.raises(EngineError, match="it takes no remap"):
        held.query.remap({0: 1})


def test_what_a_journal_could_not_hold_changes_nothing(held: Held) -> None:
    wrong: Any = 3
    for ask in (
        lambda: held.query.scale(2, by=wrong),
        lambda: held.query.scale(2, reason="a\0b"),
        lambda: held.query.rollback(2, reason=wrong),
        lambda: held.query.remap({0: 1}, reason=wrong),
    ):
        with pytest.raises(ConfigError, match=r"^(by|reason)"):
            ask()
    assert held.did == []


def test_a_handle_tells_slots_and_decisions_and_ends_what_changes_it(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = held.query
    monkeypatch.setattr(RunningQuery, "__repr__", lambda self: "<Query: running, journal j>")
    assert repr(query) == "<Query: running, a 2 slots, b 3 slots, journal j>"
    assert query.assignment() is held.assignments
    assert query.decisions() == ["a decision"]
    query._before_end()
    assert held.did == ["migrations stop", "controller stops"]
    query._controller, held.assignments = None, {}
    assert repr(query) == "<Query: running, journal j>"
    assert query.decisions() == []
    query._before_end()
    assert held.did[2:] == ["migrations stop"]


@pytest.mark.parametrize("finite", [True, False])
def test_a_handle_waits_for_the_end_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, finite: bool
) -> None:
    did: list[Any] = []
    made: dict[str, Any] = {}

    def ending(inner: Any, machine: Any, life: Any, **named: Any) -> Any:
        made.update(named)
        return SimpleNamespace(start=lambda: did.append("wait"), is_over=False)

    monkeypatch.setattr(running, "Ending", ending)
    monkeypatch.setattr(running, "JvmLife", lambda spark: f"life of {spark}")
    monkeypatch.setattr(
        running,
        "StopRequests",
        lambda control, write: SimpleNamespace(poll=f"poll {control} {write}"),
    )
    monkeypatch.setattr(running, "analysed", lambda stream: f"plan of {stream}")
    monkeypatch.setattr(running, "kafka_sources", lambda plan: [f"kafka in {plan}"])
    monkeypatch.setattr(running, "complete_events", lambda *given: did.append(given))
    monkeypatch.setattr(handles, "OperatorSlots", lambda *given: given)
    inner = SimpleNamespace(runId="8e", lastProgress="a progress")
    follow = lambda last: did.append(last())  # noqa: E731
    progress = SimpleNamespace(follow=follow)
    recorder = SimpleNamespace(write="journal", progress=progress, path=tmp_path)
    work = SimpleNamespace(
        changes="changes", recorder=recorder, intake=SimpleNamespace(stream="stream")
    )
    machine = SimpleNamespace(
        spark=SPARK, drain=did.append, work=work, latest=None,
        checkpoint=SimpleNamespace(location="place"),
    )  # fmt: skip
    commands = SimpleNamespace(files="files")
    given: Any = (inner, machine, work, "controller", commands)
    query: Any = Query(*given, finite=finite, release=lambda: did.append("released"))
    assert did == ["wait", (SPARK, inner, progress), "a progress"]
    assert query._slots == ("changes", "controller", "journal")
    assert made["look"] == "poll files journal"
    assert made["reads"]() == ["kafka in plan of stream"]
    assert (made["close"], made["before"]) == (query._close, query._await_commit)
    if finite:
        made["rest"]()
        assert did[-1] == "8e"
    else:
        assert made["rest"] is None
    query._release()
    assert did[-1] == "released"
    views: list[Any] = []
    monkeypatch.setattr(
        running, "QueryView",
        lambda journal, place, active: views.append((journal, place, active())) or SimpleNamespace(
            html=lambda: "its html", display=views.append
        ),
    )  # fmt: skip
    monkeypatch.setattr(running, "history_figure", lambda journal: f"figure of {journal}")
    assert query._repr_html_() == "its html"
    query.display(2.5)
    assert views == [(tmp_path, "place", True), 2.5], "one view for both"
    assert query.plot() == f"figure of {tmp_path}"


def test_a_query_is_shown_in_a_cell_only_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(query_view, "NotebookView", lambda journal: None)
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    view = query_view.QueryView(tmp_path, "place", lambda: True)
    with pytest.raises(ConfigError, match=r"query\.display\(\) needs a notebook"):
        view.display(1.0)


# --- Waiting ------------------------------------------------------------------------------------------


def stages(*done: tuple[int, int] | None) -> Any:
    infos = [
        None if one is None else SimpleNamespace(numCompletedTasks=one[0], numTasks=one[1])
        for one in done
    ]
    tracker = SimpleNamespace(
        getActiveStageIds=lambda: range(len(infos)), getStageInfo=infos.__getitem__
    )
    return SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))


def test_done_tasks_of_all_running_stages_are_told_together() -> None:
    assert waiting._tasks(stages((1000, 4000), None, (5, 10))) == "1,005 of 4,010 tasks done"
    assert waiting._tasks(stages()) == "Spark plans"
    assert waiting._tasks(stages((0, 0), None)) == "Spark plans"


def test_who_waits_hears_nothing_of_a_session_that_fails_and_nothing_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import threading

    monkeypatch.setattr(waiting, "_EVERY_S", 0.001)
    enough, lines = threading.Event(), deque[str]()

    def tell(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            enough.set()
        if len(lines) == 1:
            raise OSError("it has ended")

    with waiting.report_progress(stages((1, 2)), "verify", tell):
        assert enough.wait(10)
    told = len(lines)
    assert lines[0] == "verify: 0 s, 1 of 2 tasks done"
    waiting._on_stderr("a line")
    assert capsys.readouterr().err == "a line\n"
    assert len(lines) == told


@pytest.mark.parametrize(
    ("leaves", "python"),
    [
        ([source(attribute("v"), table=Made("PythonTable"))], True),
        ([source(attribute("v"), table=Made("KafkaTable"))], False),
        ([source(attribute("v"), kind="StreamingRelation")], False),
        ([source(table=Made("KafkaTable")), source(table=Made("PythonTable"))], True),
        ([], False),
    ],
)
def test_processes_are_waited_for_where_a_source_is_pythons(
    monkeypatch: pytest.MonkeyPatch, leaves: list[Made], python: bool
) -> None:
    monkeypatch.setattr(begin, "analysed", lambda frame: Made("Project", collectLeaves=leaves))
    frame: Any = "a frame"
    assert begin.reads_python(frame) is python


# --- The checkpoint -----------------------------------------------------------------------------------


class Opened:
    """A checkpoint that says how it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[Any] = []
        self.latest: Any = "the newest"

        def checkpoint(*given: Any) -> Any:
            self.did.append(("checkpoint", *given))
            return SimpleNamespace(
                open=lambda identity: self.did.append(identity) or "a uuid",
                latest=lambda: self.latest, path="path", root=Path("root"), files="files",
            )  # fmt: skip

        monkeypatch.setattr(launch, "Checkpoint", checkpoint)
        for name in ("write_log", "check_log", "check_seen", "_replace_run"):
            say = lambda *given, name=name: self.did.append(name)  # noqa: E731
            monkeypatch.setattr(launch, name, say)
        monkeypatch.setattr(
            launch, "CarriedLog",
            lambda checkpoint: SimpleNamespace(restore=lambda latest: self.did.append("restore")),
        )  # fmt: skip
        monkeypatch.setattr(launch, "CheckpointLock", lambda *given: self._part("lock", "release"))
        monkeypatch.setattr(
            launch, "resume_shipping", lambda *given: self._part("journal", "close")
        )

    def _part(self, name: str, gives_back: str) -> Any:
        self.did.append(name)
        return SimpleNamespace(**{gives_back: lambda: self.did.append(f"{name} given back")})


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


def test_a_directory_is_locked_before_its_log_is_looked_at(opened: Opened) -> None:
    with ExitStack() as undo:
        _, uuid, unlock = launch.opened(SPARK, Place(Path("p")), {"of": "it"}, undo)
        assert uuid == "a uuid"
        assert opened.did == [
            ("checkpoint", Path("p")), {"of": "it"}, "check_seen", "_replace_run", "lock", "write_log",
            "check_log",
        ]  # fmt: skip
        unlock()
        assert opened.did[-1] == "lock given back"
        opened.did.clear()
    assert opened.did == ["lock given back"], "where the start is undone"


@pytest.mark.parametrize("latest", ["the newest", None])
def test_a_store_has_no_lock_and_spark_s_log_comes_from_there(opened: Opened, latest: Any) -> None:
    opened.latest = latest
    with ExitStack() as undo:
        where = Place(Path("p"), url="s3://b/k", options={"o": "1"})
        _, uuid, close = launch.opened(SPARK, where, {}, undo)
        restored = ["restore", "write_log"] if latest else []
        assert uuid == "a uuid"
        assert opened.did == [
            ("checkpoint", "s3://b/k", {"o": "1"}, Path("p")), {}, "_replace_run", *restored, "journal",
        ]  # fmt: skip
        close()
        assert opened.did[-1] == "journal given back"
        opened.did.clear()
    assert opened.did == ["journal given back"]
    assert launch.journal_of(where) == Path("p/headgate/journal.jsonl")


# --- A plain checkpoint -------------------------------------------------------------------------------


def entry(*offsets: str, conf: Any = None) -> log.LogEntry:
    notes = {"batchWatermarkMs": 5, "conf": {} if conf is None else conf}
    return log.LogEntry(3, notes, list(offsets), 7)


@pytest.mark.parametrize(
    ("raw", "refused"),
    [
        (b'{"type":"udt","class":"C"}', True),
        (b'x"\x00\x01u\x00\x02d\x00\x03t"', True),
        (b'{"name":"\\u0075dt"}', True),
        (b'{"type":"long","name":"udtx"}', False),
    ],
)
def test_a_schema_that_names_a_class_is_not_read_by_spark(
    tmp_path: Path, raw: bytes, refused: bool
) -> None:
    schema = tmp_path / "state" / "0" / "_metadata" / "schema"
    schema.parent.mkdir(parents=True)
    schema.write_bytes(raw)
    entries = tmp_path / "state" / "0" / "1.delta"
    entries.write_bytes(b'{"type":"udt"}')
    if not refused:
        log.check_types(tmp_path)
        return
    with pytest.raises(
        CheckpointError, match="has a user-defined type, and headgate loads no class"
    ):
        log.check_types(tmp_path)


def test_a_checkpoint_has_as_many_sources_as_the_query() -> None:
    log.check_sources(Path("p"), entry("1", "2"), range(1, 3))
    for wanted in (range(1, 2), range(3, 5)):
        with pytest.raises(
            CheckpointError, match=rf"of 2 sources where the query has {wanted[-1]}; gi"
        ):
            log.check_sources(Path("p"), entry("1", "2"), wanted)


PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        (
            {PROVIDER: "my.Provider"},
            f'{PROVIDER}="my.Provider" in its log, and headgate loads no class',
        ),
        ({"spark.sql.streaming.stateStore.compression.codec": "my.Codec"}, 'codec="my.Codec"'),
        ("no settings", f'{PROVIDER}=""'),
    ],
)
def test_a_log_that_names_a_class_of_somebody_elses_is_refused(conf: Any, says: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        log._check_settings(Path("p"), {"conf": conf})
    assert says in str(refused.value)
    log._check_settings(Path("p"), {"conf": {PROVIDER: log._CLASSES[PROVIDER][1]}})
    log._check_settings(Path("p"), {})


def test_places_that_cannot_be_read_or_written_are_refused(tmp_path: Path) -> None:
    log.refuse_store(str(tmp_path))
    with pytest.raises(
        CheckpointError, match="s3://b/k lies on a store, and only a directory can be converted"
    ):
        log.refuse_store("s3://b/k")
    log.refuse_within(tmp_path / "a", tmp_path / "b")
    log.refuse_within(tmp_path, tmp_path / "b")
    with pytest.raises(CheckpointError, match=r"lies in the checkpoint .*, which is only read"):
        log.refuse_within(tmp_path / "a" / "b", tmp_path / "a")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is there already and not empty"):
        log.refuse_used(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    log.refuse_used(tmp_path / "empty")
    with pytest.raises(CheckpointError, match=r"cannot be used \(Not a directory\)"):
        with log.fresh(tmp_path / "file" / "below"):
            pass
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "0").symlink_to(tmp_path / "file")
    (tmp_path / "metadata").write_text("{}")
    with pytest.raises(CheckpointError, match="0 is a symbolic link, which no checkpoint has"):
        log.copy_beside(tmp_path, tmp_path / "empty")


def test_forms_of_state_are_copied_and_no_state(tmp_path: Path) -> None:
    origin = tmp_path / "from"
    for name in ("0/_metadata/schema", "0/0/1.delta", "0/0/_stateSchema/v1", "top"):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text(name)
    exporting._copy_forms(origin, tmp_path / "to")
    copied = {
        str(path.relative_to(tmp_path / "to"))
        for path in (tmp_path / "to").rglob("*")
        if path.is_file()
    }
    assert copied == {"0/_metadata/schema", "0/0/_stateSchema/v1"}


@pytest.mark.parametrize("fails", [False, True])
def test_plain_spark_runs_a_batch_of_nothing_to_leave_its_forms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: bool
) -> None:
    did: list[Any] = []

    def process() -> None:
        did.append("process")
        if fails:
            raise OSError("it is stuck")

    running_ = SimpleNamespace(processAllAvailable=process, stop=lambda: did.append("stop"))

    class Writer:
        def __getattr__(self, name: str) -> Any:
            return lambda *given: (
                did.append((name, *given)) or (running_ if name == "start" else self)
            )

    k, n = attribute("k", "a type"), attribute("n", "another", nullable=False)
    leaf, table = source(k, n), source(k, streams=False)
    monkeypatch.setattr(exporting, "F", F)
    monkeypatch.setattr(exporting, "data_type", lambda kind: kind)
    monkeypatch.setattr(exporting, "known_not_null", F.known_not_null)
    ticks = SimpleNamespace(select=lambda *columns: ", ".join(map(str, columns)))
    monkeypatch.setattr(exporting, "Tick", lambda spark, place: SimpleNamespace(frame=ticks))
    monkeypatch.setattr(exporting, "analysed", lambda df: Made("Join", collectLeaves=[leaf, table]))
    monkeypatch.setattr(exporting, "named_as", lambda frame, columns: (frame, columns))
    monkeypatch.setattr(
        exporting, "replace_leaf", lambda spark, plan, old, new: did.append((old, new))
    )
    monkeypatch.setattr(exporting, "of_rows", lambda *_: SimpleNamespace(writeStream=Writer()))
    frame: Any = "the query"
    if fails:
        with pytest.raises(OSError, match="it is stuck"):
            exporting._run_on_nothing(SPARK, frame, "update", tmp_path)
    else:
        exporting._run_on_nothing(SPARK, frame, "update", tmp_path)
    rows = "None.cast(a type).alias(k), known_not_null(None.cast(another)).alias(n)"
    assert did == [
        (leaf, (rows, [k, n])), ("format", "noop"), ("outputMode", "update"),
        ("option", "checkpointLocation", f"file:{tmp_path}"), ("start",), "process", "stop",
    ]  # fmt: skip
