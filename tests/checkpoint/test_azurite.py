"""Files of a checkpoint on Azure's blob store, as Azurite is one, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.checkpoint.place import Files, files_at
from headgate.core.errors import CheckpointError
from headgate_lab.testing.azurite import PLACE, azurite
from headgate_lab.testing.files import FilesContract
from headgate_lab.testing.servers import BUCKET, ServerUnavailable

pytest.importorskip("obstore", reason="needs headgate[store]")
pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    try:
        with azurite() as found:
            yield found
    except ServerUnavailable as error:
        pytest.skip(str(error))


class TestAzurite(FilesContract):
    @pytest.fixture(autouse=True)
    def _of(self, options: dict[str, str]) -> None:
        self.options = options

    def open_files(self, directory: Path) -> Files:
        # each test has a place of its own
        parts = directory.parts[-4:]
        return files_at(f"{PLACE}/{'/'.join(parts)}", "", self.options)


def test_a_container_that_is_not_there_is_named(options: dict[str, str]) -> None:
    nobodys = PLACE.replace(BUCKET, "nobodys")
    with pytest.raises(CheckpointError, match="its bucket does not exist"):
        files_at(f"{nobodys}/ck", "", options).check()


def test_a_wrong_key_is_a_refusal_that_does_not_show_it(options: dict[str, str]) -> None:
    wrong = "A" * 86 + "=="
    with pytest.raises(CheckpointError, match=r"refuses to write .403 AuthorizationF") as refused:
        files_at(f"{PLACE}/ck", "", {**options, "accountKey": wrong}).check()
    assert wrong not in str(refused.value)
