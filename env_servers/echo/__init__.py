"""An environment that returns the action: the template of an environment, and the cheapest server for tests."""
