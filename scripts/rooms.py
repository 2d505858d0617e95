"""Draw the rooms of headgate, and list who imports whom: ``docs/rooms.svg``, ``docs/architecture.md``.

A room is a package of `headgate`, or one of `headgate.spark`. Who imports whom is read off the sources
with grimp, imports for types included. A room stands one floor above the highest room that it imports.
The picture leaves out arrows that a way through other rooms implies; the table has them all.

    python scripts/rooms.py        write both again (``make docs``)
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "rooms.svg"
BEGIN, END = "<!-- scripts/rooms.py writes from here -->", "<!-- to here -->"

DOOR, FRONT, DEMO, LABORATORY = "headgate", "spark", "headgate_demo", "headgate_lab"
"""Rooms that are no package of their own: ``import headgate``, the files on top of `headgate.spark`,
and the whole of each other distribution."""
_SOURCES = {DEMO: "demo/src/headgate_demo", LABORATORY: "lab/src/headgate_lab"}
_PURPOSES = {
    DOOR: "`import headgate as hg`: the public names, each fetched when it is asked for.",
    FRONT: "The package itself: rooms only.",
}

Rooms = Mapping[str, frozenset[str]]
"""Of each room the rooms that it imports."""


def room_of(module: str) -> str:
    """Return the room of a module, as ``control`` or ``spark.step``."""
    distribution, *parts = module.split(".")
    if distribution in _SOURCES:
        return distribution
    if not parts:
        return DOOR
    if parts[0] != FRONT:
        return parts[0]
    inside = (ROOT / "src" / "headgate" / Path(*parts[:2])).is_dir()
    return ".".join(parts[:2]) if inside else FRONT


@functools.cache
def rooms() -> Rooms:
    """Return every room with the rooms that it imports, also for types only."""
    graph = grimp.build_graph(DOOR, DEMO, LABORATORY, cache_dir=None)
    found: dict[str, set[str]] = {room_of(module): set() for module in graph.modules}
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            found[room_of(module)].add(room_of(other))
    return {name: frozenset(found[name] - {name}) for name in sorted(found)}


def floors(house: Rooms) -> dict[str, int]:
    """Return the floor of each room; 0 is the lowest.

    Raises
    ------
    ValueError
        Rooms import each other in a circle.
    """
    level: dict[str, int] = {}
    while len(level) < len(house):
        ready = [n for n in house if n not in level and house[n] <= level.keys()]
        if not ready:
            msg = f"rooms import each other: {', '.join(sorted(house.keys() - level.keys()))}"
            raise ValueError(msg)
        for name in ready:
            level[name] = 1 + max((level[other] for other in house[name]), default=-1)
    return level


def arrows(house: Rooms) -> list[tuple[str, str]]:
    """Return the imports that no way through other rooms implies."""
    level = floors(house)
    below: dict[str, frozenset[str]] = {}
    for name in sorted(house, key=lambda n: level[n]):
        below[name] = house[name].union(*(below[other] for other in house[name]))
    return [
        (name, other)
        for name in house
        for other in sorted(house[name])
        if not any(other in below[between] for between in house[name])
    ]


def purpose(room: str) -> str:
    """Return what a room is for, as the first sentence of its charter says."""
    if room in _PURPOSES:
        return _PURPOSES[room]
    package = _SOURCES.get(room, f"src/headgate/{room.replace('.', '/')}")
    text = (ROOT / package / "__init__.py").read_text(encoding="utf-8")
    charter = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
    return " ".join(charter.split())


def table(house: Rooms) -> str:
    """Return the table of rooms, highest floor first."""
    level = floors(house)
    lines = ["| floor | room | what it is for | imports |", "|---|---|---|---|"]
    for name in sorted(house, key=lambda n: (-level[n], n)):
        others = " ".join(f"`{other}`" for other in sorted(house[name])) or "nothing of headgate"
        lines.append(f"| {level[name]} | `{name}` | {purpose(name)} | {others} |")
    return "\n".join(lines)


# -- the picture ----------------------------------------------------------------------------------

_BOX = (112, 30)
_FLOOR_PX = 62
_GAP_PX = 16
_THREAD_PX = 18
_EDGE_PX = 24
_COLOURS = {FRONT: "#d9ead3", DEMO: "#eeeeee", LABORATORY: "#eeeeee", DOOR: "#fff2cc"}
_OTHER = "#dce6f5"


@dataclass(frozen=True)
class _Place:
    """A box, or where an arrow passes a floor."""

    room: str
    floor: int
    thread: tuple[str, str] | None = None

    @property
    def width(self) -> int:
        return _THREAD_PX if self.thread else _BOX[0]


def picture(house: Rooms) -> str:
    """Return the rooms on their floors, and arrows to what they import, as SVG."""
    level = floors(house)
    ways = {
        (a, b): [
            _Place(a, level[a]),
            *(_Place("", f, (a, b)) for f in range(level[a] - 1, level[b], -1)),
            _Place(b, level[b]),
        ]
        for a, b in arrows(house)
    }
    rows = _ordered(house, level, list(ways.values()))
    width = max(sum(p.width + _GAP_PX for p in row) for row in rows) + 2 * _EDGE_PX
    height = len(rows) * _FLOOR_PX + _EDGE_PX
    middle = _middles(rows, width)

    def y(floor: int) -> int:
        return (len(rows) - 1 - floor) * _FLOOR_PX + _EDGE_PX

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" '
        'orient="auto"><path d="M0 0 L6 3 L0 6 z" fill="#888888"/></marker></defs>',
    ]
    for way in ways.values():
        parts.append(_curve([(middle[p], y(p.floor), bool(p.thread)) for p in way]))
    for row in rows:
        for place in row:
            if not place.thread:
                parts += _box(place.room, middle[place], y(place.floor))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _ordered(
    house: Rooms, level: Mapping[str, int], ways: list[list[_Place]]
) -> list[list[_Place]]:
    """Return the places of each floor from left to right, so that few arrows cross."""
    rows: list[list[_Place]] = [[] for _ in range(max(level.values()) + 1)]
    for name in house:
        rows[level[name]].append(_Place(name, level[name]))
    near: dict[_Place, list[_Place]] = {place: [] for row in rows for place in row}
    for way in ways:
        for place in way[1:-1]:
            rows[place.floor].append(place)
            near[place] = []
        for a, b in pairwise(way):
            near[a].append(b)
            near[b].append(a)
    for sweep in range(24):
        for floor in range(len(rows)) if sweep % 2 else reversed(range(len(rows))):
            middle = _middles(rows, 0)
            rows[floor].sort(
                key=lambda p: (
                    sum(middle[n] for n in near[p]) / len(near[p]) if near[p] else middle[p]
                )
            )
    return rows


def _middles(rows: list[list[_Place]], width: int) -> dict[_Place, float]:
    found: dict[_Place, float] = {}
    for row in rows:
        at = (width - sum(place.width + _GAP_PX for place in row)) / 2
        for place in row:
            found[place] = at + (place.width + _GAP_PX) / 2
            at += place.width + _GAP_PX
    return found


def _curve(points: list[tuple[float, int, bool]]) -> str:
    """Return an arrow from the foot of the first point's box to the top of the last one's."""
    text = f"M{points[0][0]:.0f} {points[0][1] + _BOX[1]}"
    for (x0, y0, _), (x1, y1, thread) in pairwise(points):
        leave, arrive = y0 + _BOX[1], y1
        bend = (leave + arrive) // 2
        text += f" C{x0:.0f} {bend} {x1:.0f} {bend} {x1:.0f} {arrive}"
        if thread:
            text += f" L{x1:.0f} {arrive + _BOX[1]}"
    return f'<path d="{text}" fill="none" stroke="#888888" marker-end="url(#tip)"/>'


def _box(room: str, middle: float, y: int) -> list[str]:
    colour = _COLOURS.get(room, _COLOURS[FRONT] if room.startswith("spark.") else _OTHER)
    return [
        f'<rect x="{middle - _BOX[0] / 2:.0f}" y="{y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="6" '
        f'fill="{colour}" stroke="#555555"/>',
        f'<text x="{middle:.0f}" y="{y + 19}" text-anchor="middle">{room}</text>',
    ]


def page(text: str, house: Rooms) -> str:
    """Return a page with what stands between the two marks written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(house)}\n{END}{after}"


def main() -> None:
    """Write the picture and the page."""
    house = rooms()
    PICTURE.write_text(picture(house), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), house), encoding="utf-8")


if __name__ == "__main__":
    main()
