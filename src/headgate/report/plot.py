"""Makes empty figures and saves figures as SVG; the only module that imports matplotlib.

The extra ``plot`` installs matplotlib.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.core.errors import ConfigError
from headgate.core.input import checked_path, is_directory, is_file, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Axes", "Figure", "check_target", "panels", "save"]

_PANEL_INCHES = (4.8, 3.4)


def panels(rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its panels, row by row.

    Raises `ConfigError`: matplotlib is not installed.
    """
    _check_installed()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to load

    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as SVG; the same figure gives the same file."""
    import matplotlib as mpl  # noqa: PLC0415 - as above

    with mpl.rc_context({"svg.hashsalt": "headgate"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def check_target(path: Path) -> None:
    """Raise ConfigError if `path` is not fit for a picture or matplotlib is missing.

    Call it before the work, not after.
    """
    checked_path(path)
    if path.suffix != ".svg":
        msg = f'"{shown(path)}" is not a name of an SVG file; end it with ".svg".'
        raise ConfigError(msg)
    if not is_directory(path.parent):
        msg = f'"{shown(path.parent)}" is not a directory; make it first.'
        raise ConfigError(msg)
    _check_installed()


def write_picture(path: Path, text: str) -> None:
    """Write the text of a picture.

    Raises `ConfigError`: something other than a file is there, or it cannot be written.
    """
    checked_path(path)
    if os.path.lexists(path) and not is_file(path):
        msg = f'"{shown(path)}" is no file; name one that the picture may be written to.'
        raise ConfigError(msg)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = (
            f'a picture cannot be written to "{shown(path)}": {error.strerror}; name another file.'
        )
        raise ConfigError(msg) from error


def _check_installed() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        msg = 'drawing needs matplotlib: in a checkout of headgate, pip install ".[plot]".'
        raise ConfigError(msg)
