"""BFCL v3's multi-turn tasks, by the package bfcl-eval. Its own classes are the environment, its rule the reward."""
