from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headgate.core.errors import ConfigError
from headgate_lab.experiments import registry
from headgate_lab.experiments.registry import Request


@pytest.mark.parametrize("name", list(registry.entries()))
def test_every_figure_has_a_module_with_run_and_draw_that_says_what_the_paper_shows(
    name: str,
) -> None:
    module = registry.load(name)
    assert callable(module.run)
    assert callable(module.draw)
    doc = module.__doc__ or ""
    number = name.rpartition("-")[2]
    assert "The paper shows [P]" in doc or not number.isdecimal()


def test_a_figure_that_another_one_shows_as_well_is_found_by_its_own_number() -> None:
    assert registry.load("streamswitch-18") is registry.load("streamswitch-6")


def test_an_unknown_figure_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match='"streamswich-5"; did you mean "streamswitch-5"'):
        registry.run("streamswich-5", Request())


def test_a_name_like_none_is_refused_with_all_of_them() -> None:
    with pytest.raises(ConfigError, match=r"known: .*streamswitch-5, "):
        registry.load("x")


def test_the_figure_of_the_traces_asks_for_their_directory() -> None:
    with pytest.raises(ConfigError, match="name its directory with --data"):
        registry.run("traces", Request(quick=True))


def test_other_figures_refuse_a_directory() -> None:
    with pytest.raises(ConfigError, match="reads no files; leave out --data"):
        registry.run("streamswitch-5", Request(data=Path()))


def test_a_directory_without_the_traces_is_refused_by_the_missing_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no "worldcup98.per_minute.csv.gz" in'):
        registry.run("traces", Request(quick=True, data=tmp_path))


def test_figures_load_without_the_library_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate.report import plot

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert registry.load("streamswitch-5")
    with pytest.raises(ConfigError, match=r'pip install "\.\[plot\]"'):
        plot.panels()
