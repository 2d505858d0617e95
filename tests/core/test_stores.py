"""Which places are on a store, and what may be said about one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.stores import OPTIONS, Hidden, kind_of, options_for, store_option, store_url


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("s3://b/ck", "s3://b/ck"),
        ("s3a://b//a/./ck/", "s3a://b/a/ck"),
        (Path("gs://b/a/ck"), "gs://b/a/ck"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
        ("/s3/b", None),
        ("file:/a", None),
        ("hdfs://node:8020/a//ck", "hdfs://node:8020/a/ck"),
        (Path("hdfs://service/ck"), "hdfs://service/ck"),
        ("./s3:/b", None),
    ],
)
def test_a_place_is_on_a_store_or_not(written: str | Path, url: str | None) -> None:
    assert store_url(written) == url


@pytest.mark.parametrize(
    "written", ["s3://b", "s3://b/", "s3:/b/ck", "gs:b", "s3:///ck", "s3://b/../x"]
)
def test_a_place_without_a_key_in_a_bucket_is_refused(written: str) -> None:
    with pytest.raises(CheckpointError, match="names no key in a bucket"):
        store_url(written)


@pytest.mark.parametrize("written", ["hdfs://node:8020", "hdfs:///ck", "hdfs:/ck", "hdfs:ck"])
def test_a_place_on_hdfs_names_its_node_and_a_directory(written: str) -> None:
    with pytest.raises(
        CheckpointError, match="names no directory of a name node; write it as hdfs"
    ):
        store_url(written)


def test_names_of_options_are_checked_and_values_never_shown() -> None:
    key, text = store_option("headgate.store.SECRETACCESSKEY", "open sesame")
    assert (key, text) == ("headgate.store.secretAccessKey", "open sesame")
    assert "sesame" not in repr({key: text})
    with pytest.raises(ConfigError, match=r'did you mean "headgate\.store\.region"') as refused:
        store_option("headgate.store.regoin", "open sesame")
    assert "sesame" not in str(refused.value)


def test_options_are_those_of_the_kind_of_store() -> None:
    given = {"headgate.store.region": "x", "headgate.keepLate": "true", "path": "/y"}
    assert options_for("s3a://b/k", given) == {"region": "x"}
    assert isinstance(options_for("s3a://b/k", given)["region"], Hidden)
    with pytest.raises(ConfigError, match="region is not one of a store gs://; use one of baseUrl"):
        options_for("gs://b/k", given)
    with pytest.raises(ConfigError, match="is for a checkpoint on a store"):
        options_for(None, given)
    assert options_for(None, {"path": "/y"}) == {}


def test_every_kind_has_options() -> None:
    assert {kind_of(f"{scheme}://b/k") for scheme in ("s3", "s3a", "gs", "abfs", "hdfs")} == set(
        OPTIONS
    )
