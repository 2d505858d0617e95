"""STRETCH's generalised stateful operator O+, record by record.

Belongs here: O+ as data, its plain reference, and the virtual shared-nothing protocol that runs several
instances over one state, step by step: the proof of what docs/papers.md claims of STRETCH 4 to 7. Does
not belong here: anything fast, anything of a host or an engine; kernels and shared memory follow what
stands here.
"""
