"""An environment class of the user's own as a server."""
