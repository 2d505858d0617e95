"""Removes the files of a checkpoint that no restart can need."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable

from headgate.checkpoint.manifest import FIRST_STEPS, NO_STEP, SOURCES, Manifest, file_name
from headgate.checkpoint.place import Files

_SWEEP_EVERY = 64
"""Steps between two sweeps of the directories for files that no manifest names. Chosen, not tuned."""

Group = tuple[str, int]
Need = dict[Group, list[int]]


class Garbage:
    """Remembers which manifests are needed, and removes the others with their files.

    A manifest is needed while it is one of the last two, or while a key group's chain from the second
    last goes through it: the newest manifest may turn out to be damaged.

    `files`: files of the checkpoint. `read`: callable, step -> Manifest.

    Attributes
    ----------
    _chains : steps each group's chain goes through, ascending; covers the last two manifests
    _users : how many chains go through a step
    _blobs : changelog files of each manifest not yet removed; its keys are those manifests
    _recent : the last two manifests of which this object knows
    _suspects : unnamed files at the last sweep; the next sweep removes those that are still there
    """

    def __init__(self, files: Files, read: Callable[[int], Manifest]) -> None:
        self._files = files
        self._read = read
        self._chains: Need = {}
        self._users: Counter[int] = Counter()
        self._blobs: dict[int, list[str]] = {}
        self._recent: list[Manifest] = []
        self._suspects: set[tuple[str, str]] = set()
        self._calls = 0

    def collect(self, latest: Manifest) -> None:
        """Remove files that are not needed once `latest` is committed."""
        if self._recent and latest.step == self._recent[-1].step + 1:
            self._advance(latest)
        elif not self._recent or latest.step != self._recent[-1].step:
            self._load(latest)
        self._remove_unneeded(latest.step)
        if self._calls % _SWEEP_EVERY == 0:
            self._sweep()
        self._calls += 1

    def _load(self, latest: Manifest) -> None:
        """Walk all chains; read each manifest in them once."""
        names = self._files.names("manifests")
        there = {int(name) for name in names if name.isdecimal()}
        self._recent = [latest]
        base = latest
        if latest.step - 1 in there:
            base = self._read(latest.step - 1)
            self._recent.insert(0, base)
        self._chains = self._walk(base)
        if base is not latest:
            self._append(latest)
        self._users = Counter(step for steps in self._chains.values() for step in steps)
        needed = self._users.keys() | {manifest.step for manifest in self._recent}
        # The sweep finds files of other manifests; reading old manifests for their names would cost more.
        self._blobs = {step: _names(self._read(step)) for step in needed}
        old = [step for step in there - needed - _firsts(latest) if step < latest.step]
        self._files.remove(f"manifests/{file_name(step)}" for step in old)

    def _walk(self, base: Manifest) -> Need:
        chains: Need = {}
        waiting: dict[int, list[Group]] = defaultdict(list)
        for operator, heads in base.heads.items():
            for group, step in enumerate(heads.steps):
                waiting[step].append((operator, group))
        waiting.pop(NO_STEP, None)
        while waiting:
            step = max(waiting)
            manifest = base if step == base.step else self._read(step)
            for operator, group in waiting.pop(step):
                entry = manifest.sections[operator][group]
                chains.setdefault((operator, group), []).insert(0, step)
                if not entry.ref.full and entry.previous_step != NO_STEP:
                    waiting[entry.previous_step].append((operator, group))
        return chains

    def _append(self, manifest: Manifest) -> None:
        for operator, entries in manifest.sections.items():
            for group in entries:
                self._chains.setdefault((operator, group), []).append(manifest.step)

    def _advance(self, latest: Manifest) -> None:
        # The second last manifest becomes the base: its full sections replace older sections.
        base = self._recent[-1]
        for operator, entries in base.sections.items():
            for group, entry in entries.items():
                steps = self._chains[operator, group]
                while entry.ref.full and steps[0] < base.step:
                    self._users[steps.pop(0)] -= 1
        self._append(latest)
        self._users[latest.step] = sum(len(entries) for entries in latest.sections.values())
        self._blobs[latest.step] = _names(latest)
        named = {file.name for manifest in (base, latest) for file in manifest.files}
        dropped = {file.name for file in self._recent[0].files} - named
        self._recent = [base, latest]
        self._files.remove(sorted(dropped))

    def _remove_unneeded(self, latest_step: int) -> None:
        gone, first = [f"intents/{file_name(latest_step - 2)}"], _firsts(self._recent[-1])
        for step in [step for step in self._blobs if step < latest_step - 1]:
            if self._users[step] > 0:
                continue
            gone += [f"changelog/{name}" for name in self._blobs.pop(step)]
            if step not in first:
                gone.append(f"manifests/{file_name(step)}")
            del self._users[step]
        self._files.remove(gone)

    def _sweep(self) -> None:
        """Remove files that two sweeps found unnamed: a manifest names a running attempt's earlier."""
        named = {("changelog", name) for names in self._blobs.values() for name in names}
        for manifest in self._recent:
            named |= {
                (kind, name) for kind, _, name in (f.name.partition("/") for f in manifest.files)
            }
            named.add(("intents", file_name(manifest.step)))
            # of each operator; a manifest names only the newest files, so their number is bounded
            named |= {("late", name) for _, name in manifest.engine.get("late", ())}
        named_steps = self._blobs.keys() | _firsts(self._recent[-1])
        named |= {("manifests", file_name(step)) for step in named_steps}
        unnamed = set()
        kinds = ("changelog", "output", "backlog", "late", "intents", "manifests")
        for kind in (*kinds, SOURCES) if self._files.shared else kinds:
            with contextlib.suppress(OSError):  # a directory that cannot be listed is not swept
                unnamed |= {(kind, name) for name in self._files.names(kind)} - named
        newest = file_name(self._recent[-1].step)
        unnamed = {(k, n) for k, n in unnamed if k not in ("intents", "manifests") or n < newest}
        seen_twice = unnamed & self._suspects
        self._suspects = unnamed
        self._files.remove(f"{kind}/{name}" for kind, name in sorted(seen_twice))


def _firsts(latest: Manifest) -> set[int]:
    """Return the steps whose manifests stay, so that a paused driver finds them."""
    return set(latest.engine.get(FIRST_STEPS, ()))


def _names(manifest: Manifest) -> list[str]:
    return [blob.name for blob in manifest.blobs if blob.name is not None]
