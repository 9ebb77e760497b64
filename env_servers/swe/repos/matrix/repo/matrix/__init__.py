"""Exact matrices."""

from .core import Matrix, identity
from .solve import determinant, inverse, rank, solve

__all__ = ["Matrix", "determinant", "identity", "inverse", "rank", "solve"]
