"""Read answers, calls and code out of text, and decide whether two answers are the same. Shared by several rewards."""
