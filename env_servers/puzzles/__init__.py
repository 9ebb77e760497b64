"""Puzzles: the data sets of reasoning-gym by name, and games of many turns; the environment's reward is the score."""
