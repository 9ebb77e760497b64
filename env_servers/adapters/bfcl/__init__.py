"""BFCL v3's multi-turn tasks (bfcl-eval): the package's own classes as an environment, and its rule as the reward."""
