"""The user's own functions and classes: how a name in the configuration finds them, and what happens when they fail."""
