"""The optimizer steps of a batch: early accumulation of its parts (early.py), metrics over its updates (metrics.py),
and a description of what was not finite in a skipped one (not_finite.py).
"""
