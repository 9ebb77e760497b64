"""A directed graph with weights."""


class Graph:
    def __init__(self, edges=()):
        """`edges`: (from, to) or (from, to, weight)."""
        self._out = {}
        for edge in edges:
            self.add_edge(*edge)

    def add_node(self, node):
        self._out.setdefault(node, {})

    def add_edge(self, a, b, weight=1):
        if weight < 0:
            raise ValueError("weights are not negative")
        self.add_node(a)
        self.add_node(b)
        self._out[a][b] = weight

    def remove_edge(self, a, b):
        """Raises KeyError for one that is not there."""
        del self._out[a][b]

    def remove_node(self, node):
        del self._out[node]
        for targets in self._out.values():
            targets.pop(node, None)

    def nodes(self):
        return sorted(self._out)

    def edges(self):
        return sorted((a, b, w) for a, targets in self._out.items() for b, w in targets.items())

    def neighbours(self, node):
        return sorted(self._out[node])

    def weight(self, a, b):
        return self._out[a][b]

    def has_edge(self, a, b):
        return b in self._out.get(a, {})

    def out_degree(self, node):
        return len(self._out[node])

    def in_degree(self, node):
        return sum(node in targets for targets in self._out.values())

    def reverse(self):
        result = Graph()
        for node in self._out:
            result.add_node(node)
        for a, b, weight in self.edges():
            result.add_edge(b, a, weight)
        return result

    def undirected(self):
        """Each edge both ways; of two with different weights the smaller one."""
        result = Graph()
        for node in self._out:
            result.add_node(node)
        for a, b, weight in self.edges():
            if result.has_edge(a, b):
                weight = min(weight, result.weight(a, b))
            result.add_edge(a, b, weight)
            result.add_edge(b, a, weight)
        return result
