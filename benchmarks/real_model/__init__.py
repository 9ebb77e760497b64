"""The real model's benchmark: the quickstart of SmolLM2 end to end, for several seeds, with the tool and without."""
