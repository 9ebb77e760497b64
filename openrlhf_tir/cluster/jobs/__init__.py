"""Jobs: what the commands that need a cluster do on a session of it."""
