"""Graphs."""

from .algorithms import CycleError, components, distances, has_cycle, shortest_path, spanning_tree, topological_order
from .core import Graph

__all__ = ["CycleError", "Graph", "components", "distances", "has_cycle", "shortest_path", "spanning_tree", "topological_order"]
