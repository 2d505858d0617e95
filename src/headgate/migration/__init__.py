"""Carrying out a decision: from one assignment to another while records keep flowing.

Belongs here: plans (ordered steps), the protocol (events in, instructions out), the strategies,
one file each. Does not belong here: why to move (control), doing it (engines carry the
instructions out), any I/O, state or journal.
"""
