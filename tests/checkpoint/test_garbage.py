"""Garbage of made-up runs against a plain account of what a restart may need."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from headgate.checkpoint.changelog import SectionRef
from headgate.checkpoint.garbage import Garbage
from headgate.checkpoint.manifest import (
    BlobEntry,
    FileEntry,
    Heads,
    Manifest,
    SectionEntry,
    file_name,
)
from headgate.tables.ports import EMPTY_TOKEN

OPERATORS, GROUPS = ("a", "b"), 3


class Store:
    """Files that are names alone, and the manifests of all steps."""

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared
        self.there: set[str] = set()
        self.manifests: dict[int, Manifest] = {}
        self.reads: list[int] = []

    def names(self, kind: str) -> list[str]:
        if kind == "output":
            raise OSError("it cannot be listed")
        return [name.partition("/")[2] for name in self.there if name.startswith(f"{kind}/")]

    def remove(self, names: Iterable[str]) -> None:
        self.there -= set(names)

    def read(self, step: int) -> Manifest:
        assert f"manifests/{file_name(step)}" in self.there, "a manifest is read that is gone"
        self.reads.append(step)
        return self.manifests[step]


class Run:
    """Commits steps in which some key groups change, now and then with all of their state."""

    def __init__(self, dice: random.Random, store: Store) -> None:
        self.dice, self.store = dice, store
        self.steps = {of: [-1] * GROUPS for of in OPERATORS}
        self.firsts: list[int] = []

    def commit(self, step: int, *, first: bool) -> Manifest:
        sections: dict[str, dict[int, SectionEntry]] = {of: {} for of in OPERATORS}
        blobs = [BlobEntry(f"b{step}", None, 0, 0), BlobEntry(None, "inline", 0, 0)]
        for of in OPERATORS:
            for group in range(GROUPS):
                if self.dice.random() < 0.4:
                    before = self.steps[of][group]
                    full = self.dice.random() < 0.3
                    ref = SectionRef(0, 0, 0, 0, 0, full, EMPTY_TOKEN, EMPTY_TOKEN)
                    sections[of][group] = SectionEntry(0, ref, before)
                    self.steps[of][group] = step
        if first:
            self.firsts.append(step)
        files = [f"backlog/q{step // 3}", f"late/l{step}"] + [
            f"sources/s{step}"
        ] * self.store.shared
        made = Manifest(
            "job", step, step, 0, {}, {},
            {of: Heads((EMPTY_TOKEN,) * GROUPS, tuple(self.steps[of])) for of in OPERATORS},
            {of: found for of, found in sections.items() if found},
            blobs=tuple(blobs), files=tuple(FileEntry(name, 0, 0) for name in files),
            engine={"first_steps": tuple(self.firsts), "late": [["op", "kept"]]},
        )  # fmt: skip
        self.store.manifests[step] = made
        self.store.there |= {f"changelog/b{step}", *files}
        self.store.there |= {f"{kind}/{file_name(step)}" for kind in ("intents", "manifests")}
        return made

    def needed(self, latest: int) -> set[str]:
        """Return the names of files that a restart from the last step or the one before may read."""
        manifests = self.store.manifests
        steps = {step for step in (latest, latest - 1) if step in manifests}
        for of in OPERATORS:
            for group in range(GROUPS):
                step = manifests[max(0, latest - 1)].heads[of].steps[group]
                while step >= 0:
                    steps.add(step)
                    entry = manifests[step].sections[of][group]
                    step = -1 if entry.ref.full else entry.previous_step
        recent = [manifests[step] for step in (latest, latest - 1) if step in manifests]
        return {
            "late/kept",
            *(f"changelog/b{step}" for step in steps),
            *(f"manifests/{file_name(step)}" for step in {*steps, *self.firsts}),
            *(f"intents/{file_name(one.step)}" for one in recent),
            *(file.name for one in recent for file in one.files),
        }


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_restart_needs_stays_and_all_else_goes(seed: int, shared: bool) -> None:
    dice = random.Random(seed)
    store = Store(shared=shared)
    run = Run(dice, store)
    store.there.add("late/kept")
    garbage: Any = None
    calls = 0
    for step in range(400):
        begins = step in (0, 40, 41, 130) or (step < 200 and dice.random() < 0.01)
        if begins:
            garbage, calls = Garbage(store, store.read), 0  # type: ignore[arg-type]
        latest = run.commit(step, first=begins)
        garbage.collect(latest)
        assert run.needed(step) <= store.there
        calls += 1
        if calls == 3:
            before = set(store.there)
            garbage.collect(latest)
            assert store.there == before, "the same step again"
    assert calls > 130, "two looks"
    assert store.there == run.needed(399)


def test_without_a_restart_what_is_not_needed_goes_at_once() -> None:
    store = Store(shared=True)
    run = Run(random.Random(9), store)
    store.there.add("late/kept")
    garbage = Garbage(store, store.read)  # type: ignore[arg-type]
    for step in range(200):
        garbage.collect(run.commit(step, first=step == 0))
        assert store.there == run.needed(step)
    assert store.reads == [0], "a driver that goes on reads nothing again"
    for _ in range(140):  # two looks
        garbage.collect(store.manifests[199])
    assert store.there == run.needed(199), "however often the same step is the newest"


def test_a_restart_removes_old_manifests_at_once_and_their_files_at_the_second_look() -> None:
    store = Store(shared=True)
    run = Run(random.Random(3), store)
    store.there.add("late/kept")
    for step in range(40):
        run.commit(step, first=step in (0, 7))
    newer = f"manifests/{file_name(500)}"  # another driver may be at work on a later step
    kept = {newer, f"intents/{file_name(500)}", "output/x"}
    strange = {"backlog/x", "changelog/x", "late/x", "sources/x", "intents/0", "manifests/x"}
    store.there |= kept | strange
    garbage = Garbage(store, store.read)  # type: ignore[arg-type]
    garbage.collect(store.manifests[39])
    assert max(Counter(store.reads).values()) <= 2, "once for the chains, once for its blobs"
    manifests = {name for name in store.there if name.startswith("manifests/")} - {newer}
    assert manifests - strange == {n for n in run.needed(39) if n.startswith("manifests/")}
    for step in range(40, 110):
        if step == 70:
            # unnamed at one look alone: a task was still writing it
            store.there.add("backlog/attempt")
        garbage.collect(run.commit(step, first=False))
        assert run.needed(step) <= store.there
    assert "backlog/attempt" in store.there
    assert store.there - kept - {"backlog/attempt"} - {"manifests/x"} == run.needed(109)


def test_a_section_of_all_state_frees_what_was_before() -> None:
    """Each step writes group 0 anew: the last two and the first are all that stays."""
    store = Store(shared=False)
    run = Run(random.Random(0), store)
    ref = SectionRef(0, 0, 0, 0, 0, True, EMPTY_TOKEN, EMPTY_TOKEN)
    garbage = Garbage(store, store.read)  # type: ignore[arg-type]
    for step in range(6):
        made = run.commit(step, first=step == 0)
        heads = {"a": Heads((EMPTY_TOKEN,), (step,))}
        sections = {"a": {0: SectionEntry(0, ref, step - 1)}}
        made = store.manifests[step] = replace(made, heads=heads, sections=sections)
        garbage.collect(made)
    changelogs = {name for name in store.there if name.startswith("changelog/")}
    assert changelogs == {"changelog/b4", "changelog/b5"}
    assert garbage._users == {4: 1, 5: 1}
