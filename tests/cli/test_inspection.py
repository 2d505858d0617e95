"""What `headgate.inspect` says of a checkpoint, sound or not."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import checkpoints
import pytest

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import REAL_TIME
from headgate.core.assignment import Assignment
from headgate.core.errors import HeadgateError
from headgate.migration.events import Requested
from headgate.migration.instructions import Prefetch
from headgate.migration.protocol import Migration
from headgate.report.finish import inspection_lines


def test_inspect_says_what_is_there_and_what_a_restart_would_read(tmp_path: Path) -> None:
    found = hg.inspect(checkpoints.of_two_steps(tmp_path / "ck"), verify=True)
    assert (found["sound"], found["problems"], found["checked"]) == (True, [], True)
    assert (found["step"], found["spark_batch"], found["epoch"]) == (1, 1, 0)
    assert found["query"] == {"key_groups": 3}
    assert found["operators"] == {
        "aggregate-0": {
            "slots": 1,
            "groups": 3,
            "groups_with_state": 1,
            "entries": 1,
            "backlog_rows": 7,
        }
    }
    restart = found["restart"]
    # Spark's log lacks batch 1: its output may not have reached the sink.
    assert (
        restart["does"]
        == "deliver the output of step 1 again, unless the sink has it, then go on after step 1"
    )
    assert (restart["groups"], restart["sections"], restart["rows"]) == (1, 2, 2)
    assert restart["bytes"] > 0
    assert (found["files"]["manifests"], found["files"]["intents"]) == (2, 2)


def test_what_a_restart_would_read_is_a_line(tmp_path: Path) -> None:
    lines = inspection_lines(hg.inspect(checkpoints.of_two_steps(tmp_path / "ck")))
    assert any("reads 2 sections of 1 key groups: 2 rows, " in line for line in lines)


def test_a_migration_under_way_is_shown_with_how_far_each_subscale_is(tmp_path: Path) -> None:
    protocol = Migration(Assignment((0, 0), 1))
    target = Assignment((0, 1), 2, 1)
    given = protocol.handle(Requested(target, ("a", "b"), strategy="subscale"))
    path = checkpoints.of_two_steps(tmp_path / "ck", {"protocol": protocol.to_dict()})
    found = hg.inspect(path)["operators"]["aggregate-0"]["migration"]
    assert [type(one) for one in given] == [Prefetch]
    assert (found["strategy"], found["slots_from"], found["slots_to"]) == ("subscale", 1, 2)
    assert found["groups_by_phase"] == {"prefetch": 1}
    lines = inspection_lines(hg.inspect(path))
    assert "migration  subscale, 1 to 2 slots; key groups: 1 prefetch" in lines
    assert any("slot 0 to 1, prefetch, 0 of 1 key groups done" in line for line in lines)


@pytest.mark.parametrize("delivered", [True, False])
def test_the_output_of_an_epoch_is_out_where_its_intent_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, delivered: bool
) -> None:
    """Spark's log has nothing of an epoch."""
    path = checkpoints.of_two_steps(tmp_path / "ck")
    latest = Checkpoint(path).latest()
    assert latest is not None
    epoch = replace(latest, engine={**latest.engine, REAL_TIME: {}})
    monkeypatch.setattr(Checkpoint, "latest", lambda _: epoch)
    Checkpoint(path).write_intent(1, {"step": 1, "delivered": delivered})
    does = hg.inspect(path)["restart"]["does"]
    assert does.startswith("deliver the output of step 1 again") is not delivered


def test_a_step_that_was_begun_is_named(tmp_path: Path) -> None:
    path = checkpoints.of_two_steps(tmp_path / "ck")
    (path / "commits" / "1").write_text("v1\n{}")
    Checkpoint(path).write_intent(2, {"step": 2})
    does = hg.inspect(path)["restart"]["does"]
    assert does == "go on after step 1; step 2 was begun and runs again"


def test_inspect_changes_nothing(tmp_path: Path) -> None:
    path = checkpoints.of_two_steps(tmp_path / "ck")
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    hg.inspect(path, verify=True)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("verify", [False, True])
def test_a_missing_link_is_a_problem_and_no_exception(tmp_path: Path, verify: bool) -> None:
    path = checkpoints.of_two_steps(tmp_path / "ck")
    (path / "headgate" / "manifests" / "000000000000").unlink()
    found = hg.inspect(path, verify=verify)
    assert found["sound"] is False
    assert any("key group 0" in problem for problem in found["problems"])
    assert any("sound      NO" in line for line in inspection_lines(found))


def test_a_checkpoint_that_holds_no_step_begins_from_nothing(tmp_path: Path) -> None:
    Checkpoint(tmp_path).open({"key_groups": 2})
    found = hg.inspect(tmp_path)
    assert (found["sound"], found["restart"]["does"]) == (True, "begin from nothing")
    assert "restart    would begin from nothing" in inspection_lines(found)


def test_a_journal_alone_is_no_damaged_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "headgate").mkdir()
    (tmp_path / "headgate" / "journal.jsonl").write_text("")
    with pytest.raises(HeadgateError, match=r"holds no state: .* `headgate diagnose`"):
        hg.inspect(tmp_path)


def damages(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what may happen to each file of a checkpoint, and to its directories."""
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name, raw = str(file.relative_to(path)), file.read_bytes()
        yield f"{name} is gone", file.unlink
        yield f"{name} is empty", lambda file=file: file.write_bytes(b"")
        yield f"{name} is cut", lambda file=file, raw=raw: file.write_bytes(raw[: len(raw) // 2])
        other = raw[:20] + bytes([raw[20] ^ 1]) + raw[21:] if len(raw) > 20 else raw + b"1"
        yield f"{name} has another byte", lambda file=file, other=other: file.write_bytes(other)
    root = path / "headgate"
    yield "a stray intent", lambda: (root / "intents" / "notes").write_text("x")
    yield "an intent that is none", lambda: (root / "intents" / f"{7:012d}").write_text("x")
    yield "a stray manifest", lambda: (root / "manifests" / "notes").write_text("x")
    yield "no intents", lambda: shutil.rmtree(root / "intents")
    yield "intents that are a file", lambda: (
        shutil.rmtree(root / "intents"), (root / "intents").write_text(""),
    )  # fmt: skip
    yield "nothing", lambda: None


def test_each_damage_is_told_as_recorded(
    tmp_path: Path, recorded: Callable[[str, Iterable[str]], None]
) -> None:
    sound = checkpoints.of_two_steps(tmp_path / "sound")
    job = Checkpoint(sound).identity()["job"]
    lines, place = [], tmp_path / "ck"
    for number in range(len(list(damages(sound)))):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(sound, place)
        what, do = list(damages(place))[number]
        do()
        lines.append(what)
        try:
            found = hg.inspect(place, verify=True)
            told = [*found["problems"], f"sound {found['sound']}, {found['restart']['does']}"]
        except HeadgateError as error:
            told = [f"{type(error).__name__}: {error}"]
        lines += [f"    {text.replace(str(place), 'CK').replace(job, 'JOB')}" for text in told]
    recorded("damages", [re.sub(r"[0-9a-f]{32}", "TOKEN", line) for line in lines])


def test_a_section_that_a_manifest_lacks_is_a_problem_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = checkpoints.of_two_steps(tmp_path / "ck"), Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, n: replace(real(self, n), sections={}))
    assert any(
        "aggregate-0, key group" in text and "step 1 lacks its section" in text
        for text in hg.inspect(path, verify=True)["problems"]
    )
