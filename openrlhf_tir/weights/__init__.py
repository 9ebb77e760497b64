"""How new weights reach the engines (files, deltas, broadcasts), and how each engine is proved to compute with them."""
