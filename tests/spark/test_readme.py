"""What the README shows runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)

SLOW_MACHINE = """
from headgate.spark.api.running import RunningQuery

_wait = RunningQuery.awaitTermination
RunningQuery.awaitTermination = lambda query, timeout: _wait(query, timeout / 50)

"""
"""Has each wait end fifty times as early: to the program its machine is so much slower."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the README's program prints on a machine on which the first batch takes long."""
    assert len(BLOCKS) == 1
    script = tmp_path_factory.mktemp("readme") / "readme.py"
    script.write_text(SLOW_MACHINE + BLOCKS[0])
    # In its own process: the program makes its own session, as its reader's will.
    ran = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=script.parent,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout


def test_the_program_puts_out_windows_and_a_sound_checkpoint(shown: str) -> None:
    assert re.search(r"^\|\{\d{4}-.*\|\d+ *\|\d+ *\|$", shown, flags=re.MULTILINE)
    assert shown.rstrip().endswith("True")


def test_explain_prints_what_the_readme_says(shown: str) -> None:
    (text,) = re.findall(r"^```\n(elastic .*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    assert text in shown
