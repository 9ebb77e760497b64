"""Rewards from another process: a reward model."""
