"""Engines: what carries out decisions and reports what happened.

`spark` runs jobs on Structured Streaming, `sim` (a later release) on a virtual clock. Files that do the
same thing have the same name in both.
"""
