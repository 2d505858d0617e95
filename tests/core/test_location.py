"""A path means what it means to Hadoop, and only a POSIX one is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.core.errors import CheckpointError
from headgate.core.location import local_path, uri


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b", "/a/b"),
        ("a", "a"),
        ("./a:b", "a:b"),
        ("/a:b/c://d", "/a:b/c:/d"),
        ("~/a", "~/a"),
        ("file:/a b%20#ü", "/a b%20#ü"),
        ("file:///a", "/a"),
    ],
)
def test_a_path_and_a_file_uri_name_a_directory_as_they_stand(text: str, path: str) -> None:
    assert local_path(text) == Path(path)


@pytest.mark.parametrize(
    "text",
    ["s3a://b/ck", "hdfs:/ck", "dbfs:/", "s3a:/b", "gs:b", "FILE:/a", "a:b", "hdfs://n:1/ck"],
)
def test_a_path_on_another_file_system_is_refused_by_the_name_it_was_given(text: str) -> None:
    with pytest.raises(CheckpointError, match="only POSIX paths") as refused:
        local_path(text)
    assert text in str(refused.value)


@pytest.mark.parametrize("text", ["file://host/a", "file:a", "file:", "file://"])
def test_a_file_uri_without_a_directory_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="one slash or three"):
        local_path(text)


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(CheckpointError, match="empty path"):
        local_path("")


@pytest.mark.parametrize("path", ["/a", "/a b%20#ü:c", "/~/x"])
def test_a_uri_names_the_path_that_it_was_made_of(path: str) -> None:
    assert local_path(uri(Path(path))) == Path(path)
