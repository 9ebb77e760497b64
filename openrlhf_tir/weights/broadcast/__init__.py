"""Broadcast of weights from learner rank 0 to the workers of all engines at once, over gloo or NCCL."""
