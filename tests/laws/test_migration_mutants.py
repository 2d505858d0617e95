"""Each safety rule of a migration is broken once, in its source; some law must notice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from headgate.core.assignment import Assignment, spread
from headgate.migration import progress, protocol
from headgate.migration.strategies import all_at_once, fluid, on_demand, subscale
from headgate_lab.testing import deferral, migration_model, migration_trial
from headgate_lab.testing.migration_model import WrongAnswer
from headgate_lab.testing.migration_trial import Case, Faults, run

SEEDS = 400


@dataclass(frozen=True)
class Mutant:
    """A rule, and how it is broken.

    Parameters
    ----------
    rule : str
    module : module
    old, new : str
        Text of its source, there exactly once, and what takes its place.
    """

    rule: str
    module: ModuleType
    old: str
    new: str


PROTOCOL = [
    Mutant(
        "records are forwarded before the state is installed",
        protocol,
        "return next((p for p in self._path(progress) if p > progress.phase), Phase.DONE)",
        "return next((p for p in self._path(progress) if p > progress.phase"
        " and p is not Phase.FORWARD), Phase.DONE)",
    ),
    Mutant(
        "an instruction waits for the answer of the one before",
        progress,
        "self.phase is Phase.PENDING or self.answered.issuperset(self.groups)",
        "self.phase is Phase.PENDING or self.phase is Phase.FORWARD"
        " or self.answered.issuperset(self.groups)",
    ),
    Mutant(
        "a route is in force before anything is forwarded",
        progress,
        "self.phase is Phase.PENDING or self.answered.issuperset(self.groups)",
        "self.phase in (Phase.PENDING, Phase.ROUTE) or self.answered.issuperset(self.groups)",
    ),
    Mutant(
        "nothing is released before it is installed",
        progress,
        "self.phase is Phase.PENDING or self.answered.issuperset(self.groups)",
        "self.phase in (Phase.PENDING, Phase.INSTALL) or self.answered.issuperset(self.groups)",
    ),
    Mutant(
        "every group answers, not just one",
        progress,
        "self.answered.issuperset(self.groups)",
        "not self.answered.isdisjoint(self.groups)",
    ),
    Mutant(
        "an answer counts only for the order that it answers",
        protocol,
        "next((p for p in self._unfinished() if p.order == order), None)",
        "next((p for p in self._unfinished() if p.order is not None and p.order >= order), None)",
    ),
    Mutant(
        "a boundary counts only for the order that is in force",
        protocol,
        "and progress.order in boundary.in_force:",
        "and boundary.in_force:",
    ),
    Mutant(
        "what is not answered is given again",
        protocol,
        "elif self._boundary - progress.sent >= PATIENCE_BOUNDARIES:",
        "elif False:",
    ),
    Mutant(
        "what failed is given again",
        protocol,
        "            if progress.order is None:\n                self._give(progress)\n            elif",
        "            if progress.order is None:\n                continue\n            elif",
    ),
    Mutant(
        "what fails too often goes back",
        protocol,
        "if progress.failures > RETRIES and not self.failed:",
        "if False:",
    ),
    Mutant(
        "a group that cannot be installed is sent elsewhere",
        protocol,
        "            elif progress.phase is Phase.INSTALL:\n                self._redirect(progress)",
        "            elif False:\n                self._redirect(progress)",
    ),
    Mutant(
        "a redirected group is installed even within a host",
        protocol,
        "            onward.across = True\n",
        "",
    ),
    Mutant(
        "what was started is released when it is dropped",
        protocol,
        "                self._enter(progress, Phase.RELEASE)\n",
        "                progress.phase = Phase.DONE\n",
    ),
    Mutant(
        "what is dropped stays with its source",
        protocol,
        "                progress.destination = progress.source\n",
        "",
    ),
    Mutant(
        "groups that were busy are planned when they are free",
        protocol,
        "            self.demanded.difference_update(progress.groups)\n"
        "            self._plan_what_is_missing()\n",
        "            self.demanded.difference_update(progress.groups)\n",
    ),
    Mutant(
        "a group is in one subscale only",
        protocol,
        "busy = {g for p in self._unfinished() for g in p.groups}",
        "busy: set[int] = set()",
    ),
    Mutant(
        "a route changes the owner",
        protocol,
        "                self.owners[group] = progress.destination\n",
        "                pass\n",
    ),
    Mutant(
        "the manifest carries what was answered",
        progress,
        '"answered": sorted(self.answered),',
        '"answered": list(self.groups),',
    ),
    Mutant(
        "the manifest carries the last order",
        protocol,
        '"orders": self._orders,',
        '"orders": 0,',
    ),
    Mutant(
        "a restart gives again what is not answered",
        protocol,
        "            if progress.order is not None and not progress.complete:\n"
        "                self._repeat(progress)",
        "            progress.order = -1 - progress.number",
    ),
]

SCHEDULING = [
    Mutant(
        "no record crosses a watermark",
        deferral,
        "return None if unready else queue.popleft()",
        "return queue.popleft()",
    ),
    Mutant(
        "the deferred of a group go before its later records",
        deferral,
        "            if entry.group not in unready:\n                del",
        "            if entry.group not in unready and not queue:\n                del",
    ),
    Mutant(
        "a group waits until it is ready",
        deferral,
        "            if group not in unready:\n                return queue.popleft()",
        "            if group is not None:\n                return queue.popleft()",
    ),
    Mutant(
        "fluid ends only when every group had its turn",
        fluid,
        "        return waiting[:1]",
        "        return ()",
    ),
    Mutant(
        "on-demand installs what nobody demands, too",
        on_demand,
        "        return () if installing else waiting[:1]",
        "        return ()",
    ),
    Mutant(
        "what all-at-once holds is released",
        all_at_once,
        "        return together(phase, waiting, situation)",
        "        return () if phase is Phase.RELEASE else together(phase, waiting, situation)",
    ),
    Mutant(
        "a started subscale goes on whatever the limit per host",
        subscale,
        "return [*free, *(fresh[index] for index in chosen)]",
        "return [*free[:0], *(fresh[index] for index in chosen)]",
    ),
]

ENGINE = [
    Mutant(
        "an engine ignores an order older than one it has seen",
        migration_model,
        "[g for g in instruction.groups if fence.get(g, -1) <= instruction.order]",
        "list(instruction.groups)",
    ),
    Mutant(
        "forwarded records go ahead of newer ones",
        migration_model,
        "state.queues[destination].extendleft(reversed(waiting))",
        "state.queues[destination].extend(waiting)",
    ),
    Mutant(
        "a group's watermarks move with its records",
        migration_model,
        "if entry.group is None and entry.record[1] >= state.since[group]:",
        "if False:",
    ),
    Mutant(
        "an install applies what came after the prefetch",
        migration_model,
        "                self._activate(place, transfer)",
        "                self.copies[place].version -= 1\n"
        "                self._activate(place, transfer)",
    ),
    Mutant(
        "a slot on another host waits for the state",
        migration_model,
        "        else:\n            state.active[group] = None\n",
        "        else:\n            state.active[group] = state.hosts[new]\n"
        "            self.copies.setdefault((state.hosts[new], group), Copy())\n",
    ),
    Mutant(
        "a route ends the installs of the owner before",
        migration_model,
        "        _drop(self.installs, lambda place: place[1] == group)\n"
        "        self._take_aside(group, old)",
        "        self._take_aside(group, old)",
    ),
    Mutant(
        "a hold that is in force is not served",
        migration_model,
        "return group not in state.held and state.active[group] == state.hosts[slot]",
        "return True",
    ),
]


def functions(names: Mapping[str, object], file: str) -> Iterator[tuple[str, FunctionType]]:
    """Yield every function of a module's source, methods and properties included."""
    for name, value in names.items():
        if isinstance(value, type):
            for method, function in functions(vars(value), file):
                yield f"{name}.{method}", function
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(inner, FunctionType) and inner.__code__.co_filename == file:
            yield name, inner


def install(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the functions of the module the code that they have with the rule broken.

    The functions themselves, and the classes, stay: whoever has imported them is broken too.
    """
    file = str(mutant.module.__file__)
    source = Path(file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1, f"the source of this rule has changed: {mutant.rule}"
    names: dict[str, object] = {"__name__": mutant.module.__name__}
    exec(compile(source.replace(mutant.old, mutant.new), file, "exec"), names)
    broken = dict(functions(names, file))
    for name, function in functions(vars(mutant.module), file):
        monkeypatch.setattr(function, "__code__", broken[name].__code__)


MUTANTS = [*PROTOCOL, *SCHEDULING, *ENGINE]


def redirections() -> Iterator[Case]:
    """Yield cases in which groups under way are sent on to another slot of the same host."""
    for step in range(6, 26):
        yield Case(
            seed=step,
            strategy="subscale(early_route=true)",
            old=spread(1, 6),
            hosts=("a", "b", "b"),
            requests={
                5: Assignment((1,) * 6, 2, 1),
                step: Assignment((2,) * 6, 3, 2),
            },
            sizes=(90,) * 6,
            faults=Faults(lost=0.3 * (step % 2), late=0.3 * (step % 2)),
            records_max=30,
        )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_broken_rule_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    install(mutant, monkeypatch)
    with pytest.raises(WrongAnswer):
        run_all([*redirections(), *map(migration_trial.case, range(SEEDS))])


def run_all(cases: Iterable[Case]) -> None:
    for case in cases:
        run(case)


def test_the_sound_rules_pass_the_cases_of_this_file() -> None:
    run_all(redirections())
