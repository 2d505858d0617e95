"""Makes the hand-made journals importable; --import-mode=importlib adds no test folder itself."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
