"""STRETCH's generalised stateful operator O+, record by record.

Belongs here: O+ as data, its plain reference, the virtual shared-nothing protocol that runs several
instances over one state, and the oracles all of them are compared with. Does not belong here:
anything fast, anything of a host or an engine; kernels and shared memory follow what stands here.
"""
