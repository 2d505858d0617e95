"""The page and the metrics of a checkpoint on a store: few requests, one sentence, no credential."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import runs
from typer.testing import CliRunner

from headgate import scenario as scenarios
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.shipping import JournalCopy, JournalShipper, piece
from headgate.cli.commands import app
from headgate.core.errors import CheckpointError
from headgate.journal.codec import encode
from headgate.metrics.exporter import JournalMetrics
from headgate.scenario import stored_journal
from headgate.scenario.stored_journal import StoredJournal, journal_place
from headgate.ui import app as page
from headgate.ui.shelf import Shelf
from headgate_lab.testing import s3_server
from headgate_lab.testing.s3_server import BUCKET, FORBIDDEN, FaultyS3, S3Fault

pytest.importorskip("obstore", reason="needs headgate[store]")

WHERE = f"s3://{BUCKET}/jobs/clicks"
SECRET = "p4ssw0rd"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """A store that has a checkpoint with a journal of two pieces."""
    with s3_server.serving() as made:
        for name, text in made.environment.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        lines = [encode(event) for event in runs.scaled_run()]
        put(made, 0, b"".join(lines[:5]))
        put(made, 1, b"".join(lines[5:]))
        made.objects["jobs/clicks/headgate/identity.json"] = b"{}"
        yield made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves, for the time between two looks at a store."""
    now_s = [1_000.0]
    monkeypatch.setattr(stored_journal.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(stored_journal, "WAIT_S", 20.0)
    return now_s


def put(store: FaultyS3, number: int, data: bytes) -> None:
    store.objects[f"jobs/clicks/headgate/{piece(number)}"] = data


def new_line() -> bytes:
    return encode(runs.batch(200))


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_metrics_of_a_checkpoint_on_a_store_are_printed(store: FaultyS3) -> None:
    found = json.loads(call("exporter", WHERE, "--once", "--json").stdout)
    assert found["broken"] == []
    assert 'headgate_batches_total{query="q"' in found["metrics"]


def test_the_page_shows_a_checkpoint_on_a_store(
    store: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(page, "serve", lambda shelf, *_: asked.append(shelf))
    assert call("ui", WHERE).exit_code == 0
    (entry,) = asked[0].index()
    assert entry["place"] == WHERE
    shown = asked[0].query(entry["id"], 100)
    assert shown["diagnosis"]["checkpoint"] == WHERE
    assert asked[0].checkpoint(entry["id"]) == WHERE
    assert len(shown["curves"]["at_s"]) == sum(e.KIND == "batch" for e in runs.scaled_run())


@pytest.mark.parametrize("command", ["ui", "exporter"])
def test_what_cannot_be_read_at_the_start_is_one_sentence(store: FaultyS3, command: str) -> None:
    none = call(command, f"s3://{BUCKET}/none")
    assert (none.exit_code, none.stderr.count("\n")) == (2, 1)
    assert none.stderr.startswith(f"headgate: checkpoint s3://{BUCKET}/none does not exist; give")
    store.faults.append(S3Fault(FORBIDDEN, "GET"))
    refused = call(command, WHERE)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "the store refuses to list (403 AccessDenied)" in refused.stderr
    assert SECRET not in refused.output


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIA77:p4ssw0rd@bucket/ck",
        "hdfs://me:p4ssw0rd@name:8020/ck",
        "abfss://c@a.dfs.core.windows.net/ck?sv=1&sig=p4ssw0rd",
        "s3a://bucket/ck?X-Amz-Signature=p4ssw0rd",
    ],
)
@pytest.mark.parametrize("command", ["ui", "exporter", "status", "inspect", "diagnose"])
def test_a_credential_in_an_address_is_refused_and_not_shown(command: str, text: str) -> None:
    found = call(command, text)
    assert found.exit_code == 2
    assert "has a credential in its address" in found.output
    assert SECRET not in found.output


def test_requests_do_not_grow_with_readers_and_end_with_them(
    store: FaultyS3, clock: list[float]
) -> None:
    journal = StoredJournal(WHERE)
    shelf = Shelf([journal], scenarios.driver_of)
    metrics = JournalMetrics([journal])
    store.requests.clear()

    def look() -> None:
        (entry,) = shelf.index()
        shelf.query(entry["id"], 100)
        metrics.text()

    for _ in range(12):  # a minute of twenty viewers and scrapes
        clock[0] += stored_journal.EVERY_S
        for _ in range(20):
            look()
    assert len(store.requests) == 24
    clock[0] += 600
    assert len(store.requests) == 24


def test_a_store_that_cannot_be_read_for_a_while_is_told_and_read_again(
    store: FaultyS3, clock: list[float]
) -> None:
    journal = StoredJournal(WHERE)
    now_ms = [runs.BEGAN_MS]
    shelf = Shelf([journal], scenarios.driver_of, lambda: now_ms[0])
    metrics = JournalMetrics([journal])
    (entry,) = shelf.index()
    before = metrics.text()
    put(store, 2, new_line())
    store.faults += [S3Fault(FORBIDDEN, "GET")]
    clock[0] += stored_journal.EVERY_S
    now_ms[0] += 5_000
    shown = shelf.query(entry["id"], 100)
    assert shown is not None
    assert "the store refuses to read (403 AccessDenied)" in shown["error"]
    assert SECRET not in json.dumps(shown)
    assert metrics.text() == before
    assert metrics.broken == [shown["error"]]
    clock[0] += stored_journal.EVERY_S
    now_ms[0] += 5_000
    until(lambda: (shelf.query(entry["id"], 100) or {})["error"] == "", now_ms)
    assert metrics.text() != before
    assert metrics.broken == []


def until(is_so: Callable[[], bool], now_ms: list[int]) -> None:
    """Look until a thread has done its part."""
    for _ in range(500):
        if is_so():
            return
        now_ms[0] += 1_000
        time.sleep(0.01)
    pytest.fail("it never was so")


def test_a_store_that_does_not_answer_keeps_nobody_waiting(
    store: FaultyS3, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = StoredJournal(WHERE)
    released = threading.Event()
    monkeypatch.setattr(JournalCopy, "refresh", lambda _: released.wait(30))
    monkeypatch.setattr(stored_journal, "WAIT_S", 0.01)
    clock[0] += stored_journal.EVERY_S
    shelf = Shelf([journal], scenarios.driver_of)
    name = shelf.index()[0]["id"]
    clock[0] += 9.0
    shown = shelf.query(name, 100)
    assert shown is not None
    assert f"{WHERE}: its store has not answered for 9 s" in journal.refresh()
    assert not released.is_set()
    released.set()


def test_a_copy_that_cannot_be_written_is_one_sentence(store: FaultyS3, clock: list[float]) -> None:
    journal = StoredJournal(WHERE)
    shutil.rmtree(journal.path.parent)
    put(store, 2, new_line())
    clock[0] += stored_journal.EVERY_S
    sentence = journal.refresh()
    assert sentence.startswith(f"the journal of {WHERE} cannot be copied to ")
    assert sentence.endswith("No such file or directory; make room there, and begin again.")


def test_a_damaged_line_names_the_place_on_the_store(store: FaultyS3, clock: list[float]) -> None:
    put(store, 2, b"{}\n")
    found = json.loads(call("exporter", WHERE, "--once", "--json").stdout)
    line = len(runs.scaled_run()) + 1
    assert found["broken"][0].startswith(f"{WHERE} line {line} is not a journal line")


def test_a_journal_that_is_to_come_is_waited_for(store: FaultyS3, clock: list[float]) -> None:
    for number in (0, 1):
        del store.objects[f"jobs/clicks/headgate/{piece(number)}"]
    metrics = JournalMetrics([StoredJournal(WHERE)])
    assert "headgate_batches_total{" not in metrics.text()
    put(store, 0, b"".join(map(encode, runs.scaled_run())))
    clock[0] += stored_journal.EVERY_S
    assert "headgate_batches_total{" in metrics.text()


def test_a_long_journal_is_copied_with_one_request_a_piece(store: FaultyS3, tmp_path: Path) -> None:
    lines = [encode(event) for event in runs.scaled_run()[:12]]
    for number, line in enumerate(lines):
        put(store, number, line)
    store.requests.clear()
    files = Checkpoint(WHERE).files
    copy = JournalCopy(files, tmp_path / "copy")
    assert copy.refresh()
    assert (tmp_path / "copy").read_bytes() == b"".join(lines)
    assert len(store.requests) == len(lines) + 2, "the list, and whether there is another piece"
    assert not copy.refresh()
    assert len(store.requests) == len(lines) + 4
    source = tmp_path / "source"
    source.write_bytes(b"more\n")
    shipper = JournalShipper(files, source)
    shipper.close()
    assert copy.refresh()
    assert (tmp_path / "copy").read_bytes() == b"".join(lines) + b"more\n"


def test_a_place_on_a_disk_stays_what_it_is(tmp_path: Path) -> None:
    assert journal_place(tmp_path) == tmp_path
    with pytest.raises(CheckpointError, match="names no key in a bucket"):
        journal_place(Path("s3:/bucket"))
