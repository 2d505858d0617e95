"""Implements STRETCH's generalised stateful operator O+, record by record.

Belongs here: the definition of O+, its plain reference implementation, and the virtual shared-nothing
protocol, which runs several instances over one state, step by step; they prove what docs/papers.md
claims of STRETCH 4 to 7. Beside them, compiled kernels and processes that share memory do the same work
fast and are tested against the references. Does not belong here: anything of an engine.
"""
