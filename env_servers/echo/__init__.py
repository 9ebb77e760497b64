"""Returns the action. The template of an environment, and the cheapest server for tests."""
