"""Reproduces the papers' figures, and replays a user's own trace, on the simulated engine.

Belongs here: one module per figure, each with what the paper shows, its parameters, `run` and
`draw`; running many simulations side by side; `simulate`. Does not belong here: how anything is
simulated (`engines.sim`) or decided (`control`). Results that a figure reports come out of runs,
never out of a constant; a paper's own number stands beside them under the key *paper*.

Marks of parameters: [P] stated in the paper, [R] read from the authors' public code, [I] chosen here
because nobody states it.
"""
