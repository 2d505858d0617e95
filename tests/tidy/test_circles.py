"""Files that import each other, also for types only: to read one is then to read them all."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_no_files_import_each_other() -> None:
    assert _circles_of("headgate", "headgate_demo", "headgate_lab") == set()


def test_a_circle_by_an_import_for_types_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "circular"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("from circular.two import Two\n")
    (package / "two.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circular.one import One\n"
    )
    (package / "three.py").write_text("import circular.one\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _circles_of("circular") == {frozenset({"circular.one", "circular.two"})}


def _circles_of(*packages: str) -> set[frozenset[str]]:
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    return _circles({m: graph.find_modules_directly_imported_by(m) for m in graph.modules})


def _circles(arrows: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    """Return the largest sets of nodes of which each reaches each other one."""
    reached = {start: _reached(arrows, start) for start in arrows}
    found = {
        frozenset(other for other in reached[start] if start in reached[other])
        for start in arrows
        if start in reached[start]
    }
    return found


def _reached(arrows: Mapping[str, Set[str]], start: str) -> set[str]:
    """Return what a walk of at least one arrow from `start` comes to."""
    found: set[str] = set()
    pending = [start]
    while pending:
        for after in arrows.get(pending.pop(), ()):
            if after not in found:
                found.add(after)
                pending.append(after)
    return found
