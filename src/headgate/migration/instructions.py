"""The six instructions that an engine carries out; with them it has every strategy.

What an engine owes:

- An instruction may come twice, late, or not at all. Its `order` is unique; for each key group an
  engine ignores an order lower than the highest it has seen for that group, and answers a repeated
  one again without doing it twice.
- Holds and routes come into force at a boundary, where no slot serves. Each `Boundary` names those
  in force. The rest is done in between and answered group by group.
- What waits for a key group (its backlog, records and watermarks alike) stays in order.
- A slot serves a key group only if it owns it, the group is not held, and its state is active on
  the slot's host. Within a host state and waiting records are shared: a route moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """From the next boundary on nobody serves `groups`; their records wait.

    A hold ends with `Install(resume=True)` or `Release`.
    """

    order: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Route:
    """From the next boundary on `slot` owns `groups`, and their records go to it.

    The old slot stops at that boundary, and an install under way ends. On another host the state
    is inactive until `Install`, and what waits at the old slot stays there until `Forward`. DRRS:
    the confirm barrier.

    Parameters
    ----------
    deferred_max : int
        How many records `slot` may defer in memory to serve others meanwhile (see `Deferral`); 0:
        a slot with a group that is not ready serves nothing.
    """

    order: int
    groups: tuple[int, ...]
    slot: int
    deferred_max: int


@dataclass(frozen=True)
class Prefetch:
    """Bring the state of `groups` to `host` in the background, from the changelog.

    The owner serves on. Answer `CaughtUp` for a group when its lag is at most what one batch
    changes. DRRS: the trigger barrier.
    """

    order: int
    groups: tuple[int, ...]
    host: str


@dataclass(frozen=True)
class Forward:
    """Hand what waits for `groups` at slot `source` to slot `destination`, and answer `Forwarded`.

    In order, and ahead of what `destination` has received for them itself. DRRS: re-routed records.
    """

    order: int
    groups: tuple[int, ...]
    source: int
    destination: int


@dataclass(frozen=True)
class Install:
    """Bring the state of `groups` on `host` to the newest and make it active there.

    Answer `Installed` for each group.

    Parameters
    ----------
    resume : bool
        Whether the owner serves a group as soon as it is installed; else at `Release`.
    """

    order: int
    groups: tuple[int, ...]
    host: str
    resume: bool


@dataclass(frozen=True)
class Release:
    """End what the migration did for `groups`: holds, catch-up, copies their owner does not use.

    Answer `Released` for each group.
    """

    order: int
    groups: tuple[int, ...]


Instruction = Hold | Route | Prefetch | Forward | Install | Release
