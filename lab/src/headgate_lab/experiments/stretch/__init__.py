"""Reproduces the figures of the STRETCH paper.

Figures 6 to 9 are measured on this machine: processes, a tuple buffer in shared memory, kernels. Figures
10 to 13 run controllers at the paper's scale on the simulated join. A result's *mode* says which it is.
"""
