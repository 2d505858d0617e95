"""Each rule of DRRS's signals, broken once: some check of `signal_rules` must notice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from signal_rules import RULES

from headgate_lab.sim.dataflow.channel import ChannelBetween
from headgate_lab.sim.dataflow.coordinator import Step
from headgate_lab.sim.dataflow.elements import Element, Record, Signal, Watermark
from headgate_lab.sim.dataflow.handler import Handler, Verdict
from headgate_lab.sim.dataflow.methods.drrs import Drrs
from headgate_lab.sim.dataflow.methods.drrs_handler import (
    Arriving,
    DrrsHandler,
    Leaving,
    Order,
)
from headgate_lab.sim.dataflow.slot import Channel, Slot

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


def trigger_queues(patch: Patch) -> None:
    """The trigger waits its turn in both caches."""
    patch.setattr(ChannelBetween, "send_first", ChannelBetween.push)
    patch.setattr(DrrsHandler, "signal", _signal_in_turn)


def _signal_in_turn(self: DrrsHandler, channel: Channel, signal: Signal) -> None:
    if signal.kind == "opening":
        for unit in signal.step.units:
            if unit in self.arriving:
                self.arriving[unit].opened_s[channel.sender] = float("-inf")
                self._settle(unit)
    else:
        (self.trigger if signal.kind == "trigger" else self.confirm)(signal)


def every_trigger_starts(patch: Patch) -> None:
    def trigger(self: DrrsHandler, signal: Signal) -> None:
        self._leaving(signal.step).started = True
        self._log("started", signal)
        self._ask_to_leave(self._leaving(signal.step))

    patch.setattr(DrrsHandler, "trigger", trigger)


def confirm_has_priority_everywhere(patch: Patch) -> None:
    def overtake(self: Drrs, old: Channel, new: Channel, step: Step, confirm: Signal) -> None:
        self.redirect(old, new, step, [], list(old.waiting))
        old.send_first(confirm)

    patch.setattr(Drrs, "overtake", overtake)


def confirm_has_no_priority(patch: Patch) -> None:
    def overtake(self: Drrs, old: Channel, new: Channel, step: Step, confirm: Signal) -> None:
        self.redirect(old, new, step, list(old.waiting), [])
        old.push(confirm)

    patch.setattr(Drrs, "overtake", overtake)


def overtaken_records_stay(patch: Patch) -> None:
    def overtake(self: Drrs, old: Channel, new: Channel, step: Step, confirm: Signal) -> None:
        self.redirect(old, new, step, [confirm, *old.waiting], [])

    patch.setattr(Drrs, "overtake", overtake)


def overtaken_records_are_turned_around(patch: Patch) -> None:
    redirect = Drrs.redirect

    def reverse(
        self: Drrs,
        old: Channel,
        new: Channel,
        step: Step,
        before: Sequence[Element],
        overtaken: Sequence[Element],
    ) -> None:
        redirect(self, old, new, step, before, overtaken[::-1])

    patch.setattr(Drrs, "redirect", reverse)


def signals_before_the_table(patch: Patch) -> None:
    inject = Drrs.inject

    def late(self: Drrs, slot: Slot, step: Step, source: Slot, destination: Slot) -> None:
        assert slot.edge is not None
        before = list(slot.edge.table)
        inject(self, slot, step, source, destination)
        after = list(slot.edge.table)
        slot.edge.table[:] = before
        slot.clock.after(0.05, slot.edge.table.__setitem__, slice(None), after)

    patch.setattr(Drrs, "inject", late)


def late_records_are_dropped(patch: Patch) -> None:
    patch.setattr(DrrsHandler, "reroute", lambda self, channel, record: None)


def confirms_are_kept(patch: Patch) -> None:
    patch.setattr(DrrsHandler, "confirm", lambda self, signal: None)


def groups_that_wait_to_leave_are_not_served(patch: Patch) -> None:
    verdict = DrrsHandler.verdict

    def strict(self: DrrsHandler, channel: Channel, record: Record) -> Verdict:
        leaving = self.leaving.get(record.unit)
        if leaving is not None and leaving.started and record.unit not in self.arriving:
            return Verdict.REROUTE
        return verdict(self, channel, record)

    patch.setattr(DrrsHandler, "verdict", strict)


def rerouted_records_are_suspended_too(patch: Patch) -> None:
    take = DrrsHandler.take_special

    def held(self: DrrsHandler, unit: int) -> None:
        signals = {s for s, e in self.arriving[unit].queue if isinstance(e, Signal)}
        if signals >= self.arriving[unit].senders:
            take(self, unit)

    patch.setattr(DrrsHandler, "take_special", held)


def state_is_active_at_once(patch: Patch) -> None:
    def active(self: DrrsHandler, channel: Channel, arriving: Arriving) -> bool:
        return arriving.installed

    patch.setattr(DrrsHandler, "active", active)


def one_confirm_is_enough_for_all_channels(patch: Patch) -> None:
    def active(self: DrrsHandler, channel: Channel, arriving: Arriving) -> bool:
        return arriving.installed and bool(arriving.confirmed)

    patch.setattr(DrrsHandler, "active", active)


def channels_switch_together(patch: Patch) -> None:
    init = DrrsHandler.__init__

    def together(self: DrrsHandler, *arguments: object) -> None:
        init(self, *arguments[:-1], Order.ALL)  # type: ignore[arg-type]

    patch.setattr(DrrsHandler, "__init__", together)


def overtaken_watermarks_are_not_doubled(patch: Patch) -> None:
    push = ChannelBetween.push
    redirect = Drrs.redirect

    def without(
        self: Drrs,
        old: Channel,
        new: Channel,
        step: Step,
        before: Sequence[Element],
        overtaken: Sequence[Element],
    ) -> None:
        def records_only(channel: Channel, element: Element) -> None:
            if not isinstance(element, Watermark):
                push(channel, element)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ChannelBetween, "push", records_only)
            redirect(self, old, new, step, before, overtaken)

    patch.setattr(Drrs, "redirect", without)


def watermarks_reach_a_new_slot_too_early(patch: Patch) -> None:
    patch.setattr(DrrsHandler, "watermark_of", lambda self, unit: self.slot.watermark_s)


def old_watermarks_go_on_after_the_confirm(patch: Patch) -> None:
    watermark = DrrsHandler.watermark

    def unfrozen(self: DrrsHandler, channel: Channel, time_s: float) -> None:
        watermark(self, channel, time_s)
        for leaving in self.leaving.values():
            leaving.watermarks_s[channel.sender] = time_s

    patch.setattr(DrrsHandler, "watermark", unfrozen)


def records_cross_watermarks(patch: Patch) -> None:
    patch.setattr(Handler, "_holds_of", lambda self, channel: False)


def what_was_set_aside_is_overtaken(patch: Patch) -> None:
    step = Handler.step

    def last(self: Handler) -> bool:
        ready, self.ready = self.ready, deque()
        took = self._step_front()
        self.ready = ready + self.ready
        return took or step(self)

    patch.setattr(Handler, "step", last)


def the_reroute_buffer_never_fills(patch: Patch) -> None:
    hold_back = DrrsHandler.hold_back

    def no_count(
        self: DrrsHandler, leaving: Leaving, sender: Slot, element: Record | Watermark | Signal
    ) -> None:
        hold_back(self, leaving, sender, element)
        leaving.buffered_records = 0

    patch.setattr(DrrsHandler, "hold_back", no_count)


def a_confirm_does_not_flush(patch: Patch) -> None:
    def confirm(self: DrrsHandler, signal: Signal) -> None:
        leaving = self._leaving(signal.step)
        leaving.confirmed.add(signal.sender)
        self._log("confirmed", signal)
        self.hold_back(leaving, signal.sender, signal)

    patch.setattr(DrrsHandler, "confirm", confirm)


def idle_slots_count_as_suspended(patch: Patch) -> None:
    patch.setattr(Handler, "waits", lambda self: True)


MUTANTS: list[Mutant] = [
    trigger_queues,
    every_trigger_starts,
    confirm_has_priority_everywhere,
    confirm_has_no_priority,
    overtaken_records_stay,
    overtaken_records_are_turned_around,
    signals_before_the_table,
    late_records_are_dropped,
    confirms_are_kept,
    groups_that_wait_to_leave_are_not_served,
    rerouted_records_are_suspended_too,
    state_is_active_at_once,
    one_confirm_is_enough_for_all_channels,
    channels_switch_together,
    overtaken_watermarks_are_not_doubled,
    watermarks_reach_a_new_slot_too_early,
    old_watermarks_go_on_after_the_confirm,
    records_cross_watermarks,
    what_was_set_aside_is_overtaken,
    the_reroute_buffer_never_fills,
    a_confirm_does_not_flush,
    idle_slots_count_as_suspended,
]


def noticed() -> bool:
    """Return whether some rule is broken: an answer, the log, or an invariant of the code."""
    for rule in RULES:
        try:
            rule()
        except (AssertionError, IndexError, KeyError, ValueError):
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        assert noticed()


def test_what_is_not_broken_is_not_noticed() -> None:
    assert not noticed()
