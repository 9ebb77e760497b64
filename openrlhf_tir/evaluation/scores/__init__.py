"""Scores: items -> figures. One formula per file, pure; a figure is a ratio of two sums over problems, so that one
bootstrap serves all."""
