"""Product, demo and laboratory are three wheels; the first needs nothing of the others, and says so."""

from __future__ import annotations

import ast
import configparser
import email
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

from headgate.scenario.description import DEMO

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = {"headgate": ROOT, "headgate_demo": ROOT / "demo", "headgate_lab": ROOT / "lab"}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
INSTALL = "in a checkout of headgate, pip install"
SENTENCES = {
    "bench": f"headgate: headgate bench is in the laboratory: {INSTALL} ./demo ./lab",
    "demo": f"headgate: headgate demo is in headgate-demo: {INSTALL} ./demo",
    "figure": f"headgate: headgate figure is in the laboratory: {INSTALL} ./demo ./lab",
}

LABORATORY = {
    "bench",
    "dataflow",
    "experiments",
    "generators",
    "headgate_demo",
    "headgate_lab",
    "oplus",
    "testing",
    "tuple_buffer",
}
"""Packages that no user's job needs."""
_LABORATORY = re.compile(
    r"headgate_demo|headgate_lab|headgate\.(\w+\.)*(bench|experiments|testing)\b"
)


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield every text in a module that is no docstring."""
    said = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    # A text that stands alone explains the attribute above it.
    said |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def test_no_text_of_the_product_is_the_name_of_a_module_of_demo_or_laboratory() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / "src").rglob("*.py")
        for text in texts(ast.parse(path.read_text(encoding="utf-8")))
        if _LABORATORY.search(text)
    }
    assert found == set()


def test_a_name_in_a_text_is_seen_and_one_in_a_docstring_is_not() -> None:
    tree = ast.parse('"""As headgate_lab."""\nload("headgate_lab.bench.kill")\nx = 1\n"""y"""\n')
    assert [text for text in texts(tree) if _LABORATORY.search(text)] == ["headgate_lab.bench.kill"]


@pytest.mark.parametrize("project", [path for path in PROJECTS.values() if path != ROOT], ids=str)
def test_all_projects_have_one_version_one_licence_and_one_notice(project: Path) -> None:
    it = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert it["version"] == VERSION
    for name in ("LICENSE", "NOTICE"):
        assert (project / name).read_bytes() == (ROOT / name).read_bytes()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels, built from copies: a build leaves files in the directory that it builds."""
    found = {}
    for name, project in PROJECTS.items():
        there, out = tmp_path_factory.mktemp(name), tmp_path_factory.mktemp("wheel")
        written = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(project / "src", there / "src", ignore=written)
        for file in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
            shutil.copy(project / file, there)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
        subprocess.run(
            [*command, "--disable-pip-version-check", "--wheel-dir", str(out), str(there)],
            check=True,
            capture_output=True,
        )
        (found[name],) = out.glob("*.whl")
    return found


def metadata(wheel: Path, name: str) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"{name}-{VERSION}.dist-info/METADATA"))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_has_all_modules_of_its_project_and_nothing_else(
    wheels: dict[str, Path], name: str
) -> None:
    sources = PROJECTS[name] / "src"
    files = set(zipfile.ZipFile(wheels[name]).namelist())
    packed = {file for file in files if not file.startswith(f"{name}-{VERSION}.dist-info/")}
    modules = {str(path.relative_to(sources)) for path in sources.rglob("*.py")}
    tables = {str(path.relative_to(sources)) for path in sources.rglob("*.tsv")}
    pages = {str(path.relative_to(sources)) for path in sources.glob("*/ui/static/**/*.*")}
    licences = {str(path.relative_to(sources)) for path in sources.rglob("LICENSE")}
    assert packed == modules | tables | pages | licences | {f"{name}/py.typed"}
    for text in ("LICENSE", "NOTICE"):
        assert f"{name}-{VERSION}.dist-info/licenses/{text}" in files


@pytest.mark.slow
def test_nothing_of_demo_and_laboratory_is_in_the_products_wheel(wheels: dict[str, Path]) -> None:
    for file in zipfile.ZipFile(wheels["headgate"]).namelist():
        assert set(Path(file).with_suffix("").parts) & LABORATORY == set(), file


@pytest.mark.slow
def test_each_wheel_says_what_it_offers_and_needs(wheels: dict[str, Path]) -> None:
    offered = {}
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            text = archive.read(f"{name}-{VERSION}.dist-info/entry_points.txt").decode()
        read = configparser.ConfigParser()
        read.read_string(text)
        offered[name] = {group: dict(read[group]) for group in read.sections()}
    assert offered.pop("headgate") == {"console_scripts": {"headgate": "headgate.cli:main"}}
    for name, groups in offered.items():
        text = (PROJECTS[name] / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text)["project"]
        assert groups == project["entry-points"]
        assert metadata(wheels[name], name).get_all("Requires-Dist") == project["dependencies"]
    assert set(offered["headgate_demo"]["headgate.workloads"]) == set(DEMO)
    needed = metadata(wheels["headgate"], "headgate").get_all("Requires-Dist") or []
    assert [text for text in needed if "headgate" in text] == [
        f'headgate-demo=={VERSION}; extra == "demo"'
    ]


class Installation:
    """Some wheels, unpacked beside what else is installed, without this checkout."""

    def __init__(self, directory: Path, *wheels: Path) -> None:
        others = directory / "others"
        others.mkdir()
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not path.name.startswith(("headgate", "__editable__")) and path.suffix != ".pth":
                (others / path.name).symlink_to(path)
        for wheel in wheels:
            zipfile.ZipFile(wheel).extractall(directory / "wheels")
        self._path = [str(directory / "wheels"), str(others)]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call ``headgate`` of this installation."""
        code = f"import sys; sys.path[:0] = {self._path!r}; from headgate.cli import main; main()"
        # -I: not PYTHONPATH; -S: none of the site's .pth files, which lead to this checkout.
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, *arguments],
            capture_output=True,
            check=False,
            text=True,
        )


@pytest.fixture(scope="module")
def product(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("product"), wheels["headgate"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        ["bench"],
        ["bench", "kill", "--count", "3"],
        ["figure"],
        ["figure", "--list"],
        ["demo", "kafka", "--topic", "a"],
    ],
)
def test_the_product_alone_says_in_one_sentence_what_to_install(
    product: Installation, given: list[str]
) -> None:
    done = product.call(*given)
    assert done.stderr.strip() == SENTENCES[given[0]]
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.slow
def test_the_product_alone_says_it_as_json_if_so_asked(product: Installation) -> None:
    done = product.call("bench", "--json")
    assert SENTENCES["bench"].endswith(json.loads(done.stdout)["error"]["message"])
    assert done.returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "explain"])
def test_the_product_alone_says_what_brings_the_workloads(
    product: Installation, command: str
) -> None:
    done = product.call(command, "nexmark-q5")
    assert done.stderr.strip() == (
        f'headgate: workload "nexmark-q5" is not installed: {INSTALL} ./demo brings '
        f"{', '.join(DEMO)}; your own is module:function."
    )
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.slow
def test_with_the_demo_beside_it_there_are_its_workloads(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    both = Installation(tmp_path, wheels["headgate"], wheels["headgate_demo"])
    said = both.call("run", "nexmark-q55").stderr
    assert said.startswith('headgate: unknown workload "nexmark-q55"')
    assert "kafka" in both.call("demo", "--help").stdout
    assert both.call("bench").stderr.strip() == SENTENCES["bench"]


@pytest.mark.slow
def test_the_product_alone_simulates(product: Installation, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{second},k{key},10" for second in range(10) for key in range(20)]
    trace.write_text("\n".join(["time,key,count", *rows]), encoding="utf-8")
    done = product.call(
        *("simulate", str(trace), "--slo", "mean < 1 s over 1 s", "--policy", "threshold"),
        *("--service-rate", "160", "--json"),
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 1


@pytest.mark.slow
def test_with_the_laboratory_beside_it_there_are_figures_and_benchmarks(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    both = Installation(tmp_path, *wheels.values())
    assert both.call("figure", "--list").stdout.startswith("streamswitch-5 ")
    assert "tuple-buffer" in both.call("bench", "--help").stdout
