"""The tests of metrics share the small journals beside them, and the drawn ones of the reports' tests."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "report")]
