"""Requests to stores that fail in every way, by a fake clock: each try, each wait and each sentence."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import obstore.exceptions as store_errors
import pytest

from headgate.checkpoint import hdfs, objects, remote
from headgate.checkpoint.hdfs import HdfsFiles
from headgate.checkpoint.objects import ObjectFiles
from headgate.checkpoint.recent import Recent
from headgate.checkpoint.traffic import Traffic
from headgate.core.errors import CheckpointError

Recorded = Callable[[str, Iterable[str]], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock for both stores that only waiting moves; chance is its middle."""
    made = types.SimpleNamespace(now_s=0.0, lines=[])

    def sleep(seconds: float) -> None:
        made.lines.append(f"    wait {seconds:g} s")
        made.now_s += seconds

    fake = types.SimpleNamespace(monotonic=lambda: made.now_s, sleep=sleep)
    chance = types.SimpleNamespace(uniform=lambda low, high: (low + high) / 2 + 0.25 * (high - low))
    for module in (objects, hdfs):
        monkeypatch.setattr(module, "time", fake)
        monkeypatch.setattr(module, "random", chance)
    monkeypatch.setattr(remote, "note_call", lambda *call: made.lines.append(f"    call {call}"))
    return made


WRITES: dict[str, tuple[list[str], list[bytes | None]]] = {
    "at once": (["ok"], []),
    "another's": (["exists"], [b"theirs"]),
    "its own": (["exists"], [b"mine"]),
    "no answer, written": (["unknown"], [b"mine"]),
    "no answer, another's": (["unknown"], [b"theirs"]),
    "no answer, then written": (["unknown", "unknown", "ok"], [None, None]),
    "refused, then written": (["exists", "exists", "ok"], [None, None]),
    "refused for ever": (["exists"] * 9, [None] * 9),
    "no answer for ever": (["unknown"] * 9, [None] * 9),
    "refused at last": (["unknown"] * 5 + ["exists"] * 4, [None] * 9),
    "slow": (["slow", "ok"], [None]),
    "slow twice": (["slow", "slow", "ok"], [None, None]),
    "slow, refused, slow": (["slow", "exists", "slow", "exists"], [None] * 4),
    "broken": (["broken"], []),
}


@pytest.mark.parametrize("known", [False, True])
def test_a_new_object_is_written_as_recorded(
    known: bool, clock: Any, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    lines = []
    for name, (outcomes, found) in WRITES.items():
        clock.now_s, clock.lines = 0.0, []
        files = ObjectFiles("s3://b/ck", {}, known=known)
        writes, reads = iter(outcomes), iter(found)

        def create(name: str, data: bytes, writes: Any = writes, files: Any = files) -> None:
            what = next(writes, "exists")
            clock.lines.append(f"    write {name} {len(data)}: {what}")
            if what == "exists":
                raise FileExistsError(name)
            if what in ("unknown", "slow"):
                clock.now_s += 4.0 if what == "slow" else 0.5
                raise objects._Unanswered(CheckpointError("no answer"))
            if what == "broken":
                raise CheckpointError("it is broken")

        def read(store: Any, name: str, reads: Any = reads) -> bytes | None:
            clock.lines.append(f"    read {name} by the {store} one")
            return next(reads, None)  # type: ignore[no-any-return]

        monkeypatch.setattr(files, "_create", create)
        monkeypatch.setattr(files, "_read", read)
        files.__dict__.update(_hasty="hasty", _patient="patient")
        try:
            files.put_new("x/1", b"mine")
            end = "written"
        except (CheckpointError, FileExistsError) as error:
            end = f"{type(error).__name__}: {error}"
        lines += [name, *clock.lines, f"    {end} at {clock.now_s:g} s"]
    recorded(f"objects-{'known' if known else 'new'}", lines)


def java(kind: str, text: str) -> RuntimeError:
    return RuntimeError(f'RPC error "org.apache.hadoop.{kind}" message: "{text}"')


ERRORS: dict[str, Exception] = {
    "lost": OSError("connection reset"),
    "lost file": FileNotFoundError("no file"),
    "time": TimeoutError(),
    "panic": ValueError("bad value"),
    "safe mode": java(
        "hdfs.server.namenode.SafeModeException", "Name node is in safe mode.\\n at x"
    ),
    "standby": java("ipc.StandbyException", "Operation category READ is not supported"),
    "rights": java("security.AccessControlException", 'Permission denied: user=eve."\n\tat org'),
    "quota": java("hdfs.protocol.DSQuotaExceededException", "The quota is exceeded"),
    "ticket": RuntimeError("SASL negotiation failed"),
    "token": java("security.token.SecretManager$InvalidToken", "token is expired"),
    "no words": RuntimeError(""),
    "not there": NotImplementedError("cannot"),
}


@pytest.mark.parametrize("known", [False, True])
def test_a_request_to_hdfs_is_repeated_as_recorded(
    known: bool, clock: Any, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    monkeypatch.setattr(HdfsFiles, "_reach", lambda self: clock.lines.append("    reach"))
    lines = []
    for name, error in ERRORS.items():
        for again, failures, takes_s in ((True, 2, 0.5), (True, 999, 3.0), (False, 1, 0.5)):
            clock.now_s, clock.lines = 0.0, []
            files, left = HdfsFiles("hdfs://n:1/ck", {}, known=known), [failures]

            def answer(
                do: Any, length: int, left: Any = left, takes_s: float = takes_s,
                error: Exception = error,
            ) -> str:  # fmt: skip
                clock.now_s += takes_s
                if left[0]:
                    left[0] -= 1
                    raise error
                return "done"

            monkeypatch.setattr(files, "_answer", answer)
            try:
                end = files._call("write", "x/1", lambda: "", 7, again=again)
            except (CheckpointError, hdfs._Passing) as failed:
                end = f"{type(failed).__name__}: {failed}"
            shown = clock.lines if len(clock.lines) < 9 else [*clock.lines[:5], *clock.lines[-3:]]
            lines += [f"{name} x {failures}, again {again}", *shown]
            traffic = files.traffic()
            lines.append(f"    {end} at {clock.now_s:g} s, known {files._known}, {traffic}")
    recorded(f"hdfs-{'known' if known else 'new'}", lines)


def test_what_a_store_says_is_told_as_recorded(recorded: Recorded) -> None:
    said = [
        "<Code>NoSuchBucket</Code>", "<Code>ContainerNotFound</Code>", "redirect without LOCATION",
        "<Code>PermanentRedirect</Code>", "status code: 400 <Code>AuthorizationHeaderMalformed</Code>",
        "MissingAccessKey", "the credential provider failed",
        "status code: 403 <Code>AccessDenied</Code>",
        "status code: 401", "status code: 403", "status code: 400 <Code>ExpiredToken</Code>",
        "status code: 503 <Code>SlowDown</Code>", "status code: 500", "nothing", "token request failed",
        "<Code>Odd</Code> with a credential", "status code: 4 <Code></Code>",
    ]  # fmt: skip
    files = ObjectFiles("s3://b/ck", {"accessKeyId": "secret"})
    lines = []
    for text in said:
        for act in ("read", "write"):
            with pytest.raises(CheckpointError) as told, files._explained(act, "x/1"):
                raise store_errors.GenericError(text)
            lines.append(f"{text}: {told.value}")
    for error in (OSError("x"), ValueError("y")):
        with pytest.raises(CheckpointError) as told, files._explained("read", ""):
            raise error
        lines.append(f"{error!r}: {told.value}")
    with pytest.raises(FileExistsError), files._explained("read", ""):
        raise FileExistsError("z")
    lines += [f"{name}: {objects._snake(name)}" for name in ("endpoint", "baseUrl", "accessKeyId")]
    for endpoint in (
        "http://h:80", "https://h", "http://h:65536", "http://h:65535/p", "ftp://h", "h:80", "",
        "http://u:p@h", "http://[::1]:9", "http://h?q",
    ):  # fmt: skip
        try:
            address = ObjectFiles("s3://b/ck", {"endpoint": endpoint})._address()
            lines.append(f"{endpoint!r}: {address!r}")
        except CheckpointError as error:
            lines.append(f"{endpoint!r}: {error}")
    recorded("sentences", lines)


def test_what_was_read_last_is_kept_while_there_is_room() -> None:
    kept: Recent[str] = Recent(10)
    for key, cost in (("a", 4), ("b", 4)):
        kept.put(key, key.upper(), cost)
    assert [kept.get(key) for key in "ab"] == ["A", "B"]
    assert kept.get("a") == "A", "b is the oldest now"
    kept.put("c", "C", 4)
    assert [kept.get(key) for key in "abc"] == ["A", None, "C"]
    kept.put("d", "D", 2)
    assert [kept.get(key) for key in "acd"] == ["A", "C", "D"], "just full"
    kept.put("e", "E", 11)
    assert [kept.get(key) for key in "acde"] == [None, None, None, "E"], (
        "one is kept, however large"
    )
    assert (len(kept), kept.byte_count) == (1, 11)
    kept.put("e", "F", 3)
    assert (kept.get("e"), len(kept), kept.byte_count) == ("F", 1, 3)
    kept.clear()
    assert (kept.get("e"), len(kept), kept.byte_count) == (None, 0, 0)
    assert Traffic(1, 2) != Traffic(2, 1)


def test_a_store_that_has_not_answered_yet_is_given_up_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, bool]] = []

    def opened(_: ObjectFiles, give_up: timedelta, *, first: bool = False) -> str:
        asked.append((give_up.total_seconds(), first))
        return "a store"

    monkeypatch.setattr(ObjectFiles, "_opened", opened)
    files = ObjectFiles("s3://b/ck", {})
    assert (files._store, files._patient) == ("a store", "a store")
    assert asked == [(5.0, True), (120.0, False)]
    monkeypatch.setattr(objects, "_GIVE_UP", timedelta(seconds=1))
    assert ObjectFiles("s3://b/ck", {}, known=True)._store == "a store"
    assert ObjectFiles("s3://b/ck", {})._store == "a store"
    assert asked[2:] == [(1.0, False), (1.0, True)]
