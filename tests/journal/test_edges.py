"""Edges of a journal: long lines, lines that come in parts, places to look at, buckets."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journal_page import _section, field_docs

from headgate.core.errors import CheckpointError, EngineError
from headgate.core.input import FLOAT_MAX, KEY_GROUPS_MAX, WHOLE_MAX
from headgate.journal import (
    Batch,
    BatchBegun,
    ControlAct,
    JournalWriter,
    Start,
    Stop,
    read,
    reader,
    writer,
)
from headgate.journal.codec import decode, encode
from headgate.journal.histogram import (
    BUCKETS,
    EDGES_MS,
    counts_of,
    merge,
    percentile_ms,
    share_within,
    sparse_of,
)
from headgate.journal.numbers import LATEST_MS
from headgate.journal.reader import Tail, follow, journals_below, locate

START = Start("j", "q", 8, 2, at_ms=1)


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("length", [1, 9, 10, 11, 20, 25, 95])
def test_a_torn_line_of_any_length_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(writer, "TAIL_BYTES", 10)
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path) as first:
        first.write(START)
    whole = path.read_bytes()
    with open(path, "ab") as file:
        file.write(b"x" * length)
    JournalWriter(path).close()
    assert path.read_bytes() == whole
    path.write_bytes(b"x" * length)
    JournalWriter(path).close()
    assert path.read_bytes() == b"", "no line of it was whole"


def test_a_line_that_the_disk_takes_in_parts_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(writer.os, "write", lambda file, data: write(file, data[:7]))
    with JournalWriter(tmp_path / "journal.jsonl") as parts:
        parts.write(START)
        parts.write(BatchBegun(1, 1, at_ms=3))
    monkeypatch.undo()
    assert list(read(tmp_path / "journal.jsonl")) == [START, BatchBegun(1, 1, at_ms=3)]


def test_a_writer_may_be_closed_twice_and_closes_its_file_once(tmp_path: Path) -> None:
    made = JournalWriter(tmp_path / "journal.jsonl")
    made.close()
    other = os.open(
        tmp_path / "journal.jsonl", os.O_RDONLY
    )  # gets the number of the file that went
    made.close()
    os.fstat(other)
    os.close(other)


def test_the_end_of_a_with_closes_the_file(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "journal.jsonl") as made:
        made.write(START)
    with pytest.raises(EngineError, match="cannot append to the journal"):
        made.write(START)


def test_a_line_may_be_as_long_as_the_limit_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path) as made:
        made.write(START)
    length = len(lines(path)[0])
    monkeypatch.setattr(reader, "LINE_MAX", length)
    assert list(read(path)) == [START]
    monkeypatch.setattr(reader, "LINE_MAX", length - 1)
    with pytest.raises(CheckpointError, match=f"a line of more than {length - 1:,} bytes"):
        list(read(path))
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setattr(reader, "LINE_MAX", length)
    assert list(read(path)) == [], "it is torn, and may become whole"


def test_a_damaged_line_is_named_by_its_number_also_when_it_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path) as made:
        made.write(START)
    tail = Tail(path)
    assert list(tail.events()) == [START]
    with open(path, "ab") as file:
        file.write(b"{\n")
    with pytest.raises(CheckpointError, match=r"journal\.jsonl line 2"):
        list(tail.events())


def test_waiting_for_news_sleeps_and_never_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(reader.time, "sleep", slept.append)
    assert reader._wait() is True
    assert slept == [reader.POLL_S]
    assert 0.05 <= reader.POLL_S <= 0.5, "below what an eye notices, and no load"


def test_news_are_waited_for_as_long_as_there_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "journal.jsonl", JournalWriter(tmp_path / "journal.jsonl")
    made.write(START)
    waits = iter([True, True, False])
    assert list(follow(path, lambda: next(waits))) == [START]
    assert next(waits, "used up") == "used up"
    made.close()


def journal_at(place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    with JournalWriter(place) as made:
        made.write(START)
    return place


def test_journals_are_found_to_some_depth_and_once_each(tmp_path: Path) -> None:
    here = journal_at(tmp_path / "journal.jsonl")
    places = [here]
    below = tmp_path
    for depth in range(1, reader.DEPTH + 2):
        below = below / f"d{depth}"
        made = journal_at(below / "headgate" / "journal.jsonl")
        if depth <= reader.DEPTH:
            places.append(made)
    places.append(journal_at(tmp_path / "fleet" / "fleet.jsonl"))
    assert journals_below(tmp_path) == sorted(places)
    assert journals_below(here) == [here]
    (tmp_path / "empty").mkdir()
    assert journals_below(tmp_path / "empty") == []
    with pytest.raises(CheckpointError, match="there is no directory"):
        journals_below(tmp_path / "none")


def test_a_link_that_is_typed_is_followed_and_other_files_are_themselves(tmp_path: Path) -> None:
    real = journal_at(tmp_path / "real.jsonl")
    (tmp_path / "link.jsonl").symlink_to(real)
    assert locate(tmp_path / "link.jsonl") == real
    assert locate(real) == real


def test_a_kind_without_words_of_its_own_has_an_empty_line_for_them() -> None:
    class Bare:
        """"""

    Bare.__doc__ = None
    assert _section("bare", Bare).splitlines()[:4] == ["## bare", "", "", ""]


def test_buckets_reach_from_a_tenth_of_a_millisecond_to_a_day() -> None:
    assert len(EDGES_MS) == BUCKETS
    assert EDGES_MS[0] == 0.1
    assert 24 * 3.6e6 < EDGES_MS[-1] < 26 * 3.6e6
    with pytest.raises(ValueError, match="read-only"):
        EDGES_MS[0] = 1.0
    assert counts_of(EDGES_MS).tolist() == [1] * BUCKETS, "an edge belongs to its own bucket"
    assert counts_of([EDGES_MS[-1] * 10, -5.0, np.nan]).nonzero()[0].tolist() == [0, BUCKETS - 1]


def test_percentiles_and_shares_lie_evenly_within_a_bucket() -> None:
    edge = float(EDGES_MS[40])
    below = edge / 1.05
    one = sparse_of(counts_of([edge] * 10))
    assert percentile_ms(one, 0.0) == pytest.approx(below, rel=1e-3)
    assert percentile_ms(one, 0.5) == pytest.approx((below + edge) / 2, rel=1e-3)
    assert percentile_ms(one, 1.0) == pytest.approx(edge)
    assert share_within(one, (below + edge) / 2) == pytest.approx(0.5, abs=0.01)
    assert (share_within(one, below * 0.99), share_within(one, edge)) == (0.0, 1.0)
    first = sparse_of(counts_of([0.05] * 4))
    assert percentile_ms(first, 0.5) == pytest.approx(0.05)
    assert share_within(first, 0.05) == pytest.approx(0.5)
    both = merge([one, first, one])
    assert both == ((0.1, 4), (edge, 20))
    assert percentile_ms(both, 4 / 24) == pytest.approx(0.1)
    assert (percentile_ms((), 0.5), share_within((), 1.0)) == (None, None)
    assert Batch.KIND == "batch"


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("step", -WHOLE_MAX, WHOLE_MAX),
        ("arrived", 0, WHOLE_MAX),
        ("slots", 0, KEY_GROUPS_MAX),
        ("at_ms", 0, LATEST_MS),
        ("duration_ms", -FLOAT_MAX, FLOAT_MAX),
    ],
)
def test_a_number_that_no_journal_has_is_damage(field: str, least: float, most: float) -> None:
    batch = Batch(1, 1, 0, 2, 1.0, {}, 1, 1, 1, 0, 0, 0, at_ms=5)
    line = json.loads(encode(batch))
    for value in (least, most):
        event = decode(json.dumps(line | {field: value}).encode(), where="line 1")
        assert getattr(event, field) == value
    for value in (
        least * 1.5 if least else -1,
        most * 1.5 if isinstance(most, float) else most + 1,
    ):
        with pytest.raises(CheckpointError, match="line 1 is not a journal line"):
            decode(json.dumps(line | {field: value}).encode(), where="line 1")


@pytest.mark.parametrize("value", ["1e300", "1" * 40, "[" * 200 + "]" * 200])
@pytest.mark.parametrize("field", ["parameters", "summary"])
def test_what_people_may_write_into_an_event_is_bounded(field: str, value: str) -> None:
    event = {"parameters": START, "summary": Stop("user", None, {}, 5)}[field]
    line = encode(event).decode()
    assert decode(line.encode(), where="line 1") == event
    wild = line.replace(f'"{field}":{{}}', f'"{field}":{{"a":{value}}}').encode()
    assert wild != line.encode()
    with pytest.raises(CheckpointError, match="line 1 is not a journal line"):
        decode(wild, where="line 1")


def test_times_are_those_that_a_calendar_can_show() -> None:
    latest = dt.datetime.fromtimestamp(LATEST_MS / 1000, dt.UTC)
    assert (latest.year, LATEST_MS % 10**12) == (9892, 0)
    assert latest + dt.timedelta(days=1)


def test_only_fields_with_words_below_them_are_documented() -> None:
    assert [name for name, *_ in field_docs(Mixed)] == ["first", "last"]


class Mixed:
    """Has fields, and what is none."""

    first: int
    """The first."""
    other = 5
    """No field: it has no type."""
    bare: int
    last: str = "x"
    """The last."""


@pytest.mark.parametrize("reason", [3, None, ["too", "many"], True])
def test_an_event_that_could_not_be_read_back_is_not_written(tmp_path: Path, reason: Any) -> None:
    """One such line would make the whole journal unreadable."""
    with JournalWriter(tmp_path / "journal.jsonl") as writer:
        writer.write(START)
        with pytest.raises(EngineError, match="Expected `str`"):
            writer.write(ControlAct("scale", "user", reason))
    assert len(list(read(tmp_path / "journal.jsonl"))) == 1


def test_half_a_character_in_a_text_leaves_the_line_readable(tmp_path: Path) -> None:
    """A path that is no UTF-8 has such halves in Python."""
    path = os.fsdecode(b"/data/caf\xe9 \xf0\x9f\x98\x80")
    with JournalWriter(tmp_path / "journal.jsonl") as writer:
        writer.write(START)
        writer.write(ControlAct("scale", "user", path))
    _, event = read(tmp_path / "journal.jsonl")
    assert event.reason == "/data/caf? \N{GRINNING FACE}"
