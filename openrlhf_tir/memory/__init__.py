"""What a run holds in memory, computed from its configuration and the model's config.json before anything is loaded."""
