"""The page for a first job works as it stands there, command by command."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "first-job.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
(PROGRAM,) = (block for language, block in BLOCKS if language == "python")
COMMANDS = [
    shlex.split(line, comments=True)
    for language, block in BLOCKS
    for line in block.splitlines()
    if not language and line.startswith("headgate ")
]
WAIT_S = 180


def ran(place: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    command = [sys.executable, "-m", "headgate.cli", *words[1:]]
    return subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=False, timeout=WAIT_S
    )


def test_the_page_shows_a_job_that_is_watched_changed_stopped_and_begun_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    journal = tmp_path / "job/checkpoint/headgate/journal.jsonl"

    def batches() -> list[dict[str, object]]:
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == "batch"]

    def start() -> subprocess.Popen[bytes]:
        known, process = len(batches()), subprocess.Popen([sys.executable, "job.py"], cwd=tmp_path)
        end = time.monotonic() + WAIT_S
        while len(batches()) < known + 3 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        assert process.poll() is None
        return process

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
