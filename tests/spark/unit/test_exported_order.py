"""Tests in what order a checkpoint is exported, and when it is at rest; without Spark."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from noted_calls import Calls

from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.api.sparkwriter import SparkWriter
from headgate.spark.cluster.location import Place
from headgate.spark.plain import exporting, log

NEWEST = log.LogEntry(
    7, {"batchWatermarkMs": 5000, "batchTimestampMs": 6000, "conf": {}}, ["{1}"], 5500
)
PAIRS = [
    (
        SimpleNamespace(id=f"op-{n}"),
        SimpleNamespace(operatorName=f"of {n}", operatorId=str(n), numPartitions="4"),
    )
    for n in (1, 0)
]
LATEST: Any = SimpleNamespace(
    step=9, spark_batch=7, watermarks={"evict_us": 5_100_900},
    engine={"operators": {"a": {"backlog": []}}, "sources": ["{1}"], "sink_batch": 6},
)  # fmt: skip


class Export:
    """A writer, and the calls of an export."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, below: Path) -> None:
        self.calls = calls = Calls(monkeypatch)
        self.target, self.ours = below / "plain", below / "ours"
        (self.ours / "headgate").mkdir(parents=True)
        (self.ours / "headgate" / "identity.json").write_text("{}")
        self.skeleton = below / "skeleton"
        self.skeleton.mkdir()
        self.where = Place(self.ours)
        self.spark = SimpleNamespace(name="the session")
        df: Any = SimpleNamespace(sparkSession=self.spark)
        self.writer = SparkWriter(df)
        self.writer.settings = replace(
            self.writer.settings, mode="update", options={"headgate.ordered": "true"}
        )
        query = SimpleNamespace(operators=[pair[0] for pair in PAIRS])
        origin = SimpleNamespace(name="checkpoint")
        calls.put(
            exporting,
            planned=query, resolved=self.target, state_metadata="metadata", paired=PAIRS,
            rewriting_session="a session", identity="who", check_name=None, check_order=None,
            opened=(origin, "uuid", None), _at_rest=(LATEST, NEWEST), _run_on_nothing=None,
            entry_bytes="bytes", _last_batch=12, _copy_forms=None, rewrite=None,
        )  # fmt: skip
        calls.put(
            log,
            refuse_store=None, refuse_used=None, refuse_within=None, begin=None, copy_beside=None,
            commit=None, entry=replace(NEWEST, notes={"conf": {"its": "own"}, "batchWatermarkMs": 1}),
        )  # fmt: skip
        calls.within(log, "fresh")
        self.query, self.origin = query, origin

        def made(prefix: str) -> str:
            assert prefix == "headgate-export-"
            return str(self.skeleton)

        monkeypatch.setattr(exporting, "tempfile", SimpleNamespace(mkdtemp=made))
        store = SimpleNamespace(rows="rows", keys=2, hashed=1)

        def stores(ours: Any) -> Any:
            calls.did.append(("stores", ours))
            return {"left": store, "right": store} if ours.operator.id == "op-1" else {"": store}

        monkeypatch.setattr(exporting, "stores", stores)
        monkeypatch.setattr(exporting, "OperatorState", SimpleNamespace(
            recovered=lambda latest, name: SimpleNamespace(rows=[3, 4], name=name)
        ))  # fmt: skip
        monkeypatch.setattr(exporting, "configured", SimpleNamespace(
            cores_of=lambda spark: 3, job_config=lambda settings, cores: f"{cores} cores",
            checkpoint_place=lambda spark, settings: self.where,
        ))  # fmt: skip
        monkeypatch.setattr(Place, "leave", calls.one("leave"))


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Export:
    return Export(monkeypatch, tmp_path)


def test_plain_spark_s_log_is_written_last_and_ours_is_only_read(export: Export) -> None:
    told = exporting.export(export.writer, "s")
    assert told == {
        "checkpoint": str(export.target), "batch": 12, "watermark_ms": 5000,
        "operators": [{"id": "op-1", "entries": 7}, {"id": "op-0", "entries": 7}],
    }  # fmt: skip
    df, spark, target, ours = export.writer.df, export.spark, export.target, export.ours
    did, skeleton = export.calls.did, export.skeleton
    [opened] = [one for one in did if one[0] == "opened"]
    of_stores = [one for one in did if one[0] == "stores"]
    of_bytes = ("entry_bytes", "rows", 2, 1, 4)
    notes = {"conf": {"its": "own"}, "batchWatermarkMs": 5000, "batchTimestampMs": 6000}
    newest = replace(NEWEST, batch=12, notes=notes)
    parted = {(1, "left"): "bytes", (1, "right"): "bytes", (0, ""): "bytes"}
    assert did == [
        ("planned", df, export.writer.settings, {"arrivals": False}), ("refuse_store", "s"),
        ("resolved", spark, "s"), ("refuse_used", target), ("check_order", spark, df, export.query),
        ("refuse_within", target, ours), ("identity", spark, export.query, "3 cores"), opened,
        ("_at_rest", export.origin, ours), ("rewriting_session", spark),
        ("_run_on_nothing", "a session", df, "update", skeleton),
        ("state_metadata", "a session", skeleton), ("paired", export.query, "metadata"),
        ("check_name", PAIRS[0][0], "of 1"), of_stores[0], of_bytes, of_bytes,
        ("check_name", PAIRS[1][0], "of 0"), of_stores[1], of_bytes,
        ("_last_batch", export.writer.settings, LATEST), ("entry", skeleton, 0), ("fresh", target),
        ("_copy_forms", skeleton / "state", target / "state"),
        ("begin", target, newest, {"ticks": False}),
        ("rewrite", "a session", skeleton, target, 12, parted), ("copy_beside", ours, target),
        ("commit", target, newest), "fresh is left", ("leave", export.where, {"failed": False}),
    ]  # fmt: skip
    assert opened[1:4] == (spark, export.where, "who")
    assert not skeleton.exists()
    state = of_stores[0][1]
    assert (state.spark, state.operator, state.checkpoint) == (
        "a session",
        PAIRS[0][0],
        export.origin,
    )
    assert (state.state.name, state.ordered) == ("op-1", True)
    assert isinstance(state.form, partial)
    assert state.form.args == ("a session", skeleton, 1, 0)


@pytest.mark.parametrize("place", ["store", "nothing"])
def test_what_is_no_checkpoint_of_ours_is_not_exported(export: Export, place: str) -> None:
    if place == "store":
        export.where = replace(export.where, url="s3://b/k")
    else:
        (export.ours / "headgate" / "identity.json").unlink()
    said = "s3://b/k" if place == "store" else str(export.ours)
    with pytest.raises(CheckpointError) as refused:
        exporting.export(export.writer, "s")
    assert str(refused.value) == (
        f"{said} is no directory with a checkpoint of headgate's; give that of the query."
    )
    assert export.calls.names()[-2:] == ["check_order", "leave"]


def test_an_export_takes_a_writer_and_a_place(export: Export) -> None:
    wrong: Any = 3
    with pytest.raises(ConfigError, match=r"hg\.export: writer=3"):
        exporting.export(wrong, "s")
    with pytest.raises(ConfigError, match=r"hg\.export: checkpoint=3"):
        exporting.export(export.writer, wrong)
    assert export.calls.did == []


# --- At rest ------------------------------------------------------------------------------------------


def at_rest(monkeypatch: pytest.MonkeyPatch, latest: Any, newest: log.LogEntry = NEWEST) -> Any:
    monkeypatch.setattr(log, "newest_of_ours", lambda path: newest)
    origin: Any = SimpleNamespace(latest=lambda: latest)
    return exporting._at_rest(origin, Path("p"))


def altered(**engine: Any) -> Any:
    return SimpleNamespace(**{**vars(LATEST), "engine": LATEST.engine | engine})


@pytest.mark.parametrize(
    ("begun_ms", "evict_us", "next_ms", "watermark_ms", "after_ms"),
    [(5000, 5_100_900, 5500, 5100, 5500), (5000, 4_000_000, 4500, 5000, 5000)],
)
def test_the_watermark_is_the_newest_that_removed_state(
    monkeypatch: pytest.MonkeyPatch, begun_ms: int, evict_us: int, next_ms: int, watermark_ms: int,
    after_ms: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(exporting, "_drain_is_out", lambda *_: True)
    notes = NEWEST.notes | {"batchWatermarkMs": begun_ms}
    newest = replace(NEWEST, notes=notes, next_watermark_ms=next_ms)
    latest = altered()
    latest.watermarks = {"evict_us": evict_us}
    assert at_rest(monkeypatch, latest, newest) == (
        latest,
        replace(
            newest, notes=notes | {"batchWatermarkMs": watermark_ms}, next_watermark_ms=after_ms
        ),
    )


def test_a_query_of_which_something_is_under_way_is_not_exported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = [True]
    monkeypatch.setattr(exporting, "_drain_is_out", lambda *_: out[0])
    with pytest.raises(
        CheckpointError, match="p has no committed step, so there is nothing to expo"
    ):
        at_rest(monkeypatch, None)
    backlog = {"a": {"backlog": [1]}, "b": {"backlog": []}, "c": {"backlog": [2]}}
    end = r"; run the query with trigger\(availableNow=True\) to its end, and try again\.$"
    waits = f"^p is not at rest, records wait for slots of a, c{end}"
    with pytest.raises(CheckpointError, match=waits):
        at_rest(monkeypatch, altered(operators=backlog))
    sink = f"^p is not at rest, its last step may not be with the sink{end}"
    with pytest.raises(CheckpointError, match=sink):
        at_rest(monkeypatch, altered(), replace(NEWEST, batch=6))
    at_rest(monkeypatch, altered(), replace(NEWEST, batch=8))
    with pytest.raises(CheckpointError, match=sink):
        at_rest(monkeypatch, altered(sources=["{2}"]))
    out[0] = False
    with pytest.raises(CheckpointError, match=sink):
        at_rest(monkeypatch, altered())


@pytest.mark.parametrize("intent", [None, {"step": 9}, {"delivered": True}])
def test_a_drain_is_out_once_its_intent_says_so(
    monkeypatch: pytest.MonkeyPatch, intent: Any
) -> None:
    calls = Calls(monkeypatch)
    origin = calls.several(read_intent=intent)
    monkeypatch.setattr(exporting, "drained", lambda latest: False)
    assert exporting._drain_is_out(origin, LATEST)
    assert calls.did == []
    monkeypatch.setattr(exporting, "drained", lambda latest: True)
    assert exporting._drain_is_out(origin, LATEST) is (intent == {"delivered": True})
    assert calls.did == [("read_intent", 9)]


def test_batches_are_counted_on_from_the_newest_output() -> None:
    def settings(**given: Any) -> Any:
        none = {"function": None, "row_function": None, "format": None, "table": None}
        return SimpleNamespace(**(none | given))

    nothing, some = altered(sink_batch=-1), altered(sink_batch=3)
    assert exporting._last_batch(settings(), some) == 3
    assert exporting._last_batch(settings(), altered(sink_batch=0)) == 0
    for other in ({"function": len}, {"row_function": len}, {"format": "kafka"}, {"table": "t"}):
        assert exporting._last_batch(settings(**other), nothing) == 0
    for files in ({}, {"format": "ORC"}):
        with pytest.raises(
            CheckpointError, match="has put out nothing yet, and Spark's sink of fi"
        ):
            exporting._last_batch(settings(**files), nothing)
