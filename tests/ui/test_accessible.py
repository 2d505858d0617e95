"""Every view of the page in Chromium, light, dark and on a phone: axe has no complaint."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import drawn_journals
import pytest
from axe_playwright_python.sync_playwright import Axe
from journals import batch, write
from pages import get, serving
from playwright.sync_api import Browser, sync_playwright

from headgate.journal import FleetJobState, FleetRound, FleetStart
from headgate.report.limits import DriverSeen
from headgate.ui.shelf import Shelf

pytestmark = pytest.mark.slow
INCIDENTS = Path(__file__).parents[1] / "report" / "incidents"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1400, "height": 1000}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1400, "height": 1000}},
    "phone": {
        "color_scheme": "light",
        "viewport": {"width": 320, "height": 640},
        "is_mobile": True,
    },
}
OPEN_ALL = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries drawn by lot, incidents as they were, a damaged journal, and a fleet."""
    place = tmp_path_factory.mktemp("page")
    dice = random.Random(20261411)
    for number in range(6):
        path = place / f"drawn-{number}" / "headgate" / "journal.jsonl"
        write(path, drawn_journals.journal(dice))
    for incident in INCIDENTS.glob("*.jsonl"):
        path = place / incident.stem / "headgate" / "journal.jsonl"
        path.parent.mkdir(parents=True)
        shutil.copy(incident, path)
    damaged = write(place / "damaged" / "headgate" / "journal.jsonl", [batch(n) for n in range(9)])
    text = damaged.read_bytes()
    damaged.write_bytes(text[: len(text) // 2] + b"\xff{" + text[len(text) // 2 + 9 :])
    jobs = tuple(FleetJobState(f"q{n}", "running", 30.0, 60.0, n % 2 == 0) for n in range(20))
    rounds = [FleetRound(float(n), jobs, 30.0, 60.0, 3, 8, True, 100 + n) for n in range(5)]
    write(place / "fleet" / "fleet.jsonl", [FleetStart("henge", 8, 10.0, 1, 100), *rounds])
    return place


@pytest.fixture(scope="module")
def chromium(browser: str) -> Iterator[Browser]:
    with sync_playwright() as play:
        flags = ["--no-sandbox", "--no-proxy-server", "--disable-background-networking"]
        opened = play.chromium.launch(executable_path=browser, args=flags)
        yield opened
        opened.close()


@pytest.mark.parametrize(
    "look",
    [pytest.param(n, marks=[] if n == "phone" else [pytest.mark.thorough]) for n in LOOKS],
)
def test_a_screen_reader_finds_its_way_through_every_view(
    place: Path, chromium: Browser, look: str
) -> None:
    said: list[str] = []
    asked: set[str] = set()
    views = wide = 0
    with serving(Shelf([place], lambda _: DriverSeen())) as address:
        journals = json.loads(get(address, "/api/journals")[2])
        for view in ("", *(journal["id"] for journal in journals)):
            page = chromium.new_page(**LOOKS[look])
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda request: asked.add(request.url.split("/")[2]))
            page.goto(f"http://{address}/#{view}")
            page.wait_for_selector("main section")
            page.evaluate(OPEN_ALL)
            found = Axe().run(page)
            assert found.violations_count == 0, f"{view}: {found.generate_report()}"
            wide += page.evaluate("document.documentElement.scrollWidth > innerWidth")
            views += 1
            page.close()
    assert views == 14  # the overview, six drawn, five incidents, the damaged one, the fleet
    assert wide == 0
    assert said == []
    assert asked == {address}


def test_an_empty_directory_is_a_page_too(tmp_path: Path, chromium: Browser) -> None:
    with serving(Shelf([tmp_path], lambda _: DriverSeen())) as address:
        page = chromium.new_page()
        page.goto(f"http://{address}/")
        page.wait_for_selector("main :text('journal')")
        assert Axe().run(page).violations_count == 0
