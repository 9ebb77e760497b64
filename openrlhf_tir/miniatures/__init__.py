"""Miniatures: small tasks on which a real language model from a package shows that the trainer teaches it."""
