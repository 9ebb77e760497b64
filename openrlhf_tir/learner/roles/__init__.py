"""The models beside the policy on the learner's ranks: its reference and its critic. beside.py puts them together."""
