"""BFCL v3's multi-turn tasks: its rows, the descriptions of its functions, and how a model is asked."""
