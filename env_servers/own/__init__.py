"""Serve an environment class of the user."""
