"""Joining two windows of records without an equality: every pair compared, or by a band index.

Belongs here: pure functions on arrays. Does not belong here: which records a window holds, who stores
them, and in which order windows move.
"""
