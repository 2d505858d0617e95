"""Reproduces the figures of the STRETCH paper.

Figures 6 to 9 measure this machine: processes, a tuple buffer in shared memory, kernels. Figures 10 to
13 are controllers at the paper's scale, on the simulated join. Each result says under *mode* which.
"""
