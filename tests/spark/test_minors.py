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
