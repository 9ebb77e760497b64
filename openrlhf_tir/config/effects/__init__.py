"""Flags that have no effect: the rows that say when, and what looks through them."""
