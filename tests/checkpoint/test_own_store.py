"""A store of one's own: `examples/sqlitestore`, by the contract, by headgate's own, and broken."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.own_store import CheckpointStore, OwnStoreFiles
from headgate.checkpoint.place import Files, files_at
from headgate.checkpoint.store_contract import CheckpointStoreContract
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.stores import options_for, store_option, store_url
from headgate_lab.testing.files import FilesContract

sys.path.insert(0, str(Path(__file__).parents[1] / "control"))
import own_policies

EXAMPLE = own_policies.EXAMPLE.parent / "sqlitestore"


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own_policies.install_example(monkeypatch, tmp_path / "site", EXAMPLE)


def brings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str) -> None:
    """Install a distribution `shaky` whose module is `module`, with the store `shelf`."""
    monkeypatch.delitem(sys.modules, "shaky", raising=False)
    own_policies.install(
        monkeypatch,
        tmp_path / "shaky",
        "shaky",
        {"shelf": "shaky:Shelf"},
        group="headgate.stores",
        module=module,
    )


class TestTheContract(CheckpointStoreContract):
    scheme = "sqlite"

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def open_store(self, url: str) -> CheckpointStore:
        import sqlitestore

        made: CheckpointStore = sqlitestore.SqliteStore(url, {"directory": str(self.directory)})
        return made


class TestFilesInIt(FilesContract):
    def open_files(self, directory: Path) -> Files:
        # the same database: places are told apart by their keys
        at = f"sqlite://db/{directory.parent.name}/headgate"
        return files_at(at, "", {"directory": str(directory.parents[1])})


LOSING = """
from headgate.checkpoint import CheckpointStore

class Shelf(CheckpointStore):
    files = {}
    def read(self, name):
        return self.files.get(name)
    def write(self, name, data):
        self.files[name] = data
    def write_new(self, name, data):
        self.files[name] = data
        return True
    def sizes(self, directory):
        raise OSError("password=sesame")
    def delete(self, names):
        pass
"""


def test_the_contract_notices_a_store_that_lets_two_writers_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brings(monkeypatch, tmp_path, LOSING)
    import shaky  # type: ignore[import-not-found]

    class Broken(CheckpointStoreContract):
        def open_store(self, url: str) -> CheckpointStore:
            made: CheckpointStore = shaky.Shelf(url, {})
            return made

    for test in (Broken().test_a_new_file_is_never_written_over,):
        with pytest.raises(AssertionError):
            test()


def test_a_store_that_lets_two_writers_through_is_refused_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brings(monkeypatch, tmp_path, LOSING.replace('raise OSError("password=sesame")', "return {}"))
    with pytest.raises(CheckpointError, match="its write_new lets one writer write over another"):
        files_at("shelf://a/b").check()


def test_what_a_store_raises_is_one_sentence_without_its_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brings(monkeypatch, tmp_path, LOSING)
    with pytest.raises(
        CheckpointError, match=r"shelf://a/b/x/: the store cannot list \(OSError\)"
    ) as it:
        files_at("shelf://a/b").names("x")
    assert "sesame" not in str(it.value)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("import nothing_like_it", "cannot be loaded: ModuleNotFoundError"),
        ("Shelf = 7", "is no class but 7"),
        (
            "class Shelf: pass",
            "is the class Shelf; derive it from headgate.checkpoint.CheckpointStore",
        ),
        (
            "from headgate.checkpoint import CheckpointStore\nclass Shelf(CheckpointStore): pass",
            "cannot be made: TypeError: .*abstract",
        ),
    ],
)
def test_a_distribution_that_does_not_work_is_named_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, message: str
) -> None:
    brings(monkeypatch, tmp_path, module)
    assert store_url("shelf://a/b") == "shelf://a/b"  # nothing of it is loaded
    with pytest.raises(
        ConfigError, match=f'store "shelf" of the distribution shaky 0.1.0 {message}'
    ):
        files_at("shelf://a/b")


def test_its_options_are_checked_by_the_store_that_is_asked_for(tmp_path: Path) -> None:
    key, text = store_option("headgate.store.directory", "/d")
    assert options_for("sqlite://db/ck", {key: text}) == {"directory": "/d"}
    with pytest.raises(
        ConfigError, match="direktory is not one of a store sqlite://; use one of dir"
    ):
        options_for("sqlite://db/ck", {"headgate.store.direktory": "/d"})
    with pytest.raises(ConfigError, match="directory is not one of a store s3://"):
        options_for("s3://b/ck", {key: text})
    with pytest.raises(ConfigError, match=r"needs option headgate\.store\.directory"):
        files_at("sqlite://db/ck")


def test_an_unknown_scheme_is_refused_with_those_that_are_installed() -> None:
    assert store_url("sqlit://db/ck") is None
    with pytest.raises(
        CheckpointError, match=r"also s3://, .*hdfs://, sqlite://; give a directory"
    ):
        Checkpoint("sqlit://db/ck")


def test_a_scheme_that_headgate_has_is_headgates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own_policies.install(
        monkeypatch, tmp_path / "u", "usurper", {"s3": "usurper:Missing"}, group="headgate.stores"
    )
    assert not isinstance(files_at("s3://b/ck"), OwnStoreFiles)


def test_a_checkpoint_on_it_is_one_of_another_object_too(tmp_path: Path) -> None:
    options: Mapping[str, str] = {"directory": str(tmp_path)}
    uuid = Checkpoint("sqlite://db/ck", options).open({"a": 1})
    assert Checkpoint("sqlite://db/ck", options).open({"a": 1}) == uuid
    with pytest.raises(CheckpointError):
        Checkpoint("sqlite://db/ck", options).open({"a": 2})
