"""Attention of packed rows: on one rank, and on several that hold a slice of each."""
