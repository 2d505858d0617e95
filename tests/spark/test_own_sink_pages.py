"""The blocks of the pages about sinks and stores of one's own do what the pages say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"


def names_of(page: str) -> dict[str, Any]:
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"runs this block -->\n```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    return names


class FakeRow(dict[str, int]):
    asDict = dict.copy


def test_the_sink_of_the_page_replaces_an_output_that_comes_again(tmp_path: Path) -> None:
    sink = names_of("own-sink.md")["JsonFiles"]({"path": str(tmp_path)}, "append", None)
    sink.begin()
    for number in (0, 1, 1):
        sink.write("q", number, SimpleNamespace(collect=lambda: [FakeRow(k=1)]))
    found = {file.name: json.loads(file.read_text()) for file in (tmp_path / "q").iterdir()}
    assert found == {"0.json": [{"k": 1}], "1.json": [{"k": 1}]}


def test_the_store_of_the_page_passes_its_contract() -> None:
    contract = names_of("own-store.md")["TestMemoryStore"]()
    tests = [name for name in dir(contract) if name.startswith("test_")]
    assert len(tests) == 5
    for name in tests:
        getattr(contract, name)()
