"""Defines the six instructions that an engine carries out; every strategy uses only these.

The duties of an engine:

- An instruction may come twice, late, or not at all. Its `order` is unique; for each key group an
  engine ignores an order lower than the highest it has seen for that group, and answers a repeated
  instruction again without carrying it out twice.
- Holds and routes come into force at a boundary, where no slot serves. Each `Boundary` names the orders
  in force. The engine carries out other instructions between boundaries, and answers them by group.
- The backlog of a key group, records and watermarks, keeps its sequence.
- A slot serves a key group only if the slot owns the group, the group is not held, and its state is
  active on the slot's host. The slots of a host share state and backlog, so a route there moves no data.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """Stops the service of `groups` from the next boundary on; their records wait.

    A hold ends with `Install(resume=True)` or `Release`.
    """

    order: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Route:
    """Gives `groups` and their records to `slot` from the next boundary on.

    The old slot stops serving them at that boundary, and an install under way ends. On another host the
    state is inactive until `Install`, and records that wait at the old slot stay there until `Forward`.
    DRRS: the confirm barrier.
    """

    order: int
    groups: tuple[int, ...]
    slot: int
    deferred_max: int
    """Records that `slot` may defer in memory to serve others meanwhile; 0: a slot with a group that
    is not ready serves no record."""


@dataclass(frozen=True)
class Prefetch:
    """Brings the state of `groups` to `host` in the background, from the changelog.

    The owner goes on to serve. Answer `CaughtUp` for a group when its lag is at most the changes of one
    batch. DRRS: the trigger barrier.
    """

    order: int
    groups: tuple[int, ...]
    host: str


@dataclass(frozen=True)
class Forward:
    """Moves the waiting records of `groups` from slot `source` to `destination`; answer `Forwarded`.

    The records keep their sequence, and come before the records that `destination` itself has received
    for these groups. DRRS: re-routed records.
    """

    order: int
    groups: tuple[int, ...]
    source: int
    destination: int


@dataclass(frozen=True)
class Install:
    """Brings the state of `groups` on `host` to the newest and makes the state active there.

    Answer `Installed` for each group.
    """

    order: int
    groups: tuple[int, ...]
    host: str
    resume: bool
    """Whether the owner serves a group as soon as it is installed; else only after `Release`."""


@dataclass(frozen=True)
class Release:
    """Ends the migration of `groups`: their holds, catch-up, and copies that the owner does not use.

    Answer `Released` for each group.
    """

    order: int
    groups: tuple[int, ...]


Instruction = Hold | Route | Prefetch | Forward | Install | Release
