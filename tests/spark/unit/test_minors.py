"""Which minor releases of Spark headgate knows the inside of."""

from __future__ import annotations

import pyspark
import pytest

from headgate.core.errors import HeadgateError
from headgate.spark.jvm.minors import MINORS, adapter, adapter_for


@pytest.mark.parametrize("name", MINORS)
def test_every_patch_release_of_a_known_minor_has_its_adapter(name: str) -> None:
    assert type(adapter_for(f"{name}.7")) is MINORS[name]
    assert adapter_for(f"{name}.0.dev1").name == name


def test_a_patch_release_that_lacks_methods_is_refused() -> None:
    with pytest.raises(HeadgateError, match=r"PySpark 4\.1\.1 lacks .* install 4\.1\.2 or a newer"):
        adapter_for("4.1.1")


def test_the_release_that_runs_here_has_one() -> None:
    assert pyspark.__version__.startswith(adapter().name + ".")


@pytest.mark.parametrize("version", ["4.0.2", "4.9.0", "5.0.0"])
def test_any_other_is_refused_with_those_that_are_known(version: str) -> None:
    with pytest.raises(HeadgateError) as raised:
        adapter_for(version)
    said = str(raised.value)
    assert version in said
    assert all(name in said for name in MINORS)
    assert said.endswith(".")


class Told:
    """A JVM object that returns what it is told, called itself or by a method."""

    def __call__(self, *fields: object) -> tuple[object, ...]:
        return fields

    def __getattr__(self, name: str) -> object:
        return lambda *fields: (name, *fields)


CALLS = {
    "logical_rdd": (("a", "b", False), ("a", "b"), ("a", "b")),
    "inline_cte": ((True, False, False), (True, False), (True, False)),
    "data_source": (("a", "b", "b"), ("a", "b", "b"), ("a", "b")),
    "micro_batch_write": (
        (Told, "a", "b"), (Told, "a", "b"), ("b", ("table",), "a", "b"),
    ),
    "create_sink": (("createSink", "a", "b"), ("createSink", "a"), ("createSink", "a")),
    "batch_notes": (("metadataOpt",), ("metadataOpt",), ("metadata",)),
    "state_rewriter": (("a", "b"), ("a", "b"), None),
}  # fmt: skip
"""What each method of an adapter tells the JVM, on Spark 4.3, 4.2 and 4.1."""


@pytest.mark.parametrize("method", CALLS)
def test_each_minor_is_told_what_it_asks_for(method: str) -> None:
    node, relation = Told(), Told()
    before = {"inline_cte": (), "batch_notes": (), "micro_batch_write": (relation, "a", "b")}
    for minor, told in zip(("4.3", "4.2", "4.1"), CALLS[method], strict=True):
        ask = getattr(adapter_for(f"{minor}.7"), method)
        fields = before.get(method, ("a", "b"))
        if told is None:
            with pytest.raises(HeadgateError, match="export with Spark 4"):
                ask(node, *fields)
            continue
        said = ask(node, *fields)
        assert tuple(Told if field is relation else field for field in said) == told, minor


def test_rows_go_to_python_while_others_come_back_from_spark_43_on() -> None:
    assert [(one.name, one.pipelines_python) for one in MINORS.values()] == [
        ("4.1", False), ("4.2", False), ("4.3", True),
    ]  # fmt: skip
