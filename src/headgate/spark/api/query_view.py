"""Shows a running query in a notebook until the query ends."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headgate.core.errors import ConfigError
from headgate.journal.writer import wall_clock_ms
from headgate.report.limits import DriverSeen
from headgate.report.notebook import NotebookView


class QueryView:
    """Shows one query of this process.

    `checkpoint`: the checkpoint's location, as the commands on the page show it. `is_active`: says
    whether the query runs.
    """

    def __init__(self, journal: Path, checkpoint: str, is_active: Callable[[], bool]) -> None:
        self._view = NotebookView(journal)
        self._checkpoint = checkpoint
        self._is_active = is_active
        self._lock = threading.Lock()  # a cell and the display thread may render at the same time

    def html(self) -> str:
        """Return the current state of the query as HTML."""
        driver = DriverSeen(holds=self._is_active(), owner="this program")
        with self._lock:
            return self._view.html(self._checkpoint, wall_clock_ms(), driver)

    def display(self, every_s: float) -> None:
        """Show the query in the output of a cell; refresh it each `every_s` seconds until the query ends.

        Raises `ConfigError`: there is no IPython here.
        """
        try:
            shell: Any = importlib.import_module("IPython.display")
        except ModuleNotFoundError as error:
            msg = (
                "query.display() needs a notebook, whose IPython is not installed; use headgate ui."
            )
            raise ConfigError(msg) from error
        handle = shell.display(shell.HTML(self.html()), display_id=True)

        def refresh() -> None:
            while self._is_active():
                time.sleep(every_s)
                handle.update(shell.HTML(self.html()))

        threading.Thread(target=refresh, name="headgate-display", daemon=True).start()
