"""The lock of a checkpoint, in a JVM that is made up: who holds it, and who is told so."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from headgate.core.errors import CheckpointError, EngineGone
from headgate.spark.jvm import lock as module
from headgate.spark.jvm.lock import CheckpointLock


class Channel:
    """A channel that gets the lock when it has asked so often; `fails`: what asking raises before."""

    def __init__(self, asks: float = 1, fails: Exception | None = None) -> None:
        self.asks, self.fails, self.asked, self.closed = asks, fails, 0, 0
        self.opened: list[Any] = []

    def tryLock(self) -> str | None:
        self.asked += 1
        if self.asked >= self.asks:
            return "lock"
        if self.fails is not None:
            raise self.fails
        return None

    def close(self) -> None:
        self.closed += 1


class Failed(Py4JJavaError):  # type: ignore[misc]
    """An error of the JVM without a JVM."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


Locked = Callable[..., CheckpointLock]


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locked:
    """Return a function that locks the checkpoint of this test by a channel."""
    (tmp_path / "headgate").mkdir()
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "_held", set())

    def lock(channel: Channel, root: Path = tmp_path / "headgate") -> CheckpointLock:
        def opened(path: Any, options: list[Any]) -> Channel:
            channel.opened += [path, *options]
            return channel

        nio = SimpleNamespace(
            file=SimpleNamespace(
                OpenOption="option",
                StandardOpenOption=SimpleNamespace(WRITE="write"),
                LinkOption=SimpleNamespace(NOFOLLOW_LINKS="no links"),
            ),
            channels=SimpleNamespace(FileChannel=SimpleNamespace(open=opened)),
        )
        io = SimpleNamespace(File=lambda path: SimpleNamespace(toPath=lambda: path))
        monkeypatch.setattr(
            module, "jvm", lambda _: SimpleNamespace(java=SimpleNamespace(nio=nio, io=io))
        )
        life = SimpleNamespace(
            meaning=lambda error: EngineGone("gone") if isinstance(error, OSError) else None
        )
        monkeypatch.setattr(module, "JvmLife", lambda _: life)
        gateway = SimpleNamespace(new_array=lambda _, length: [None] * length)
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))
        return CheckpointLock(spark, root)

    return lock


def test_the_file_of_a_lock_is_opened_by_its_real_name_and_says_whose_it_is(
    locked: Locked, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "headgate")
    channel = Channel()
    locked(channel, tmp_path / "link")
    file = tmp_path / "headgate" / "driver.lock"
    assert channel.opened == [str(file), "write", "no links"]
    owner = json.loads(file.with_suffix(".owner").read_text())
    assert owner == {"host": socket.gethostname(), "pid": os.getpid()}
    assert sorted(one.name for one in file.parent.iterdir()) == ["driver.lock", "driver.owner"]


def test_a_lock_is_of_one_query_until_it_is_released(locked: Locked) -> None:
    first, channel = Channel(), Channel()
    lock = locked(first)
    with pytest.raises(
        CheckpointError, match="is held by a query of this very process that starts"
    ):
        locked(channel)
    assert not channel.opened, "a second channel would end the first one's lock"
    lock.release()
    assert first.closed == 1
    locked(channel)


def test_a_driver_that_was_killed_has_ten_seconds_to_go(locked: Locked, tmp_path: Path) -> None:
    killed = Channel(asks=90)
    locked(killed).release()
    assert killed.asked == 90
    (tmp_path / "headgate" / "driver.owner").write_text('{"host": "other", "pid": 7}')
    living = Channel(asks=float("inf"))
    with pytest.raises(CheckpointError, match=f"{tmp_path} is held by driver other pid 7; stop it"):
        locked(living)
    assert 100 <= living.asked <= 103
    assert living.closed == 1
    locked(Channel())  # it is held by nobody in here


@pytest.mark.parametrize("owner", ["", "[]", "{}", '{"host": "h"}', "3", "[" * 100_000])
def test_whatever_stands_in_the_file_of_an_owner_is_no_fault(
    owner: str, locked: Locked, tmp_path: Path
) -> None:
    (tmp_path / "headgate" / "driver.owner").write_text(owner)
    with pytest.raises(CheckpointError, match="is held by driver unknown pid unknown"):
        locked(Channel(asks=float("inf")))


def test_a_lock_that_this_jvm_holds_is_waited_for_and_any_other_error_is_told(
    locked: Locked,
) -> None:
    overlapping = Channel(3, Failed("java.nio.channels.OverlappingFileLockException"))
    locked(overlapping).release()
    assert overlapping.asked == 3
    with pytest.raises(Py4JJavaError, match="no locks here"):
        locked(Channel(3, Failed("no locks here")))
    locked(Channel())


def test_what_is_no_file_cannot_be_locked(locked: Locked, tmp_path: Path) -> None:
    (tmp_path / "headgate" / "driver.lock").mkdir()
    with pytest.raises(
        CheckpointError, match=r"headgate/driver.lock cannot be locked: .*; remove it\."
    ):
        locked(Channel())


def test_a_jvm_that_is_gone_has_released_its_locks(locked: Locked) -> None:
    channel = Channel()
    lock = locked(channel)

    def close(error: Exception) -> None:
        raise error

    channel.close = lambda: close(OSError("gone"))  # type: ignore[method-assign]
    lock.release()
    channel.close = lambda: close(ValueError("else"))  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="else"):
        lock.release()
