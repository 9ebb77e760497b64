"""Checks before a run: each tells everything that is wrong before a model is loaded."""
