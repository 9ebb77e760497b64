"""A checker of answers to mathematics. It compares strings, does exact arithmetic and algebra, and has a deadline."""
