"""Carrying out a decision: from one assignment to another while records keep flowing.

Belongs here: plans (which key groups move together), the protocol (events in, instructions out),
the strategies, one file each. Does not belong here: why to move (control), doing it (engines carry
the instructions out), any I/O, state or journal.

An engine keeps one `protocol.Migration` per operator, gives it every event and carries out what it
answers. Its duties are written in `instructions` and `events`; `headgate_lab.testing.migration_model`
is an engine of 500 lines that has them all.
"""
