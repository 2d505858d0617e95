"""What becomes of a query's settings: job, limits, places, and Spark's own writer; without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import ConfigError
from headgate.core.slo import parse_slo
from headgate.spark.api import configured
from headgate.spark.cluster import location
from headgate.spark.cluster.location import Place
from headgate.spark.settings.query_settings import QuerySettings, SlotRange

SLO = (parse_slo("mean < 2 s over 1 s"),)


def settings(**given: Any) -> QuerySettings:
    return QuerySettings(**given)


def session(cores: int = 8, master: str = "local[8]", **conf: str) -> Any:
    context = SimpleNamespace(defaultParallelism=cores, master=master)
    got = SimpleNamespace(get=lambda key, default=None: conf.get(key.rpartition(".")[2], default))
    return SimpleNamespace(sparkContext=context, conf=got)


def function(*_: Any) -> None:
    """Take rows."""


# --- The job --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "cores", "first", "most"),
    [
        ((1, "auto", "auto"), 8, 4, 128),
        ((1, "auto", "auto"), 2, 2, 128),
        ((6, "auto", "auto"), 2, 6, 128),
        ((1, 3, "auto"), 8, 3, 3),
        ((1, "auto", 9), 2, 9, 128),
        ((128, 128, 128), 2, 128, 128),
    ],
)
def test_a_job_begins_with_the_cores_that_it_has_and_at_most_four_slots(
    slots: tuple[Any, ...], cores: int, first: int, most: int
) -> None:
    job = configured.job_config(settings(slots=SlotRange(*slots)), cores)
    assert (job.slots, job.slots_max, job.key_groups) == (first, most, 128)


@pytest.mark.parametrize(
    ("slots", "says"),
    [
        ((1, 129, 1), "slots max=129 exceeds the 128 key groups; use at most that."),
        ((4, 8, 3), "slots min=4, start=3, max=8 are not 1 <= min <= start <= max."),
        ((0, 8, 0), "slots min=0, start=0, max=8 are not"),
        ((1, 8, 9), "slots min=1, start=9, max=8 are not"),
        ((9, 8, "auto"), "slots min=9, start=9, max=8 are not"),
    ],
)
def test_slots_that_are_not_in_order_are_refused(slots: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configured.job_config(settings(slots=SlotRange(*slots)), 2)
    assert says in str(refused.value)


def test_a_job_has_its_settings_from_what_the_writer_was_told() -> None:
    plain = configured.job_config(settings(), 2)
    assert (plain.name, plain.mode, plain.migration, plain.budget_s) == (
        "headgate",
        "append",
        "",
        None,
    )
    assert (plain.preaggregate, plain.slot_rate, plain.delta_ms) == ("auto", None, 0.0)
    assert (plain.keep_late, plain.show_keys, plain.processor_limit_s) == (False, False, 0.0)
    fault = {"kind": "kill"}
    told = configured.job_config(
        settings(
            name="clicks", mode="update", key_groups=64, budget="300 ms", slos=SLO,
            migration="fluid", faults=(fault,), options={"headgate.slotRate": "50"},
        ),
        2,
    )  # fmt: skip
    assert (told.name, told.mode, told.key_groups, told.budget_s) == ("clicks", "update", 64, 0.3)
    assert (told.migration, told.faults, told.slot_rate) == ("fluid", [fault], 50.0)
    assert told.preaggregate == "off", "a slot's rate counts records"
    assert told.delta_ms > 0.0


@pytest.mark.parametrize(
    ("slots", "rate", "cores", "most"),
    [
        ((2, "auto", "auto"), None, 8, 8),
        ((2, "auto", 6), None, 4, 6),
        ((2, 16, "auto"), None, 4, 16),
        ((2, "auto", "auto"), "50", 4, 128),
    ],
)
def test_a_policy_stays_within_the_cores_unless_slots_or_their_rate_are_set(
    slots: tuple[Any, ...], rate: str | None, cores: int, most: int
) -> None:
    options = {} if rate is None else {"headgate.slotRate": rate}
    given = settings(slots=SlotRange(*slots), options=options)
    job = configured.job_config(given, cores)
    found = configured.limits(given, job, cores)
    assert (found["slots_min"], found["slots_max"]) == (2, most)


def test_the_journals_header_has_the_settings_and_limits_only_beside_an_slo() -> None:
    given = settings(trigger={"processingTime": "1 second"}, format="memory", advise=True)
    found = configured.parameters(given, configured.job_config(given, 2), 2, 16)
    named = ("slo", "policy", "cores", "machine_cores", "trigger", "format", "advise", "slots")
    assert [found[name] for name in named] == [
        [], "static", 2, 16, {"processingTime": "1 second"}, "memory", True, 2,
    ]  # fmt: skip
    assert "slots_min" not in found
    given = settings(slos=SLO)
    found = configured.parameters(given, configured.job_config(given, 2), 2, None)
    assert (found["policy"], found["slots_min"], found["machine_cores"]) == ("unified", 1, None)
    assert len(found["slo"]) == 1
    named_policy: Any = SimpleNamespace(name="mine(5)")
    given = settings(slos=SLO, policy=named_policy)
    found = configured.parameters(given, configured.job_config(given, 2), 2, None)
    assert found["policy"] == "mine(5)"


def test_cores_of_the_machine_are_told_where_all_of_spark_is_on_it() -> None:
    assert configured.machine_cores(session()) == len(os.sched_getaffinity(0))
    assert configured.machine_cores(session(master="spark://host:7077")) is None
    assert configured.cores_of(session(cores=6)) == 6


# --- Pools ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "cores", "found"),
    [
        ((1, "auto", "auto"), 8, (1, 8, 1)),
        ((2, "auto", "auto"), 2, (2, 4, 2)),
        ((1, 3, 2), 8, (1, 3, 2)),
    ],
)
def test_a_pool_has_four_replicas_or_as_many_as_there_are_cores(
    slots: tuple[Any, ...], cores: int, found: tuple[int, ...]
) -> None:
    made = configured.pool_config(session(cores), slots, {}, 0.5)  # type: ignore[arg-type]
    assert (made.least, made.most, made.start) == found
    assert (made.box_s, made.replica_rate, made.timeout_s, made.queue_max) == (
        0.5,
        None,
        None,
        None,
    )


def test_replicas_that_are_not_in_order_are_refused() -> None:
    for slots in ((0, 4, 0), (2, 4, 1), (1, 4, 5), (5, "auto", "auto")):
        with pytest.raises(ConfigError, match="are not 1 <= min <= start <= max"):
            configured.pool_config(session(2), slots, {}, None)  # type: ignore[arg-type]


# --- Places ---------------------------------------------------------------------------------------------


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Place]:
    """Return where a checkpoint lies; Spark resolves a path below this test's directory."""
    monkeypatch.setattr(location, "resolved", lambda spark, text: tmp_path / text)
    monkeypatch.setattr(location.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(configured.sessions, "check", lambda *_: None)

    def find(conf: dict[str, str] | None = None, **given: Any) -> Place:
        return configured.checkpoint_place(session(**(conf or {})), settings(**given))

    return find


def test_a_checkpoint_lies_where_it_was_asked_for_or_below_the_sessions_place(
    placed: Callable[..., Place], tmp_path: Path
) -> None:
    asked = {"CheckPointLocation": "ck"}
    everywhere = {"checkpointLocation": "all"}
    assert placed(options=asked) == Place(tmp_path / "ck")
    assert placed(everywhere, options=asked) == Place(tmp_path / "ck")
    assert placed(everywhere, name="clicks") == Place(tmp_path / "all" / "clicks")
    one, other = placed(everywhere), placed(everywhere)
    assert one.path.parent == other.path.parent == tmp_path / "all"
    assert one.path != other.path, "two queries without a name"


def test_without_a_place_only_a_sink_of_which_nothing_is_left_gets_a_temporary_one(
    placed: Callable[..., Place],
) -> None:
    with pytest.raises(ConfigError, match=r"needs a place for its state; add \.option\("):
        placed(format="parquet")
    for given in ({"format": "Memory"}, {"function": function}, {"row_function": function}):
        with pytest.warns(UserWarning, match="goes when the query ends"):
            found = placed(**given)
        assert (found.temporary, found.forced, found.path.is_dir()) == (True, False, True)
    with pytest.warns(UserWarning, match="goes when the query ends"):
        forced = placed({"forceDeleteTempCheckpointLocation": "TRUE"}, format="console")
    assert forced.forced


@pytest.mark.parametrize(
    ("temporary", "forced", "failed", "stays"),
    [
        (True, False, False, False), (True, False, True, True), (True, True, True, False),
        (False, False, False, True), (False, True, False, True),
    ],
)  # fmt: skip
def test_a_temporary_place_goes_unless_its_query_failed(
    tmp_path: Path, *, temporary: bool, forced: bool, failed: bool, stays: bool
) -> None:
    (tmp_path / "ck" / "headgate").mkdir(parents=True)
    Place(tmp_path / "ck", temporary=temporary, forced=forced).leave(failed=failed)
    assert (tmp_path / "ck").exists() == stays


def test_a_checkpoint_on_a_store_has_a_directory_on_this_host_of_which_the_journal_stays(
    placed: Callable[..., Place],
) -> None:
    options = {"checkpointLocation": "s3://b/ck", "headgate.store.region": "eu"}
    found = placed(options=options)
    assert (found.url, found.temporary) == ("s3://b/ck", True)
    assert found.options["region"] == "eu"
    assert found.uri == f"file:{found.path}"
    assert (found.path / "headgate").stat().st_mode & 0o777 == 0o700
    for kind in ("offsets", "commits", "sources", "headgate"):
        (found.path / kind).mkdir(exist_ok=True)
    found.leave(failed=False)
    assert [path.name for path in found.path.iterdir()] == ["headgate"]
    below = placed({"checkpointLocation": "s3://b/all"}, name="clicks")
    assert below.url == "s3://b/all/clicks"


def test_the_last_output_is_that_of_the_newest_manifest(tmp_path: Path) -> None:
    where = Place(tmp_path / "ck")
    assert configured.last_output(where) is None
    assert not (tmp_path / "ck").exists(), "who only asks makes nothing"
    store = Checkpoint(tmp_path / "ck")
    store.open({"key_groups": 2})
    assert configured.last_output(where) is None
    store.commit(Manifest("job", 0, 0, 0, {}, {}, {}, {}, engine={"sink_batch": 5}))
    assert configured.last_output(where) == 5


# --- Spark's own writer ---------------------------------------------------------------------------------


class Writer:
    """PySpark's writer, which writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __getattr__(self, method: str) -> Callable[..., Writer]:
        def tell(*given: Any, **named: Any) -> Writer:
            self.told.append((method, *given, *([named] if named else [])))
            return self

        return tell


def test_the_query_beneath_has_the_place_the_name_and_the_trigger(tmp_path: Path) -> None:
    frame: Any = SimpleNamespace(writeStream=Writer())
    place = ("option", "checkpointLocation", f"file:{tmp_path}")
    made: Any = configured.inner_writer(frame, settings(mode="update"), Place(tmp_path))
    assert made.told == [place]
    frame = SimpleNamespace(writeStream=Writer())
    given = settings(name="clicks", trigger={"availableNow": True})
    made = configured.inner_writer(frame, given, Place(tmp_path))
    assert made.told == [place, ("queryName", "clicks"), ("trigger", {"availableNow": True})]


def test_a_query_that_runs_on_plain_spark_is_told_all_that_is_sparks() -> None:
    frame: Any = SimpleNamespace(writeStream=Writer())
    made: Any = configured.plain_writer(frame, settings())
    assert made.told == [("outputMode", "append"), ("options",)]
    frame = SimpleNamespace(writeStream=Writer())
    given = settings(
        mode="update", format="memory", name="clicks", partition_by=("a", "b"), cluster_by=("c",),
        trigger={"once": True}, options={"path": "/x", "headgate.slotRate": "5"},
        function=function, row_function=function,
    )  # fmt: skip
    made = configured.plain_writer(frame, given)
    assert made.told == [
        ("outputMode", "update"), ("options", {"path": "/x"}), ("format", "memory"),
        ("partitionBy", "a", "b"), ("clusterBy", "c"), ("queryName", "clicks"),
        ("trigger", {"once": True}), ("foreachBatch", function), ("foreach", function),
    ]  # fmt: skip


def test_a_sink_is_asked_for_in_the_words_of_sparks_writer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(configured.sinks, "sink_of", lambda spark, target, plan: (target, plan))
    monkeypatch.setattr(configured, "no_rows", lambda spark, schema: schema)
    monkeypatch.setattr(configured, "analysed", lambda frame: f"plan of {frame}")
    given = settings(
        format="kafka", mode="update", name="clicks", partition_by=("a",), cluster_by=("b",),
        options={"topic": "out", "headgate.slotRate": "5"}, table="t",
    )  # fmt: skip
    plan: Any = SimpleNamespace(schema="a: int")
    target, of_rows = configured.sink(session(), given, plan, Place(tmp_path))  # type: ignore[misc]
    assert of_rows == "plan of a: int"
    assert (target.file_format, target.mode, target.name, target.table) == (
        "kafka", "update", "clicks", "t",
    )  # fmt: skip
    assert target.options == {"topic": "out", "queryName": "clicks"}
    assert (target.partition_by, target.cluster_by) == (["a"], ["b"])
    assert (target.checkpoint, target.last_output()) == (tmp_path, None)
    assert (target.function, target.row_function) == (None, None)
    plainly, _ = configured.sink(session(), settings(), plan, Place(tmp_path))  # type: ignore[misc]
    assert plainly.options == {}
