"""STRETCH's tuple buffer: sources add sorted streams, every reader gets one merged, ready order.

Belongs here: the port with the six methods of STRETCH's table 2, a reference in one process's heap,
the object in shared memory that unrelated processes use, and waiting for either. Does not belong
here: what a record means, who owns a key, and when slots change.
"""
