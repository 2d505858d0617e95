"""Makes the fakes and the hand-made journals importable; --import-mode=importlib adds no folder."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "report"), str(TESTS / "control")]
