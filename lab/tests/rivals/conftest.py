"""Tests of rivals decide about the same operators as the tests of headgate's own policies."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "control"))
