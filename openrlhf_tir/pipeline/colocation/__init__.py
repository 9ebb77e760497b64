"""Learner and engines on the same GPUs (train.colocate_all): whose turn it is (turns.py), who takes it (sides.py)."""
