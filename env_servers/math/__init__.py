"""A checker of answers to mathematics. By strings, exact arithmetic and computer algebra, under a deadline."""
