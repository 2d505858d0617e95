"""The blocks of the pages about sinks and stores of one's own do what the pages say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[3] / "docs"


def names_of(page: str) -> dict[str, Any]:
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"runs this block -->\n```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    return names


def test_the_sink_of_the_page_passes_the_test_of_the_page(tmp_path: Path) -> None:
    names_of("own-sink.md")["test_an_output_that_comes_again_is_there_once"](tmp_path)
    (second,) = tmp_path.rglob("1.json")
    assert json.loads(second.read_text()) == [{"n": 1}]


def test_the_store_of_the_page_passes_its_contract() -> None:
    contract = names_of("own-store.md")["TestMemoryStore"]()
    tests = [name for name in dir(contract) if name.startswith("test_")]
    assert len(tests) == 5
    for name in tests:
        getattr(contract, name)()
