"""Tests which sentence tells each problem of a checkpoint, and that a journal's last lines are copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.checkpoint import shipping, verify
from headgate.checkpoint.manifest import FIRST_STEPS
from headgate.checkpoint.shipping import JournalShipper
from headgate.core.errors import CheckpointError
from headgate.tables.ports import EMPTY_TOKEN


def manifest(step: int, **facts: Any) -> Any:
    told = {
        "step": step, "job": "j", "previous": f"d{step - 1}", "digest": f"d{step}", "blobs": [],
        "files": [], "heads": {}, "engine": {},
    }  # fmt: skip
    return SimpleNamespace(**told | facts)


def section(token: str, previous: str, *, full: bool = False) -> Any:
    return SimpleNamespace(token=token, previous=previous, full=full)


class Made:
    """A checkpoint that has what it is given; reads that are to fail raise."""

    def __init__(self, *manifests: Any) -> None:
        self.manifests = {one.step: one for one in manifests}
        self.asked: list[Any] = []
        self.bad: dict[Any, str] = {}
        self.job = "j"
        self.chains: dict[int, list[Any]] = {}
        self.names: Callable[[str], list[str]] = lambda kind: []
        self.files = SimpleNamespace(at=lambda name: f"at/{name}", shared=True, names=self._names)

    def _names(self, kind: str) -> list[str]:
        return self.names(kind)

    def told(self) -> list[str]:
        checkpoint: Any = self
        return verify.problems(checkpoint)

    def _read(self, *what: Any) -> None:
        self.asked.append(what)
        if what in self.bad:
            raise CheckpointError(self.bad[what])

    def identity(self) -> dict[str, str]:
        self._read("identity")
        return {"job": self.job}

    def later_meaning(self) -> None:
        self._read("later")

    def steps(self) -> list[int]:
        return sorted(self.manifests)

    def read(self, step: int) -> Any:
        self._read("manifest", step)
        return self.manifests[step]

    def blob(self, of: Any, index: int) -> None:
        self._read("blob", of.step, index)

    def read_file(self, kind: str, name: str, *, length: int, crc32: int) -> None:
        self._read("file", kind, name, length, crc32)

    def chain(self, operator: str, group: int, step: int, token: str) -> Any:
        self._read("chain", operator, group, step, token)
        return lambda start: self.chains[group] if start == EMPTY_TOKEN else []

    def read_note(self) -> None:
        self._read("note")

    def read_intent(self, step: int) -> None:
        self._read("intent", step)


def test_what_cannot_be_known_is_the_only_problem() -> None:
    for what in ("identity", "later"):
        made = Made(manifest(1))
        made.bad[what,] = "it is odd"
        assert made.told() == ["it is odd"]


def test_manifests_follow_each_other_and_are_of_the_checkpoint() -> None:
    made = Made(manifest(1), manifest(2), manifest(4), manifest(5, previous="other", job="k"))
    made.bad["manifest", 1] = "step 1 is odd"
    assert made.told() == [
        "step 1 is odd",
        "at/identity.json is of another checkpoint than the manifests: restore it from a copy",
        "step 5 does not follow step 4",
    ]
    assert Made(manifest(1), manifest(2), manifest(4)).told() == []


def test_changelogs_of_all_manifests_and_files_of_the_last_two_are_read() -> None:
    file = SimpleNamespace(name="waiting/f", length=3, crc32=7)
    one, two, three = (manifest(n, blobs=["b", "c"], files=[file]) for n in (1, 2, 3))
    three.engine = {FIRST_STEPS: [1]}
    made = Made(one, two, three)
    made.bad = {("blob", 2, 1): "it is gone", ("file", "waiting", "f", 3, 7): "it is torn"}
    assert made.told() == ["step 2: it is gone", "step 2: it is torn", "step 3: it is torn"]
    blobs = [("blob", step, n) for step in (2, 3) for n in (0, 1)]
    assert [one for one in made.asked if one[0] == "blob"] == blobs
    assert not any(one[0] == "chain" for one in made.asked), "what is read fails anyhow"


def test_a_chain_that_cannot_be_read_or_leads_elsewhere_is_told_with_its_group() -> None:
    heads = SimpleNamespace(tokens=["t"] * 5, steps=[1, 2, 3, 4, 5])
    made = Made(manifest(1), manifest(2, heads={"a": heads}))
    made.bad["chain", "a", 0, 1, "t"] = "it is gone"
    made.chains = {
        1: [section("s", EMPTY_TOKEN), section("t", "s")],
        2: [section("s", EMPTY_TOKEN, full=True), section("t", "s")],
        3: [section("s", EMPTY_TOKEN)],
        4: [section("s", "r", full=True), section("t", "r")],
    }
    assert made.told() == [
        "a, key group 0: it is gone", "a, key group 3: its chain does not lead to t",
        "a, key group 4: its chain does not lead to t",
    ]  # fmt: skip


def test_notes_are_read_in_their_order() -> None:
    made = Made()
    made.names = lambda kind: {"intents": ["10", "9", "x.tmp"]}[kind]
    made.bad = {("note",): "the note is odd", ("intent", 10): "intent 10 is odd"}
    assert made.told() == ["the note is odd", "intent 10 is odd"]
    assert made.asked[-3:] == [("note",), ("intent", 9), ("intent", 10)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(2, "gone"), []),
        (
            PermissionError(13, "no right"),
            ["at/intents cannot be read (no right): restore the checkpoint from a copy"],
        ),
    ],
)
def test_a_directory_of_intents_may_be_absent_and_not_closed(
    error: OSError, told: list[str]
) -> None:
    made = Made()

    def names(kind: str) -> list[str]:
        raise error

    made.names = names
    assert made.told() == told


def test_spark_s_log_is_compared_in_a_directory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "problems_in_log", lambda checkpoint, newest: [f"log of {newest}"])
    made = Made()
    assert made.told() == []
    made.files.shared = False
    assert made.told() == ["log of None"]
    newest = manifest(3)
    full = Made(manifest(2), newest)
    full.files.shared = False
    assert full.told() == [f"log of {newest}"]


# --- The journal --------------------------------------------------------------------------------------


def test_lines_are_copied_now_and_then_and_once_more_at_the_end() -> None:
    shipper: Any = object.__new__(JournalShipper)
    did: list[Any] = []
    ends = [False, False, True]

    def wait(limit_s: float) -> bool:
        did.append(limit_s)
        return ends.pop(0)

    def ship() -> None:
        did.append("ship")
        raise CheckpointError("the store is away")

    shipper._ended = SimpleNamespace(wait=wait)
    shipper.ship = ship
    shipper._run()
    every = shipping._EVERY_S
    assert did == [every, "ship", every, "ship", every, "ship"]


def test_what_was_written_before_the_end_is_on_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shipping, "_EVERY_S", 3600.0)
    put: dict[str, bytes] = {}
    files: Any = SimpleNamespace(names=lambda kind: [], put_new=put.__setitem__)
    path = tmp_path / "journal"
    path.write_bytes(b"one\ntwo\nthr")
    shipper = JournalShipper(files, path)
    shipper.close()
    assert put == {shipping.piece(0): b"one\ntwo\n"}
