"""Serve a Python sandbox. Each call of the model runs in its own process: a new one, or a fork of a warm
interpreter."""
