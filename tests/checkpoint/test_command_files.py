"""Control files: asked once, answered once, never half."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path

import pytest

from headgate.checkpoint.command_files import Command, CommandFiles, PendingCommand
from headgate.checkpoint.place import PosixFiles
from headgate.core.errors import CheckpointError, ConfigError

FREEZE = Command("freeze", "ann", "INC-1", {"until_s": 5.0})


@pytest.fixture
def files(tmp_path: Path) -> CommandFiles:
    (tmp_path / "headgate").mkdir()
    return CommandFiles(tmp_path / "headgate")


def test_a_request_is_found_until_it_is_answered(files: CommandFiles, tmp_path: Path) -> None:
    request = files.ask(FREEZE)
    assert files.pending() == [PendingCommand(request, FREEZE)]
    assert files.answer(request) is None
    files.write_answer(request, None)
    assert files.pending() == []
    answer = files.answer(request)
    assert answer is not None
    assert answer["refused"] is None
    assert [path.name for path in tmp_path.rglob("*.json")] == []


def test_a_store_that_cannot_be_listed_asks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = PosixFiles(tmp_path / "headgate")

    def away(_: str) -> list[str]:
        raise CheckpointError("the store cannot list.")

    monkeypatch.setattr(place, "names", away)
    assert CommandFiles(place).pending() == []


def test_requests_come_in_the_order_they_were_asked(files: CommandFiles) -> None:
    asked = [files.ask(Command("scale", "ann", "", {"slots": n})) for n in range(1, 4)]
    assert sorted(a.id for a in files.pending()) == sorted(asked)
    assert [a.id[:13] for a in files.pending()] == sorted(name[:13] for name in asked)


def test_files_are_the_owners_alone(files: CommandFiles, tmp_path: Path) -> None:
    request = files.ask(FREEZE)
    directory = tmp_path / "headgate" / "control"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / f"{request}.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"act": "rm"}', '{"by": "x"}', '{"act": "scale", "arguments": 3}', "\xff"]
)
def test_what_cannot_be_read_is_no_command_and_says_why(
    files: CommandFiles, tmp_path: Path, text: str
) -> None:
    files.ask(FREEZE)
    bad = tmp_path / "headgate" / "control" / "0000000000001-00000000.json"
    bad.write_bytes(text.encode("latin-1"))
    first, second = files.pending()
    assert first.command is None
    assert first.problem.startswith("the request cannot be read")
    assert second.command == FREEZE


def test_a_request_that_is_a_link_is_not_followed(files: CommandFiles, tmp_path: Path) -> None:
    files.ask(FREEZE)
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"act": "thaw"}))
    (tmp_path / "headgate" / "control" / "0000000000001-00000000.json").symlink_to(secret)
    assert files.pending()[0].command is None


def test_other_files_are_left_alone(files: CommandFiles, tmp_path: Path) -> None:
    files.ask(FREEZE)
    (tmp_path / "headgate" / "control" / "notes.json").write_text("{}")
    assert len(files.pending()) == 1


def test_frozen_is_kept_until_thawed(files: CommandFiles) -> None:
    assert files.frozen_until_s() is None
    files.freeze(12.5)
    assert files.frozen_until_s() == 12.5
    files.freeze(None)
    assert files.frozen_until_s() == float("inf")
    files.thaw()
    assert files.frozen_until_s() is None


def test_without_a_checkpoint_there_is_nobody_to_ask(tmp_path: Path) -> None:
    files = CommandFiles(tmp_path / "headgate")
    assert files.pending() == []
    with pytest.raises(CheckpointError, match="does not exist"):
        files.ask(FREEZE)


@pytest.mark.parametrize("name", ["notes.done", "notes.json", "x.txt", "1-2.done"])
def test_a_stray_file_is_left_alone(files: CommandFiles, tmp_path: Path, name: str) -> None:
    request = files.ask(FREEZE)
    stray = tmp_path / "headgate" / "control" / name
    stray.write_text("hello")
    assert [asked.id for asked in files.pending()] == [request]
    assert stray.exists()


def test_a_damaged_note_of_a_freeze_is_named(files: CommandFiles, tmp_path: Path) -> None:
    files.freeze(None)
    (tmp_path / "headgate" / "control" / "frozen").write_text("{")
    with pytest.raises(CheckpointError, match="frozen cannot be read: it is not JSON"):
        files.frozen_until_s()


ABSURD = ["{", "[]", '{"until_s": 1e300}', '{"until_s": NaN}', '{"until_s": 1' + "0" * 400 + "}",
          '{"until_s": true}', '{"until_s": -5}', "[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("text", ABSURD, ids=range(len(ABSURD)))
def test_an_absurd_note_of_a_freeze_is_refused_and_can_be_set_aside(
    files: CommandFiles, tmp_path: Path, text: str
) -> None:
    files.freeze(None)
    note = tmp_path / "headgate" / "control" / "frozen"
    note.write_text(text)
    with pytest.raises(CheckpointError, match="frozen cannot be read"):
        files.frozen_until_s()
    assert files.set_frozen_aside() == "frozen.damaged"
    assert (files.frozen_until_s(), note.with_name("frozen.damaged").read_text()) == (None, text)


@pytest.mark.parametrize("until_s", [1e300, math.inf, math.nan, -1.0, 10**400], ids=range(5))
def test_no_note_is_written_that_could_not_be_read(files: CommandFiles, until_s: float) -> None:
    with pytest.raises(ConfigError):
        files.freeze(until_s)
    assert files.frozen_until_s() is None


def test_a_request_that_cannot_be_read_is_answered_and_set_aside(
    files: CommandFiles, tmp_path: Path
) -> None:
    request = files.ask(FREEZE)
    file = tmp_path / "headgate" / "control" / f"{request}.json"
    file.write_text("[" * 100_000)
    (asked,) = files.pending()
    files.refuse(asked.id, asked.problem)
    assert files.pending() == []
    answer = files.answer(request)
    assert answer is not None
    assert "cannot be read" in answer["refused"]
    assert file.with_name(f"{file.name}.damaged").is_file()


def test_a_damaged_answer_is_a_refusal(files: CommandFiles, tmp_path: Path) -> None:
    request = files.ask(FREEZE)
    files.write_answer(request, None)
    (tmp_path / "headgate" / "control" / f"{request}.done").write_text("[]")
    answer = files.answer(request)
    assert answer is not None
    assert "damaged" in answer["refused"]
