"""Serve any registered environment of GEM, with the package gem-llm."""
