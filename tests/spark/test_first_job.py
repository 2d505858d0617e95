"""The page for a first job works as it stands there, command by command."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "first-job.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
PROGRAM, FILES = (block for language, block in BLOCKS if language == "python")
(MAKE_FILES,) = (block for language, block in BLOCKS if language == "sh")
COMMANDS = [
    shlex.split(line, comments=True)
    for language, block in BLOCKS
    for line in block.splitlines()
    if not language and line.startswith("headgate ")
]
VERIFY = COMMANDS.pop()
WAIT_S = 180


def ran(place: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    command = [sys.executable, "-m", "headgate.cli", *words[1:]]
    return subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=False, timeout=WAIT_S
    )


def batches_of(checkpoint: Path) -> list[dict[str, object]]:
    journal = checkpoint / "headgate/journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [line for line in map(json.loads, lines) if line["event"] == "batch"]


def started(place: Path, program: str, checkpoint: Path, more: int = 3) -> subprocess.Popen[bytes]:
    """A program that has done some more batches."""
    known = len(batches_of(checkpoint))
    process = subprocess.Popen([sys.executable, program], cwd=place)
    end = time.monotonic() + WAIT_S
    while process.poll() is None and time.monotonic() < end:
        if len(batches_of(checkpoint)) >= known + more:
            break
        time.sleep(0.2)
    assert process.poll() is None
    return process


@pytest.mark.thorough
def test_the_page_shows_a_job_that_is_watched_changed_stopped_and_begun_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    checkpoint = tmp_path / "job/checkpoint"

    def batches() -> list[dict[str, object]]:
        return batches_of(checkpoint)

    def start() -> subprocess.Popen[bytes]:
        return started(tmp_path, "job.py", checkpoint)

    assert [words[1] for words in COMMANDS] == [
        "doctor", "ui", "diagnose", "status", "scale", "diagnose", "stop",
    ]  # fmt: skip
    process = start()
    try:
        for words in COMMANDS[2:]:  # the first needs no job, the second serves until Ctrl-C
            done = ran(tmp_path, words)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert process.wait(WAIT_S) == 0
        assert 3 in {batch["slots"] for batch in batches()}
        steps = [batch["step"] for batch in batches()]
        process = start()
        assert batches()[len(steps)]["step"] == int(str(steps[-1])) + 1
        assert ran(tmp_path, COMMANDS[-1]).returncode == 0
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.thorough
def test_the_pages_job_on_files_is_verified_by_the_pages_command(tmp_path: Path) -> None:
    (tmp_path / "files.py").write_text(FILES)
    subprocess.run(["bash", "-ec", MAKE_FILES], cwd=tmp_path, check=True)
    process = started(tmp_path, "files.py", tmp_path / "out/checkpoint", 2)
    try:
        assert ran(tmp_path, ["headgate", "stop", "out/checkpoint"]).returncode == 0
        assert process.wait(WAIT_S) == 0
        done = ran(tmp_path, [*VERIFY, "--json"])
    finally:
        process.kill()
        process.wait()
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verified"]) == (0, True), (done.stdout, done.stderr)
    assert answer["rows_compared"] == 8  # the window of the ninth file is open
