"""BFCL v3's multi-turn tasks, by the package bfcl-eval. Its classes are the environment, and its rule is the reward."""
