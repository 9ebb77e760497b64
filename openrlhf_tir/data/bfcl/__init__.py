"""BFCL v3's multi-turn tasks: their rows, the descriptions of their functions, and their prompts."""
