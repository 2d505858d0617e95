"""Places that metrics are collected from: new ones, those that go, and names that two queries share."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import shutil
import socket
from pathlib import Path

import pytest
from journals import START, batch, write

from headgate.core.errors import CheckpointError, ConfigError
from headgate.journal import (
    AssignmentChange,
    ExecutorChange,
    GrantChange,
    SlotLost,
    SlotRequest,
    Stop,
)
from headgate.metrics import exporter
from headgate.metrics.exporter import JournalMetrics
from headgate.metrics.totals import BATCH_EDGES_S, Buckets, QueryTotals


def names(metrics: JournalMetrics) -> list[str]:
    lines = metrics.text().splitlines()
    return [line.partition('query="')[2].partition('"')[0] for line in lines
            if line.startswith("headgate_query_up{")]  # fmt: skip


def place(path: Path, name: str = "clicks") -> Path:
    start = dataclasses.replace(START, name=name)
    write(path / "headgate" / "journal.jsonl", [start, batch(0), batch(1)])
    return path


def test_queries_of_one_name_are_told_apart_by_their_places(tmp_path: Path) -> None:
    for where in ("a/x", "b/x", "c/x", "d/y"):
        place(tmp_path / where)
    place(tmp_path / "e", name="")
    found = names(JournalMetrics([tmp_path]))
    assert found == ["clicks", "clicks (x)", "clicks (x) 2", "clicks (y)", "e"]


def test_places_come_and_go(tmp_path: Path) -> None:
    one = place(tmp_path / "one", "one")
    metrics = JournalMetrics([one])
    assert names(metrics) == ["one"]
    other = write(tmp_path / "other.jsonl", [dataclasses.replace(START, name="other"), batch(0)])
    metrics.add(other)
    assert names(metrics) == ["one", "other"]
    metrics.remove(other)
    assert metrics.places == [one]
    assert names(metrics) == ["one"]
    metrics.remove(tmp_path / "none")
    with pytest.raises(CheckpointError, match="there is no directory"):
        JournalMetrics([tmp_path / "none"])


def test_a_damaged_journal_keeps_its_values_and_is_not_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", [START, batch(0)])
    metrics = JournalMetrics([path])
    before = metrics.text()
    with open(path, "a", encoding="utf-8") as file:
        file.write("{\n")
    assert metrics.text() == before
    (sentence,) = metrics.broken
    assert "line 3" in sentence
    assert metrics.text() == before
    metrics.remove(path)
    assert metrics.broken == []


def test_an_address_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    metrics = JournalMetrics([place(tmp_path / "one")])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            metrics.serve("127.0.0.1", port)
    assert str(refused.value) == (
        f"metrics cannot be served at 127.0.0.1:{port}: Address already in use; give another address."
    )


def test_a_value_at_an_edge_is_below_it() -> None:
    buckets = Buckets(BATCH_EDGES_S)
    for edge in BATCH_EDGES_S:
        buckets.add(edge)
    buckets.add(1e9, 5)
    counts = [count for _, count in buckets.cumulative()]
    assert counts == [*range(1, len(BATCH_EDGES_S) + 1), len(BATCH_EDGES_S) + 5]
    assert [edge for edge, _ in buckets.cumulative()][-1] == "+Inf"


def test_what_happens_seldom_is_counted_too() -> None:
    totals = QueryTotals()
    for event in (
        START,
        batch(0, backlog=0, lag={}),
        AssignmentChange(1, 1, 2, 4, 7, 100, "user", operator="a"),
        AssignmentChange(2, 2, 4, 3, 5, 50, "--scale-at", operator="a"),
        AssignmentChange(3, 3, 3, 2, 1, 10, "unified", operator="a"),
        AssignmentChange(4, 4, 2, 2, 3, 10, "unified", operator="a"),
        SlotLost(5, "a", 1),
        GrantChange({"a": 5}, "fleet"),
        SlotRequest({"a": 7}, {"a": 5}),
        ExecutorChange("add", 4, 2, 1, 3, 2, 10.0),
    ):
        totals.absorb(event)
    assert totals.rescales == {("a", "user"): 1, ("a", "schedule"): 1, ("a", "policy"): 1}
    assert (totals.groups_moved["a"], totals.bytes_moved["a"], totals.slots_now["a"]) == (
        16,
        170,
        2,
    )
    assert (totals.slots_lost["a"], totals.slots_granted, totals.slots_wanted) == (
        1, {"a": 5}, {"a": 7},
    )  # fmt: skip
    assert (totals.executors, totals.is_up, totals.backlog_s) == (2, True, 0.0)
    totals.absorb(Stop("user", at_ms=9_000))
    assert (totals.is_up, totals.last_event_ms) == (False, 9_000)
    assert QueryTotals().backlog_s is None


def test_what_waits_takes_as_long_as_the_rate_of_the_last_batches_says() -> None:
    totals = QueryTotals()
    totals.absorb(START)
    totals.absorb(batch(0, backlog=50, lag={"t": 50}))
    assert totals.backlog_s is None, "one batch has no rate"
    for step in range(1, 5):
        totals.absorb(batch(step, backlog=50, lag={"t": 50}))
    assert totals.backlog_s == pytest.approx(100 * 4 / 400)


def test_a_place_that_is_gone_keeps_nobody_from_reading_the_others(tmp_path: Path) -> None:
    one, other = place(tmp_path / "one", "one"), place(tmp_path / "other", "other")
    metrics = JournalMetrics([one, other])
    assert names(metrics) == ["one", "other"]
    shutil.rmtree(one)
    place(other / "later", "later")
    assert names(metrics) == ["one", "other", "later"]
    assert len(metrics.broken) == 1


def answered(port: int, host: str) -> int:
    """The status of an answer to a request that names a host."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    client.putrequest("GET", "/metrics", skip_host=True)
    client.putheader("Host", host)
    client.endheaders()
    try:
        return client.getresponse().status
    finally:
        client.close()


def test_metrics_for_this_machine_are_refused_to_another_name(tmp_path: Path) -> None:
    metrics = JournalMetrics([place(tmp_path / "one")])
    own, all_hosts = metrics.serve("127.0.0.1", 0), metrics.serve("0.0.0.0", 0)
    try:
        here = ["127.0.0.1", f"127.0.0.1:{own.port}", "localhost:1", "LOCALHOST", "[::1]:9095"]
        assert {answered(own.port, host) for host in here} == {200}
        other = ["evil.example", "127.0.0.1.evil.example", "", "[", "127.0.0.1@evil.example"]
        assert {answered(own.port, host) for host in other} == {400}
        assert answered(all_hosts.port, "pod-7.example:9095") == 200
    finally:
        own.close()
        all_hosts.close()


def test_clients_that_say_nothing_are_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter._Handler, "timeout", 0.2)
    monkeypatch.setattr(exporter, "CLIENTS_MAX", 2)
    serving = JournalMetrics([place(tmp_path / "one")]).serve("127.0.0.1", 0)
    try:
        silent = [socket.create_connection(("127.0.0.1", serving.port), 20) for _ in range(5)]
        for client in silent:
            client.sendall(b"GET /metrics HT")
        for client in silent:
            with client, contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b"", "no answer"
        assert answered(serving.port, "localhost") == 200
    finally:
        serving.close()


def test_a_huge_name_is_cut_before_it_is_sent_with_each_scrape(tmp_path: Path) -> None:
    metrics = JournalMetrics([place(tmp_path / "one", "A" * 1_000_000)])
    assert len(metrics.text()) < 100_000
    assert 'query="AAAA' in metrics.text()
