"""Drivers of one checkpoint, by drawn courses of steps, restarts and damages."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import small_driver
from small_driver import GROUPS, IDENTITY, Driver

from headgate.checkpoint import checkpoint as checkpoints
from headgate.checkpoint import garbage
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.place import PosixFiles
from headgate.checkpoint.verify import problems
from headgate.core.errors import HeadgateError
from headgate.scenario.inspection import inspect
from headgate_lab.testing.stores import apply_to_model

Recorded = Callable[[str, Iterable[str]], None]


@pytest.fixture(autouse=True)
def _tokens_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count(1)
    monkeypatch.setattr(small_driver, "fresh_token", lambda: f"{next(numbers):032x}")


def plain(text: object, place: Path) -> str:
    """Return a text without the place of the test, and without names by chance."""
    named = re.sub(r"\b[0-9a-f]{32,64}\b", "<token>", str(text).replace(str(place), "<ck>"))
    named = re.sub(r"\(host \S+, process \d+, started [^)]*\)", "(<driver>)", named)
    return re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "<job>", named)


def told(do: Callable[[], Any], place: Path) -> str:
    try:
        return plain(do(), place)
    except HeadgateError as error:
        return f"{type(error).__name__}: {plain(error, place)}"


def restart_of(place: Path) -> str:
    """Return what a start would do and read, and what else is known of a checkpoint."""
    found = inspect(place)
    found["restart"].pop("bytes", None)  # Arrow's, which its releases may change
    kept = {key: found[key] for key in ("step", "operators", "restart", "sound") if key in found}
    return plain(f"{kept} {len(found['problems'])} problems", place)


def files_in(place: Path) -> str:
    """Return how many files each directory has, and the steps of the manifests."""
    counts = Counter(path.parent.name for path in (place / "headgate").rglob("*") if path.is_file())
    steps = sorted(int(path.name) for path in (place / "headgate/manifests").iterdir())
    return f"{dict(sorted(counts.items()))} manifests {steps}"


@pytest.mark.parametrize("inline", [True, False])
def test_a_life_of_steps_and_restarts(
    inline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    """The state is that of a plain mapping all along; an older driver that wakes is refused."""
    monkeypatch.setattr(garbage, "_SWEEP_EVERY", 7)
    monkeypatch.setattr(checkpoints, "_FIRST_STEPS_KEPT", 3)
    place, dice, lines = tmp_path / "ck", random.Random(95), []
    driver = Driver(place, every=4, inline=inline)
    model: list[dict[Any, Any]] = [{} for _ in range(GROUPS)]
    asleep: list[Driver] = []
    for number in range(60):
        act = dice.choice(["step"] * 6 + ["stray", "restart", "sleep", "wake"])
        said = ""
        if act == "stray":
            driver.checkpoint.write_file("changelog", f"stray.{number}", b"lost")
            driver.checkpoint.write_intent(number + 900, {"step": number + 900})
        elif act in ("restart", "sleep"):
            if act == "sleep":
                asleep.append(driver)
            driver = Driver(place, every=4, inline=inline)
        elif act == "wake" and asleep:
            older = asleep.pop()
            newest = -1 if older.last is None else older.last.step
            said = told(lambda d=older, n=newest: d.checkpoint.refuse_after_another(n), place)
            said += f" / {told(lambda d=older: d.step().step, place)}"
            if "Error" not in said and "AnotherDriver" not in said:
                act = "step by the older one"
        if act.startswith("step"):
            made = driver.step() if act == "step" else Checkpoint(place).latest()
            assert made is not None
            driver.last = made
            for group in made.sections["count"]:
                change = (f"{made.step % 3}", group, made.step + 1)
                model[group] = apply_to_model(model[group], [change])
            driver.checkpoint.collect_garbage(made)
            assert driver.state() == model
        lines.append(f"{number} {act}: {said} {files_in(place)}")
        if number % 10 == 9:
            lines.append(f"    {restart_of(place)}")
        assert problems(Checkpoint(place)) == []
    latest = driver.checkpoint.latest()
    lines.append(f"{driver.checkpoint._first_steps} {latest and latest.step}")
    recorded(f"life-{'inline' if inline else 'files'}", lines)


def damages(root: Path) -> list[tuple[str, Callable[[Path], object]]]:
    """Return what may happen to a file; the first and the last of each directory are tried."""
    tried: list[tuple[str, Callable[[Path], object]]] = []
    for directory in sorted(path for path in [root, *root.rglob("*")] if path.is_dir()):
        files = sorted(path for path in directory.iterdir() if path.is_file())
        for file in {files[0], files[-1]} if files else ():
            name = file.relative_to(root).as_posix()
            tried += [
                (f"{name} gone", lambda r, n=name: (r / n).unlink()),
                (f"{name} empty", lambda r, n=name: (r / n).write_bytes(b"")),
                (f"{name} cut", lambda r, n=name: (r / n).write_bytes((r / n).read_bytes()[:-9])),
                (
                    f"{name} more",
                    lambda r, n=name: (r / n).write_bytes((r / n).read_bytes() + b"x"),
                ),
            ]
    return sorted(tried, key=lambda each: each[0])


@pytest.mark.parametrize("inline", [True, False])
def test_what_is_said_of_each_damage(inline: bool, tmp_path: Path, recorded: Recorded) -> None:
    driver, lines = Driver(tmp_path / "ck", every=4, inline=inline), []
    for _ in range(7):
        driver.checkpoint.collect_garbage(driver.step())
    driver.checkpoint.write_note({"batch": 1, "files": {}})
    sound, tried = tmp_path / "ck", tmp_path / "tried"
    for what, do in damages(sound / "headgate"):
        shutil.rmtree(tried, ignore_errors=True)
        shutil.copytree(sound, tried)
        do(tried / "headgate")
        lines.append(what)
        again = Checkpoint(tried)
        lines.append(f"    open: {told(lambda c=again: c.open(IDENTITY) and 'opened', tried)}")
        found = told(lambda c=again: (made := c.latest()) and made.step, tried)
        lines.append(f"    latest: {found}")
        lines.append(
            f"    note: {told(again.read_note, tried)}, {told(lambda c=again: c.read_intent(6), tried)}"
        )
        lines += [f"    {plain(text, tried)}" for text in problems(Checkpoint(tried))]
        lines.append(f"    {told(lambda: restart_of(tried), tried)}")
    recorded(f"damages-{'inline' if inline else 'files'}", lines)


class Far(PosixFiles):
    """A directory that counts as a store, and notes each file that is read."""

    shared = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[str] = []

    def get(self, name: str) -> bytes:
        self.reads.append(name)
        return super().get(name)


def test_what_is_read_along_with_a_step_of_a_store(tmp_path: Path, recorded: Recorded) -> None:
    """Manifests as a chain goes back, each once, however the steps are asked for."""
    driver, lines = Driver(tmp_path / "ck", every=100), []
    for _ in range(40):
        driver.step()
    for asked in (
        [39],
        [39, 38],
        [*range(39, 20, -1)],
        [39, 30, 29, 12, 11, 10],
        [5, 6, 7],
        [3, 2, 1, 0],
    ):
        reading, before = Checkpoint(tmp_path / "ck"), 0
        far = Far(tmp_path / "ck" / "headgate")
        reading.files = far
        for step in asked:
            assert reading.read(step).step == step
            new = sorted(int(name.rpartition("/")[2]) for name in far.reads[before:])
            before = len(far.reads)
            lines.append(f"{step}: {new}")
        assert len(set(far.reads)) == len(far.reads)
    steps = [39, 40]
    far = Far(tmp_path / "ck" / "headgate")
    reading = Checkpoint(tmp_path / "ck")
    reading.files = far
    (tmp_path / "ck/headgate/manifests" / f"{41:012d}").write_bytes(b"x")
    reading._look_ahead(steps)
    lines.append(f"ahead {steps[-3:]}")
    recorded("read-along", lines)
