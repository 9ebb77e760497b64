"""Learner and engines on same GPUs (train.colocate_all): whose turn it is (turns.py), who takes which (sides.py)."""
