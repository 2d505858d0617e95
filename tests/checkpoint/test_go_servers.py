"""Files of a checkpoint on Versity's S3 and on a fake of Google's store, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.checkpoint.place import Files, files_at
from headgate.core.errors import CheckpointError
from headgate_lab.testing.files import FilesContract
from headgate_lab.testing.go_servers import fake_gcs, versity
from headgate_lab.testing.servers import BUCKET, ServerUnavailable

pytest.importorskip("obstore", reason="needs headgate[store]")
pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SERVERS = {"s3": versity, "gs": fake_gcs}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    """The beginning of a checkpoint's place, and the store's options."""
    try:
        with SERVERS[request.param]() as found:
            yield f"{request.param}://", found
    except ServerUnavailable as error:
        pytest.skip(str(error))


class TestServer(FilesContract):
    @pytest.fixture(autouse=True)
    def _of(self, server: tuple[str, dict[str, str]]) -> None:
        self.scheme, self.options = server

    def open_files(self, directory: Path) -> Files:
        # each test has a place of its own
        parts = directory.parts[-4:]
        return files_at(f"{self.scheme}{BUCKET}/{'/'.join(parts)}", "", self.options)


def test_a_bucket_that_is_not_there_is_named(server: tuple[str, dict[str, str]]) -> None:
    scheme, options = server
    with pytest.raises(CheckpointError, match="its bucket does not exist"):
        files_at(f"{scheme}nobodys/ck", "", options).check()


def test_a_wrong_secret_is_a_refusal_that_does_not_show_it(
    server: tuple[str, dict[str, str]],
) -> None:
    scheme, options = server
    if scheme != "s3://":
        pytest.skip("the fake of Google's store asks nobody who he is")
    wrong = {**options, "secretAccessKey": "somebody"}
    with pytest.raises(CheckpointError, match=r"refuses to write .403 Signature") as refused:
        files_at(f"{scheme}{BUCKET}/ck", "", wrong).check()
    assert "somebody" not in str(refused.value)
