"""Scores: items become figures. One formula per file, as pure functions.

Every figure is a ratio of two sums over problems, so that one bootstrap serves all of them.
"""
