"""Figures are tested at a size that takes a second or two: their shape, not their numbers."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_process(one_process: None) -> None:
    """Start no process for runs this small."""
