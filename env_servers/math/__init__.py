"""math: is this answer the right one? Checked by strings, exact arithmetic and computer algebra, under a deadline."""
