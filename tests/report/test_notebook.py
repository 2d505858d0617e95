"""A query in a notebook: the diagnosis as a table, and its latency as a line."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import runs

from headgate.core.errors import CheckpointError
from headgate.journal import Stop, read
from headgate.journal.codec import encode
from headgate.report.diagnose import diagnose
from headgate.report.limits import DriverSeen
from headgate.report.notebook import NotebookView, history_figure, text_html

INCIDENTS = Path(__file__).parent / "incidents"
ALIVE = DriverSeen(holds=True, owner="this program")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return Path(shutil.copy(INCIDENTS / "cores.jsonl", tmp_path))


def shown(journal: Path, view: NotebookView, checkpoint: str = "CK") -> ElementTree.Element:
    now_ms = max(event.at_ms for event in read(journal)) + 1000
    return ElementTree.fromstring(view.html(checkpoint, now_ms, ALIVE))


def cells(page: ElementTree.Element) -> list[tuple[str, str]]:
    return [(row[0].text or "", row[1].text or "") for row in page.iter("tr")]


def test_a_query_is_shown_with_what_diagnose_says_and_its_latency(journal: Path) -> None:
    page = shown(journal, NotebookView(journal))
    events = list(read(journal))
    found = diagnose(events, "CK", now_ms=max(e.at_ms for e in events) + 1000, driver=ALIVE)
    rows = cells(page)
    assert rows[0] == ("query", found["query"]["text"])
    assert ("SLO", found["slo"]["verdict"]) in rows
    assert [text for label, text in rows if label == "do"] == found["do"]
    picture = next(page.iter("svg"))
    told = picture.attrib["aria-label"]
    batches = [e for e in events if type(e).__name__ == "Batch" and e.latency_ms is not None]
    assert told.startswith(f"mean latency of the last {len(batches)} batches: now ")
    assert "bound 2,000 ms" in told
    points = [p for p in next(picture.iter("polyline")).attrib["points"].split()]
    assert len(points) == len(batches)
    assert (points[0].split(",")[0], points[-1].split(",")[0]) == ("0.0", "480.0")
    highest = max(range(len(batches)), key=lambda n: batches[n].latency_ms.mean)
    assert float(points[highest].split(",")[1]) == pytest.approx(0.0, abs=0.1)


def test_only_what_is_new_is_read_and_what_a_journal_says_is_no_markup(journal: Path) -> None:
    view = NotebookView(journal)
    shown(journal, view)
    at_ms = max(event.at_ms for event in read(journal)) + 1
    with journal.open("ab") as file:
        file.write(encode(Stop("failed", "<script>alert(1)</script>", {}, at_ms)))
    page = shown(journal, view, checkpoint="<b>")
    assert any("<script>alert(1)</script>" in text for _, text in cells(page))
    assert not list(page.iter("script"))
    assert not list(page.iter("b"))


def test_without_two_batches_there_is_no_line(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(encode(runs.start()) + encode(runs.batch(0)))
    assert not list(shown(journal, NotebookView(journal)).iter("svg"))
    with pytest.raises(CheckpointError, match="there is no journal"):
        NotebookView(tmp_path / "gone")


def test_a_run_is_drawn_with_its_bound(journal: Path) -> None:
    figure = history_figure(journal)
    latency, waiting, slots = figure.axes
    batches = [e for e in read(journal) if type(e).__name__ == "Batch"]
    assert [len(line.get_ydata()) for line in latency.lines] == [len(batches), 2]
    assert list(slots.lines[0].get_ydata()) == [b.slots for b in batches]
    assert list(waiting.lines[0].get_ydata()) == [b.backlog + sum(b.lag.values()) for b in batches]
    assert latency.lines[1].get_ydata()[0] == 2.0


def test_a_text_keeps_its_columns() -> None:
    assert text_html("a  <b>\n c") == '<pre class="headgate">a  &lt;b&gt;\n c</pre>'
