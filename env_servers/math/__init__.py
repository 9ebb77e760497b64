"""Check answers to mathematics: it compares strings, does exact arithmetic and algebra, and has a deadline."""
