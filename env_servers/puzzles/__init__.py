"""Puzzles of reasoning-gym, and games of many turns. The environment's reward is the score."""
