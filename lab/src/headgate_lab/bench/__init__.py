"""Benchmarks: headgate beside other engines, in one run, on the same rows.

Here belongs what makes input, starts an engine, checks its answer and puts the numbers side by
side. Nothing that a job needs, and no time without the machine that it was taken on.

Each benchmark is one module with ``run(**parameters) -> dict``; the dict is plain JSON. A wrong
answer raises `WrongAnswer` whatever the time was. Ratios are what counts: absolute times say more
about the machine and its neighbours.
"""
