"""Python that the model writes, each call in a sandbox of its own: a new process, or a fork of a warm interpreter."""
