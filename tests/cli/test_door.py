"""No command runs, loads or applies what a file of a checkpoint names."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import CheckpointError, ConfigError
from headgate.scenario import Scenario, settings_not_taken, to_verify
from headgate.scenario.spark import SparkEngine
from headgate.spark.plain import log
from headgate.spark.read.table_offsets import rows_until
from headgate_demo.spark import queries, sources


def record(tmp_path: Path, **fields: Any) -> Path:
    """Write the record of a run as somebody else may have; return the checkpoint."""
    checkpoint = tmp_path / "ck"
    checkpoint.mkdir(exist_ok=True)
    it = Scenario("nexmark-q5", checkpoint=checkpoint).placed()
    it.record()
    kept = json.loads((checkpoint / "scenario.json").read_text())
    (checkpoint / "scenario.json").write_text(json.dumps(kept | fields))
    return checkpoint


def verified(checkpoint: Path, **typed: Any) -> Scenario:
    given = {"workload": None, "output": None, "options": {}, **typed}
    return to_verify(checkpoint, **given)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workload": "pydoc:pipepager", "options": {"cmd": "id"}}, "calls pydoc:pipepager"),
        ({"workload": "os:system"}, "type it: headgate verify"),
        ({"workload": "of-a-plugin"}, "calls of-a-plugin"),
        ({"workload": "kafka-clicks"}, "starts a Kafka broker on what lies there"),
        ({"workload": "sdsc", "options": {"path": "/dev/zero"}}, "has option path"),
        ({"workload": "sdsc", "options": {"path": "hdfs://elsewhere/x"}}, "--option path=VALUE"),
        ({"options": {"servers": "elsewhere:9092"}}, "has option servers"),
        ({"options": {"until": '{"event": 1}'}}, "has option until"),
        ({"options": {"rate": ["x"]}}, "has option rate"),
        ({"output": "/etc"}, "wrote to /etc"),
        ({"output": "../elsewhere"}, "type it: headgate verify"),
        ({"table": "jdbc.`jdbc:h2:mem`"}, "wrote table jdbc.`jdbc:h2:mem`"),
        ({"sink_format": "org.example.Reads"}, "wrote org.example.Reads"),
        ({"sink_format": "jdbc"}, "--format NAME"),
    ],
)
def test_code_places_and_classes_are_typed(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        verified(record(tmp_path, **fields))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_typed_is_taken(tmp_path: Path) -> None:
    own = record(tmp_path, workload="mine:query", options={"a": "b"}, output="/etc")
    it = verified(own, workload="mine:query", options={"c": 1}, output=tmp_path, table=None)
    assert (it.workload, it.options, it.output) == ("mine:query", {"c": 1}, tmp_path)
    it = verified(record(tmp_path, workload="sdsc", options={"path": "/x"}), options={"path": "/y"})
    assert it.options == {"path": "/y"}
    table = record(tmp_path, table="a.b", sink_format="delta")
    it = verified(table, table="a.b", sink_format="delta")
    assert (it.table, it.output) == ("a.b", None)


def test_settings_of_spark_are_told_and_not_taken(tmp_path: Path) -> None:
    conf = {"spark.plugins": "org.example.Mine", "spark.sql.session.timeZone": "UTC"}
    checkpoint = record(tmp_path, conf=conf, policy="mine(1)", slo=["x"], migration="mine")
    it = verified(checkpoint, conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
    assert it.conf == {"spark.sql.session.timeZone": "Asia/Tokyo"}
    assert (it.policy, it.slo, it.migration) == (None, (), None)
    assert settings_not_taken(it) == ["spark.plugins"]


def test_a_builtin_workload_is_compared_as_it_was_recorded(tmp_path: Path) -> None:
    fields = {"rate": "sine(base=50, amplitude=9, period=20s)", "seed": 7, "options": {"skew": 1.5}}
    it = verified(record(tmp_path, **fields))
    assert (it.rate, it.seed, it.options) == (fields["rate"], 7, {"skew": 1.5})
    assert it.placed().output == tmp_path / "ck-output"
    SparkEngine().check(it.workload, it.build_options(), "it:")


def test_every_option_with_a_text_of_a_source_has_to_be_typed_or_is_known() -> None:
    """A new option that names a place must not slip into what a record may choose."""
    texts = {
        name
        for table in (sources._NEXMARK, sources._REPLAY, sources._EXCHANGE, sources._SENTENCES)
        for name, option in table.items()
        if option.parse is str
    }
    assert texts == {"path", "time_column"}


def test_a_text_in_an_expression_of_a_workload_is_a_time() -> None:
    evil = "1 second or java_method('java.lang.System', 'exit', 3) is null"

    class Reader:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **options: self

    class Session:
        readStream = Reader()

    with pytest.raises(ConfigError, match="is no time; write it as 2 minutes"):
        queries.q4(Session(), longest=evil)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_an_offset_is_no_piece_of_a_statement(table: str) -> None:
    evil = "1 or java_method('java.lang.System', 'exit', '3') is null"
    offset = {
        "delta": {"reservoirVersion": evil, "index": -1},
        "iceberg": {"snapshot_id": evil, "position": 0},
    }[table]
    with pytest.raises(CheckpointError, match="which is no number"):
        rows_until(None, json.dumps(offset), "t", path=False, options={})  # type: ignore[arg-type]


def plain(tmp_path: Path, conf: dict[str, str]) -> Path:
    notes = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf})
    for name, lines in {"offsets": ["v1", notes, "-"], "commits": ["v1", "{}"]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").write_text("\n".join(lines))
    (tmp_path / "metadata").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.streaming.stateStore.providerClass", "org.example.Mine"),
        ("spark.sql.streaming.stateStore.providerClass", ["x"]),
        ("spark.sql.streaming.stateStore.compression.codec", "org.example.Codec"),
    ],
)
def test_a_plain_checkpoint_names_no_class(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(
        CheckpointError, match="headgate loads no class that only a checkpoint names"
    ):
        log.newest(plain(tmp_path, {key: value}))


def test_a_plain_checkpoint_of_sparks_own_classes_is_read(tmp_path: Path) -> None:
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    conf = {"spark.sql.streaming.stateStore.providerClass": provider, "spark.x": "y"}
    assert log.newest(plain(tmp_path, conf)).batch == 0


@pytest.mark.parametrize(
    "schema",
    [b'{"type":"udt","class":"Mine"}', b'{"type":"u\x00\x09dt"}', b'{"type":"\\u0075dt"}'],
)
def test_a_schema_of_state_names_no_class(tmp_path: Path, schema: bytes) -> None:
    place = tmp_path / "state/0/_stateSchema/default"
    place.mkdir(parents=True)
    (place / "1").write_bytes(b"v3" + schema)
    with pytest.raises(CheckpointError, match="has a user-defined type"):
        log.check_types(tmp_path)
    (place / "1").write_bytes(b'v3{"name":"updated","type":"long"}')
    log.check_types(tmp_path)


def test_no_module_is_imported_for_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strange_module.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        verified(record(tmp_path, workload="strange_module:main"))
    assert "strange_module" not in sys.modules


def test_fields_that_choose_are_known(tmp_path: Path) -> None:
    """A field that a scenario gets anew is not taken from a record unless somebody says so."""
    it = verified(record(tmp_path))
    default = Scenario(it.workload)
    taken = {"workload", "rate", "speed", "seed", "options", "sink_format", "output_mode"}
    for field in dataclasses.fields(Scenario):
        if field.name not in {*taken, "checkpoint", "output", "table", "conf"}:
            assert getattr(it, field.name) == getattr(default, field.name)


@pytest.mark.parametrize("link", ["metadata", "sources", "sources/0", "sources/0/1"])
def test_no_other_file_is_copied_into_a_checkpoint(tmp_path: Path, link: str) -> None:
    origin, target, secret = tmp_path / "origin", tmp_path / "target", tmp_path / "secret"
    (origin / "sources" / "0").mkdir(parents=True)
    (origin / "metadata").write_text("{}")
    (origin / "sources" / "0" / "0").write_text("v1")
    target.mkdir()
    (secret / "0").mkdir(parents=True)
    place = origin / link
    if place.is_file():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    place.symlink_to(secret)
    with pytest.raises(CheckpointError, match="is a symbolic link, which no checkpoint has"):
        log.copy_beside(origin, target)
    assert list(target.iterdir()) == []
