"""Distributions that bring policies, findable as if they were installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "lagpolicy"


def install(
    patch: pytest.MonkeyPatch,
    site: Path,
    name: str,
    entries: dict[str, str],
    *,
    group: str = "headgate.policies",
    module: str | None = None,
) -> None:
    """Put a distribution into `site`, which is found from now on until the test's end.

    Parameters
    ----------
    name : str
        The distribution's, and its module's.
    entries : dict
        Entry points of `group`.
    module : str, optional
        The text of its module.
    """
    info = site / f"{name}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"{key} = {value}" for key, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    if module is not None:
        (site / f"{name}.py").write_text(module)
    patch.syspath_prepend(site)


def install_example(patch: pytest.MonkeyPatch, site: Path, example: Path = EXAMPLE) -> None:
    """Install a package of ``examples`` as its own pyproject.toml says, without pip."""
    project = tomllib.loads((example / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((group, entries),) = project["entry-points"].items()
    install(patch, site, project["name"], entries, group=group)
    patch.syspath_prepend(example)
