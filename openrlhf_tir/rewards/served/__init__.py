"""Rewards that another process gives: a reward model."""
