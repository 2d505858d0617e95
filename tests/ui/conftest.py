"""The tests of the page share the journals of the tests of metrics and of reports, and a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

for _folder in ("metrics", "report", "ui"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local times of sentences are the same everywhere."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="session")
def browser() -> str:
    """Chromium, of Debian's package where it is not there yet."""
    if found := shutil.which("chromium"):
        return found
    if os.getuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("chromium is not there, and only root can install Debian's package of it")
    install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium"]
    for command in (["apt-get", "update", "-q"], install):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"chromium cannot be installed: {done.stderr[-200:]}")
    return shutil.which("chromium") or pytest.skip("chromium was installed and is not found")
