"""GEM (gem-llm): any registered environment of it as ours."""
