"""Files of a checkpoint on a server that others have written: moto's S3, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.checkpoint.place import Files, files_at
from headgate.core.errors import CheckpointError
from headgate_lab.testing.files import FilesContract
from headgate_lab.testing.servers import BUCKET, ServerUnavailable, moto

pytest.importorskip("obstore", reason="needs headgate[store]")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    try:
        with moto() as found:
            yield found
    except ServerUnavailable as error:
        pytest.skip(str(error))


def options(address: str) -> dict[str, str]:
    return {"endpoint": address, "accessKeyId": "a", "secretAccessKey": "b", "region": "us-east-1"}


class TestRealS3(FilesContract):
    @pytest.fixture(autouse=True)
    def _of(self, address: str) -> None:
        self.options = options(address)

    def open_files(self, directory: Path) -> Files:
        # each test has a place of its own
        parts = directory.parts[-4:]
        return files_at(f"s3://{BUCKET}/{'/'.join(parts)}", "", self.options)


def test_a_bucket_that_is_not_there_is_named_by_the_server_of_others(address: str) -> None:
    with pytest.raises(CheckpointError, match="its bucket does not exist"):
        files_at("s3://nobodys/ck", "", options(address)).check()
