"""Any registered environment of GEM, by the package gem-llm."""
