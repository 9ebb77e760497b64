"""Learner and engines on the same GPUs (train.colocate_all): whose turn it is (turns.py), and who takes which
(sides.py)."""
