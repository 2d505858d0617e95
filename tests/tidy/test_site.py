"""The site builds without a warning, and all of its pages are in its menu."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS)]
    built = subprocess.run([*build, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    reference = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert "headgate.writeStream" in reference
    for page in tmp_path.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="https?:[^"]*"', text), page


def test_every_page_is_in_the_menu() -> None:
    menus = re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    listed = [line for menu in menus for line in menu.splitlines() if line and line[0] != ":"]
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert sorted(listed) == sorted({*pages, "design/README"})


def test_the_reference_has_every_public_name() -> None:
    import headgate

    listed = re.findall(r"auto\w+:: headgate\.(\w+)", (DOCS / "api.md").read_text())
    assert sorted(listed) == sorted({*headgate.__all__} - {"__version__"})
