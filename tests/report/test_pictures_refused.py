"""Places that no picture can go to are refused before the work, and after it in one sentence."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headgate.core.errors import ConfigError
from headgate.report import plot


def test_a_target_of_a_picture_is_checked_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot.check_target(tmp_path / "a.svg")
    with pytest.raises(
        ConfigError, match=r'a.png" is not a name of an SVG file; end it with "\.svg"'
    ):
        plot.check_target(tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r'none" is not a directory; make it first'):
        plot.check_target(tmp_path / "none" / "a.svg")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"drawing needs matplotlib: .*\[plot\]"):
        plot.check_target(tmp_path / "a.svg")


def test_a_picture_is_written_to_a_file_alone(tmp_path: Path) -> None:
    plot.write_picture(tmp_path / "a.svg", "<svg>é</svg>")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == "<svg>é</svg>"
    plot.write_picture(tmp_path / "a.svg", "<svg/>")
    assert (tmp_path / "a.svg").read_text() == "<svg/>"
    with pytest.raises(ConfigError, match="is no file; name one that the picture"):
        plot.write_picture(tmp_path, "<svg/>")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is no file"):
        plot.write_picture(tmp_path / "link", "<svg/>")
    with pytest.raises(
        ConfigError, match=r"cannot be written to .*: No such file or directory; name"
    ):
        plot.write_picture(tmp_path / "none" / "a.svg", "<svg/>")
