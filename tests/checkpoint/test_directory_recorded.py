"""A directory's files by a drawn course of calls: against a plain mapping, and each error as recorded."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from headgate.checkpoint import files as posix
from headgate.checkpoint import store_calls
from headgate.checkpoint.drivers import Driver
from headgate.checkpoint.place import PosixFiles
from headgate.core.errors import CheckpointError

Recorded = Callable[[str, Iterable[str]], None]
NAMES = [f"{directory}/{name}" for directory in ("a", "b", "gone") for name in ("x", "y.json")]
LINK, FOLDER = "a link", "a directory"
WRITES, READS = ("put", "put_new", "put_unique"), ("get", "get_large", "get_range")


def told(do: Callable[[], Any], place: Path) -> str:
    try:
        answer = do()
    except (CheckpointError, OSError) as error:
        answer = f"{type(error).__name__}: {error}"
    return str(answer).replace(str(place), "<here>")


class Model:
    """A directory, and what must be in it: of each name the bytes, `LINK` or `FOLDER`.

    The third of its directories is not there, so nothing can be in it.
    """

    def __init__(self, place: Path, dice: random.Random) -> None:
        self.place, self.dice = place, dice
        self.files = PosixFiles(place / "ck")
        self.files.prepare(["a", "b"])
        self.there: dict[str, Any] = {}

    def write(self, act: str, name: str) -> str:
        data = self.dice.choice([b"", b"abc", b"12345678", b"x" * 20])
        was = self.there.get(name)
        said = told(lambda: getattr(self.files, act)(name, data), self.place)
        if not name.startswith("gone") and (was is None or (act == "put" and was != FOLDER)):
            assert said == "None"
            self.there[name] = data
            assert (self.files.root / name).stat().st_mode & 0o777 == 0o600
        else:
            assert (said == "None") == (was == data)
        return said

    def read(self, act: str, name: str) -> str:
        part = (2, 4) if act == "get_range" else ()
        said = told(lambda: bytes(getattr(self.files, act)(name, *part)), self.place)
        was = self.there.get(name)
        if isinstance(was, bytes):
            assert said == str(was[2:6] if part else was)
        return said

    def remove(self, name: str) -> None:
        self.files.remove([name, name])
        if self.there.get(name) != FOLDER:
            self.there.pop(name, None)

    def set_aside(self, name: str) -> None:
        was, aside = self.there.pop(name, None), self.files.root / f"{name}.damaged"
        assert self.files.set_aside(name) == (aside.name if was is not None else "")
        if was == FOLDER:
            aside.rmdir()
        elif was is not None:
            aside.unlink()

    def spoil(self, name: str) -> None:
        path = self.files.root / name
        if name not in self.there and path.parent.exists():
            self.there[name] = self.dice.choice([LINK, FOLDER])
            path.mkdir() if self.there[name] == FOLDER else path.symlink_to(
                self.place / "elsewhere"
            )

    def check(self) -> None:
        """Fail unless the directory lists what it must."""
        for directory in ("a", "b"):
            known = {Path(n).name: of for n, of in self.there.items() if n.startswith(directory)}
            assert set(self.files.names(directory)) == known.keys()
            sizes = self.files.sizes(directory)
            plain = {name: len(of) for name, of in known.items() if isinstance(of, bytes)}
            assert {name: sizes[name] for name in plain} == plain
        assert [self.files.exists(name) for name in NAMES] == [n in self.there for n in NAMES]


def test_a_directory_is_a_mapping_that_nobody_writes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    monkeypatch.setattr(posix, "_MAPPED_BYTES", 8)
    monkeypatch.setattr(posix.secrets, "token_hex", lambda _: "t")
    (tmp_path / "elsewhere").write_bytes(b"secret")
    dice, lines = random.Random(91), set()
    model = Model(tmp_path, dice)
    for _ in range(400):
        name, said = dice.choice(NAMES), ""
        was = model.there.get(name, "not there")
        act = dice.choice([*WRITES * 2, *READS, "remove", "set_aside", "spoil"])
        if act in WRITES:
            said = model.write(act, name)
        elif act in READS:
            said = model.read(act, name)
        else:
            getattr(model, act)(name)
        model.check()
        if "Error" in said:
            lines.add(f"{act}, which is {'data' if isinstance(was, bytes) else was}: {said}")
    assert (tmp_path / "elsewhere").read_bytes() == b"secret"
    assert model.files.sizes("gone") == {}
    recorded("directory", sorted(line for line in lines if "y.json" not in line))


def test_directories_that_cannot_be_used(tmp_path: Path, recorded: Recorded) -> None:
    lines = []
    (tmp_path / "file").touch()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for place in ("file", "file/below", "link", "real", "real/deep/deeper"):
        files = PosixFiles(tmp_path / place)
        lines.append(
            f"{place}: {told(lambda f=files: f.prepare(['x']), tmp_path)}, {files.is_there()}"
        )
    for name in (
        "a",
        "a.b.c.d",
        "a.b.c.d.e",
        "",
        ".",
        "..",
        "a b",
        "a" * 64,
        "a" * 65,
        "ä",
        "a/b",
        "a.",
        "-",
    ):
        lines.append(f"{name[:66]!r}: {told(lambda n=name: posix.checked_file_name(n), tmp_path)}")
    lines += [
        str(posix.rename(tmp_path, *pair))
        for pair in (("file", "new"), ("file", "new"), ("new", "real"))
    ]
    recorded("unusable-directories", lines)


def test_calls_are_noted_and_slowed_where_somebody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(store_calls.time, "sleep", slept.append)
    monkeypatch.setenv(store_calls.TRACE, str(tmp_path / "trace"))
    monkeypatch.setenv(store_calls.DELAY, "50 ms")
    store_calls._asked.cache_clear()
    try:
        files = PosixFiles(tmp_path / "ck")
        files.prepare(["a"])
        files.put("a/x", b"123")
        files.get("a/x")
        files.names("a")
        files.remove(["a/x"])
    finally:
        monkeypatch.undo()
        store_calls._asked.cache_clear()
    notes = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert [(n["act"], n["kind"], n["name"], n["bytes"], n["pid"]) for n in notes] == [
        ("write", "a", "x", 3, os.getpid()), ("read", "a", "x", 0, os.getpid()),
        ("list", "a", "", 0, os.getpid()), ("remove", "a", "x", 0, os.getpid()),
    ]  # fmt: skip
    assert slept == [0.05] * 4


def test_a_driver_is_told_by_host_process_and_time() -> None:
    driver = Driver("h", 7, 1_700_000_000)
    assert str(driver) == "host h, process 7, started 2023-11-14 22:13:20 UTC"
    assert Driver.of_json(driver.to_json()) == driver
    assert Driver.of_json({"host": "h", "pid": "7", "started_s": 5.9}) == Driver("h", 7, 5)
    assert str(Driver("h", 7, 10**20)).endswith("started a time unknown")
    others: list[Any] = [
        None,
        {},
        {"host": 1, "pid": "x", "started_s": 1},
        {"host": 1, "pid": 1},
        [],
        5,
    ]
    assert [Driver.of_json(other) for other in others] == [None] * len(others)
    here = Driver.here()
    assert (here.pid, here.started_s > 1_600_000_000) == (os.getpid(), True)
