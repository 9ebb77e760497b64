"""Learner and engines on the same GPUs (train.colocate_all): who has them (time_share.py), who takes them
(time_shared.py)."""
