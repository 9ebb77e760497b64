"""Python that the model writes, each call in a sandbox of its own. Forked from a warm interpreter, or fresh."""
