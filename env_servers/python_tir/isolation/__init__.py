"""Confine the code of a model: the levels of isolation, how each is built, and the proof when a server starts."""
