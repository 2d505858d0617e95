"""Implements STRETCH's tuple buffer: it merges sorted streams into one order that all readers see.

Belongs here: the interface with the six methods of STRETCH's table 2, a reference in one process's heap,
the implementation in shared memory for unrelated processes, and waiting for either. Does not belong
here: the meaning of a record, the ownership of keys, and when slots change.
"""
