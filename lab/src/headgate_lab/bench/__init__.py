"""Contains the benchmarks, which compare headgate with other engines in one run, on the same rows.

Belongs here: code that generates input, starts an engine, checks its answer and compares the numbers.
Does not belong here: anything that a job needs, and a time without a description of its machine.

Each benchmark is one module with ``run(**parameters) -> dict``; the dict is plain JSON. A wrong answer
raises `WrongAnswer`, whatever the time. Ratios count more than absolute times, which depend on the
machine and on its other load.
"""
