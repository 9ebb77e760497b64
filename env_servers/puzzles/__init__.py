"""Puzzles: the data sets of reasoning-gym by name, and text games of many turns; the environment's own reward is the
score."""
