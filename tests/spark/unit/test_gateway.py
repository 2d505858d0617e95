"""Names of the JVM are asked for once, but for a class that is not there yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from py4j.java_gateway import JavaPackage

from headgate.spark.jvm.gateway import java_class, jvm


class Package(JavaPackage):  # type: ignore[misc]
    """A package that notes what it is asked for; a class is a text, `Missing` is none."""

    def __init__(self, asked: list[str]) -> None:
        vars(self)["asked"] = asked

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return Package(self.asked) if name.islower() or name == "Missing" else f"class {name}"


def test_a_package_and_a_class_are_asked_for_once() -> None:
    asked: list[str] = []
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=Package(asked)))
    assert [jvm(spark).org.apache.Thing for _ in range(3)] == ["class Thing"] * 3
    assert jvm(spark).org.apache.Other == "class Other"
    assert java_class(spark, "org.apache.Other") == "class Other"
    assert asked == ["org", "apache", "Thing", "Other"]


def test_a_class_that_is_not_there_is_asked_for_again_and_each_jvm_by_itself() -> None:
    for _ in range(2):
        asked: list[str] = []
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=Package(asked)))
        for _ in range(2):
            assert isinstance(jvm(spark).org.Missing, JavaPackage)
        assert asked == ["org", "Missing", "Missing"]
