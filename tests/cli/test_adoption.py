"""The commands adopt and export: what they are given, and what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headgate
from headgate import scenario as scenarios
from headgate.cli import app
from headgate.core.errors import CheckpointError, ConfigError
from headgate.scenario.adoption import carry_checkpoint
from headgate.scenario.spark import SparkEngine

TOLD = {
    "checkpoint": "/there",
    "batch": 7,
    "watermark_ms": 5000,
    "operators": [{"id": "aggregate-0", "entries": 1200}],
}


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize("act", ["adopt", "export"])
def test_a_command_carries_and_says_what(
    act: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        scenarios, "carry_checkpoint", lambda *words: asked.append(words) or dict(TOLD)
    )
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    options = ("--option", "n=1", "--conf", "spark.x=y", "--output-mode", "update")
    done = invoke(act, here, there, "--query", "a:b", *options)
    assert done.exit_code == 0
    assert asked == [(act, Path(here), Path(there), "a:b", {"n": 1}, {"spark.x": "y"}, "update")]
    assert "aggregate-0  1,200 entries of state" in done.stdout
    assert "batch        7, watermark 5000 ms" in done.stdout
    assert json.loads(invoke(act, here, there, "--query", "a:b", "--json").stdout) == TOLD
    assert invoke(act, here, there).exit_code == 2


def checkpoint_at(place: Path) -> None:
    """Write what both commands look at before Spark starts."""
    files = {"metadata": "{}", "commits/0": "v1\n{}", "headgate/identity.json": "{}"}
    for name, text in {**files, "offsets/0": 'v1\n{"batchWatermarkMs":0}\n-'}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def test_the_writer_or_the_frame_of_a_function_is_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FakeWriter:
        df = settings = None

        def __init__(self) -> None:
            self.said: dict[str, Any] = {}

        def outputMode(self, mode: str) -> FakeWriter:
            self.said["mode"] = mode
            return self

        def option(self, key: str, value: str) -> FakeWriter:
            self.said[key] = value
            return self

    class FakeFrame:
        schema = isStreaming = None

    functions = {"writer": FakeWriter(), "frame": FakeFrame(), "number": 5}
    text = "".join(f"def {name}(spark):\n    return MADE[{name!r}]\n" for name in functions)
    (tmp_path / "queries_to_carry.py").write_text("MADE = {}\n" + text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import queries_to_carry  # type: ignore[import-not-found]

    queries_to_carry.MADE.update(functions)
    monkeypatch.setattr(SparkEngine, "session", lambda self: None)
    closed: list[str] = []
    monkeypatch.setattr(SparkEngine, "close", lambda self: closed.append("closed"))
    monkeypatch.setattr("headgate.spark.cluster.shipping.ship", lambda spark, function: None)
    monkeypatch.setattr(headgate, "writeStream", lambda _: FakeWriter(), raising=False)
    for act in ("adopt", "export"):
        told = lambda writer, plain: {"said": writer.said, "plain": plain}  # noqa: E731
        monkeypatch.setattr(headgate, act, told, raising=False)
    origin, target = tmp_path / "origin", tmp_path / "target"
    checkpoint_at(origin)
    identity = origin / "headgate" / "identity.json"
    identity.unlink()
    identity.parent.rmdir()

    adopted = carry_checkpoint("adopt", origin, target, "queries_to_carry:frame", {})
    assert adopted == {
        "said": {"mode": "append", "checkpointLocation": str(target)},
        "plain": str(origin),
    }
    checkpoint_at(origin)
    with pytest.raises(CheckpointError, match="is a checkpoint of headgate's already"):
        carry_checkpoint("adopt", origin, target, "queries_to_carry:frame", {})
    exported = carry_checkpoint("export", origin, target, "queries_to_carry:writer", {})
    assert exported == {"said": {"checkpointLocation": str(origin)}, "plain": str(target)}
    with pytest.raises(
        ConfigError, match="returned int; it must take a Spark session and return hg"
    ):
        carry_checkpoint("export", origin, target, "queries_to_carry:number", {})
    with pytest.raises(ConfigError, match='no option "n"'):
        carry_checkpoint("adopt", origin, target, "queries_to_carry:frame", {"n": 1})
    assert len(closed) == 5, "whether it was carried or refused"
