"""What a notebook and a terminal show of headgate's objects, and of Spark's start."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import threading
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headgate as hg
import headgate.spark

START = """
import headgate as hg
spark = hg.session(master="local[1]")
spark._jvm.java.lang.System.err.println("26/01/31 12:00:00 WARN TaskSetManager: a real warning")
spark._jvm.java.lang.System.err.flush()
spark.stop()
"""
GREETINGS = ("incubator", "log4j", "Setting default log level", "To adjust logging level")


def test_no_text_of_a_value_shows_what_may_have_credentials() -> None:
    """A text of an object gets into tracebacks and logs, by whoever writes them."""
    mappings = {"client", "options", "properties", "store"}
    hidden, shown = set(), set()
    for found in pkgutil.walk_packages(headgate.spark.__path__, "headgate.spark."):
        for name, one in vars(importlib.import_module(found.name)).items():
            if not (is_dataclass(one) and one.__module__ == found.name):
                continue
            for field in fields(one):
                if not field.repr:
                    hidden.add(f"{name}.{field.name}")
                elif field.name in mappings and str(field.type).startswith("Mapping"):
                    shown.add(f"{name}.{field.name}")
    assert shown == set()
    assert {"Meeting.key", "MergeSpec.url", "SlotTask.store", "Target.options"} < hidden


class Cell:
    """Takes what a notebook shows, the first time and later."""

    def __init__(self, shown: list[str], html: str) -> None:
        self.update = shown.append
        shown.append(html)


def test_writer_query_and_plan_say_what_they_are(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    counts = spark.readStream.schema("k long").parquet(str(tmp_path / "in")).groupBy("k").count()
    writer = hg.writeStream(counts).format("noop").outputMode("update").queryName("shown")
    writer = writer.slo("mean < 1 s over 1 s").option("password", "secret")
    writer = writer.option("checkpointLocation", str(tmp_path / "ck"))
    assert repr(writer) == (
        f"<Writer: name shown, to noop, mode update, checkpoint {tmp_path / 'ck'}, slo mean < 1 s "
        "over 1 s; .start() starts it>"
    )
    query = writer.start()
    journal = tmp_path / "ck" / "headgate" / "journal.jsonl"
    try:
        shown = repr(query)
        assert shown.startswith("<Query: running, ")
        assert shown.endswith(f"aggregate-0 2 slots, journal {journal}>")
        with pytest.raises(hg.ConfigError, match="needs a notebook"):
            query.display()
        cells: list[str] = []
        notebook = ModuleType("IPython.display")
        notebook.HTML = str  # type: ignore[attr-defined]
        notebook.display = lambda html, display_id: Cell(cells, html)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", notebook)
        query.display(every_s=0.01)
    finally:
        query.stop()
    assert "shown: " in cells[0]
    (thread,) = [t for t in threading.enumerate() if t.name == "headgate-display"] or [None]
    if thread is not None:
        thread.join(60)
    assert "ended" in cells[-1]
    monkeypatch.delitem(sys.modules, "IPython")  # which matplotlib would ask for its version
    assert query._repr_html_().startswith('<div class="headgate"><table>')
    assert len(query.plot().axes) == 3
    assert repr(query).startswith("<Query: ended, ")
    text = hg.explain(counts, "update")
    assert repr(text) == str(text)
    assert repr(text).startswith("elastic       Aggregate keys k")
    assert text._repr_html_().startswith('<pre class="headgate">elastic ')


def test_a_fleet_says_what_it_has(spark: Any, tmp_path: Path) -> None:
    fleet = hg.Fleet(spark, slots=3)
    assert repr(fleet) == "<Fleet: not started, 3 slots, policy henge(total); no job>"
    fleet.stop()


@pytest.mark.parametrize("quiet", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_session_starts_without_sparks_greetings_and_hides_no_warning(
    quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_QUIET", "1" if quiet else "0")
    ran = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, check=True, timeout=120
    )
    assert "a real warning" in ran.stderr
    assert any(word in ran.stderr for word in GREETINGS) is not quiet
