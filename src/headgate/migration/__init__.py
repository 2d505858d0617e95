"""Carries a decision out: changes the assignment while records keep flowing.

Belongs here: plans (plan: the key groups that move together), the protocol (protocol, events,
instructions, progress: events in, instructions out), the port of a strategy (strategy), and the
strategies, one file each (strategies). Does not belong here: the reason for a move (control), carrying
out instructions (an engine), any I/O, state or journal.

An engine keeps one `protocol.Migration` per operator, gives it every event and carries out the
instructions that it returns. `instructions` and `events` list the engine's duties;
`headgate_lab.testing.migration_model` is an engine of 500 lines that does all of them.
"""
