"""What a query shows of itself: metrics at an address and in Spark's own system, here without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.journal import Batch, JournalWriter, Latency, OperatorInfo, SloState, Start
from headgate.spark.api import metrics, query_view, waiting
from headgate.spark.api.metrics import show_metrics

ADDRESS = ("127.0.0.1", 9095)
OPTIONS = {"headgate.metrics": "127.0.0.1:9095"}


def session(**settings: str) -> Any:
    return SimpleNamespace(conf=SimpleNamespace(get=settings.get))


class Served:
    """Metrics that are served at an address until the last journal is gone."""

    def __init__(self, journals: list[Path]) -> None:
        self.places = list(journals)
        self.address: tuple[str, int] | None = None
        self.add, self.remove = self.places.append, self.places.remove

    def serve(self, host: str, port: int) -> Any:
        self.address = (host, port)
        return SimpleNamespace(close=lambda: setattr(self, "address", None))


def test_queries_with_one_address_share_a_server_that_ends_with_the_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[Served] = []
    monkeypatch.setattr(
        metrics, "collect", lambda journals: served.append(Served(journals)) or served[-1]
    )
    one, two = tmp_path / "1", tmp_path / "2"
    ends = [show_metrics(session(), OPTIONS, journal) for journal in (one, two)]
    assert [(each.places, each.address) for each in served] == [([one, two], ADDRESS)]
    ends[0]()
    assert (served[0].places, served[0].address) == ([two], ADDRESS)
    ends[1]()
    ends[1]()  # a query may say so twice
    assert (served[0].places, served[0].address) == ([], None)
    show_metrics(session(), OPTIONS, one)()
    assert len(served) == 2, "the next one begins anew"
    show_metrics(session(), {}, one)()
    assert len(served) == 2


class Gauges:
    """Gauges of Spark's metric system under one name."""

    def __init__(self, spark: Any, prefix: str, names: Any) -> None:
        del spark
        self.prefix, self.names, self.values = prefix, tuple(names), dict[str, float]()

    def set(self, values: dict[str, float]) -> None:
        self.values |= values


BATCH = Batch(
    0, 0, 0, 2, 500.0, {"slots": 400.0}, 100, 90, 40, 1, 5, 7,
    latency_ms=Latency(300.0, 200.0, 250.0, 600.0, 900.0), state_rows=11, state_bytes=12,
    slo=SloState("steady", False, 0.9, 0.8, 3, "a", 100, 4, 0.99, 2000.0, 300.0, 1.5, 1),
    at_ms=2000,
)  # fmt: skip


def test_sparks_own_metrics_have_gauges_of_a_query_where_its_streaming_metrics_are_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Gauges] = []
    monkeypatch.setattr(metrics, "Gauges", lambda *given: made.append(Gauges(*given)) or made[-1])
    on = session(**{"spark.sql.streaming.metricsEnabled": "true"})
    ends = [show_metrics(on, {}, tmp_path / "a.jsonl"), show_metrics(session(), {}, tmp_path / "b")]
    for name in ("b", "a.jsonl"):
        with JournalWriter(tmp_path / name) as writer:
            operators = (OperatorInfo("a", "counts"), OperatorInfo("b", "counts"))
            writer.write(Start("j", "clicks", 8, 2, operators=operators, at_ms=1000))
            writer.write(BATCH)
    [gauges] = made
    assert gauges.prefix == "headgate.clicks"
    assert set(gauges.values) <= set(gauges.names)
    values = gauges.values
    assert (values["query_up"], values["batches"], values["slots"]) == (1, 1, 4)
    counts = [values[f"records_{what}"] for what in ("arrived", "served", "emitted")]
    assert counts == [100, 90, 40]
    assert (values["backlog_records"], values["state_rows"], values["state_bytes"]) == (5, 11, 12)
    assert (values["latency_mean_seconds"], values["latency_p99_seconds"]) == (0.3, 0.6)
    assert (values["slo_success_ratio"], values["slo_bound_seconds"]) == (0.9, 2.0)
    for end in ends:
        end()
    assert values["query_up"] == 0
    with JournalWriter(tmp_path / "a.jsonl") as writer:
        writer.write(Start("j", "another", 8, 2, at_ms=5000))
    assert len(made) == 1, "what was ended listens no more"


def test_what_is_not_known_sets_no_gauge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Gauges] = []
    monkeypatch.setattr(metrics, "Gauges", lambda *given: made.append(Gauges(*given)) or made[-1])
    listener = metrics._InSpark(session(), tmp_path / "a")
    listener.end()  # before there was a start
    listener(str(tmp_path / "a"), Start("j", "clicks", 8, 2, at_ms=1000))
    bare = Batch(0, 0, 0, 2, 500.0, {}, 1, 1, 1, 0, 0, 0, at_ms=2000)
    listener(str(tmp_path / "a"), bare)
    assert "latency_mean_seconds" not in made[0].values
    assert "slo_bound_seconds" not in made[0].values
    assert made[0].values["batches"] == 1


# --- Progress of a call that waits ---------------------------------------------------------------------


def tasks(*stages: tuple[int, int] | None) -> str:
    infos = [s and SimpleNamespace(numCompletedTasks=s[0], numTasks=s[1]) for s in stages]
    tracker = SimpleNamespace(
        getActiveStageIds=lambda: range(len(infos)), getStageInfo=infos.__getitem__
    )
    return waiting._tasks(
        SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    )  # type: ignore[arg-type]


def test_the_tasks_of_all_running_stages_are_counted() -> None:
    assert tasks((3, 10), None, (1000, 2000)) == "1,003 of 2,010 tasks done"
    assert tasks() == tasks(None) == tasks((0, 0)) == "Spark plans"


# --- A notebook ----------------------------------------------------------------------------------------


def test_a_view_in_a_notebook_is_refreshed_until_its_query_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = []
    views = [True, True, False, False]
    view = SimpleNamespace(html=lambda checkpoint, now_ms, driver: (checkpoint, driver.holds))
    monkeypatch.setattr(query_view, "NotebookView", lambda journal: view)
    handle = SimpleNamespace(update=shown.append)
    shell = SimpleNamespace(
        HTML=lambda text: text,
        display=lambda html, display_id: shown.append(html) or handle,
    )
    monkeypatch.setattr(query_view.importlib, "import_module", lambda name: shell)
    threads: list[Any] = []

    def thread(*, target: Any, **_: Any) -> Any:
        threads.append(target)
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr(query_view.threading, "Thread", thread)
    monkeypatch.setattr(query_view.time, "sleep", shown.append)
    running = query_view.QueryView(Path("j"), "s3://b/ck", lambda: views.pop(0))
    running.display(0.5)
    assert shown == [("s3://b/ck", True)]
    threads[0]()
    assert shown[1:] == [0.5, ("s3://b/ck", False)]
    assert views == []
