"""Figures are tested at a size that takes a second or two: their shape, not their numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.sim import parallel


@pytest.fixture(scope="session", autouse=True)
def _one_process() -> Iterator[None]:
    # New processes take longer to start than these runs take.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel.os, "cpu_count", lambda: 1)
        yield
