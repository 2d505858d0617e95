"""What is typed, or stands in a fleet's file, and cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.cli.input import parse_conf
from headgate.core.errors import ConfigError
from headgate.scenario import Scenario
from headgate.scenario.spark import user_function
from headgate.whatif.simulate import mode


def scenario(**fields: object) -> Callable[[], object]:
    base = {"workload": "nexmark-q5", "duration_s": 10.0, "checkpoint": Path("ck")}
    return lambda: Scenario(**{**base, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: parse_conf(["a=b"]), '--conf "a=b" is not KEY=VALUE with a key of Spark'),
        (lambda: parse_conf(["spark.a"]), '--conf "spark.a" is not KEY=VALUE'),
        (lambda: parse_conf(["spark.a=1", "spark.a=2"]), '"spark.a" is given twice; give it once'),
        (lambda: parse_conf([], ["a:b"]), '--packages "a:b" is not of the form GROUP:NAME:VERSION'),
        (
            lambda: parse_conf(["spark.jars.packages=a:b:1"], ["c:d:2"]),
            "--packages and --conf spark.jars.packages are both given; give one",
        ),
        (scenario(require_slo=True), "an SLO is required but none is given; add --slo TEXT"),
        (scenario(sink_format="a b"), 'format "a b" is no name of one; use parquet'),
        (scenario(output_mode="upsert"), 'output mode "upsert" is unknown; use append'),
        (scenario(seed=-1), "seed=-1 is out of range; use 0 or more"),
        (scenario(key_groups=10**6), "key_groups=1000000 is out of range"),
        (lambda: mode("continous"), 'unknown mode "continous"; did you mean "continuous"'),
        (lambda: user_function("a b:c"), 'cannot load "a b:c": write module:function'),
        (lambda: user_function("no_such_module_x:f"), "ModuleNotFoundError"),
        (lambda: user_function("numpy:pi"), '"numpy:pi" is not a function; it must take'),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        call()
    assert says in str(refused.value)


def test_settings_and_packages_are_spark_settings() -> None:
    assert parse_conf(["spark.a=b=c", "spark.d="]) == {"spark.a": "b=c", "spark.d": ""}
    packages = parse_conf(["spark.a=1"], ["a:b:1, c:d:2", "e:f:3"])
    assert packages == {"spark.a": "1", "spark.jars.packages": "a:b:1,c:d:2,e:f:3"}
    assert parse_conf([]) == {}
