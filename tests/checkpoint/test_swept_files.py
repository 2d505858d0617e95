"""Tests which files a sweep takes away: those that two sweeps found without a name in a manifest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.checkpoint.garbage import Garbage
from headgate.checkpoint.manifest import FIRST_STEPS, SOURCES, file_name


class Files:
    """Names of files, of which some cannot be listed."""

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared
        self.kinds: list[str] = []
        self.removed: list[str] = []
        self.there: dict[str, list[str]] = {}

    def names(self, kind: str) -> list[str]:
        self.kinds.append(kind)
        if kind == "output":
            raise OSError("it cannot be listed")
        return self.there.get(kind, [])

    def remove(self, names: Any) -> None:
        self.removed += names


def manifest(step: int, *names: str, late: tuple[Any, ...] = ()) -> Any:
    files = [SimpleNamespace(name=name) for name in names]
    return SimpleNamespace(step=step, files=files, engine={"late": late, FIRST_STEPS: [1]})


@pytest.mark.parametrize("shared", [True, False])
def test_a_file_is_swept_that_was_unnamed_before(shared: bool) -> None:
    garbage: Any = object.__new__(Garbage)
    garbage._files = files = Files(shared=shared)
    garbage._blobs = {3: ["c3"], 5: ["c5"]}
    garbage._recent = [manifest(4, "backlog/b4"), manifest(5, "backlog/b5", late=(("a", "l5"),))]
    garbage._suspects = set()
    steps = {step: file_name(step) for step in (1, 2, 3, 4, 5, 6)}
    files.there = {
        "changelog": ["c1", "c3", "c5"], "backlog": ["b1", "b4", "b5"], "late": ["l1", "l5"],
        "intents": [steps[n] for n in (3, 4, 5, 6)], "manifests": list(steps.values()),
        SOURCES: ["s1"],
    }  # fmt: skip
    garbage._sweep()
    assert files.removed == []
    garbage._sweep()
    sources = [f"{SOURCES}/s1"] if shared else []
    assert sorted(files.removed) == sorted([
        "backlog/b1", "changelog/c1", f"intents/{steps[3]}", "late/l1", f"manifests/{steps[2]}",
        f"manifests/{steps[4]}", *sources,
    ])  # fmt: skip
    kinds = ["changelog", "output", "backlog", "late", "intents", "manifests"]
    assert files.kinds == [*kinds, *([SOURCES] if shared else [])] * 2
    files.there["changelog"].append("c9")
    files.removed.clear()
    garbage._sweep()
    assert "changelog/c9" not in files.removed
