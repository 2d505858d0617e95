"""Tests of what knows Spark that need no session: one that starts a JVM here fails at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a Java that is not there."""
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
