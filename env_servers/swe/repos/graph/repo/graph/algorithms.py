"""What is known about graphs. Ties are broken by the order of nodes."""

import heapq


class CycleError(ValueError):
    """A graph that goes round where it must not."""


def distances(graph, start):
    """Node -> length of the shortest way from `start`; nodes that cannot be reached are left out."""
    found = {}
    queue = [(0, start)]
    while queue:
        length, node = heapq.heappop(queue)
        if node in found:
            continue
        found[node] = length
        for target in graph.neighbours(node):
            if target not in found:
                heapq.heappush(queue, (length + graph.weight(node, target), target))
    return found


def shortest_path(graph, start, end):
    """(length, nodes on the way), or None."""
    best = {start: 0}
    before = {}
    done = set()
    queue = [(0, start)]
    while queue:
        length, node = heapq.heappop(queue)
        if node in done:
            continue
        done.add(node)
        if node == end:
            path = [end]
            while path[-1] != start:
                path.append(before[path[-1]])
            return length, path[::-1]
        for target in graph.neighbours(node):
            new = length + graph.weight(node, target)
            if target not in best or new < best[target]:
                best[target] = new
                before[target] = node
                heapq.heappush(queue, (new, target))
    return None


def components(graph):
    """Connected parts, without regard to direction: sorted lists of nodes, the largest first."""
    both = graph.undirected()
    seen, parts = set(), []
    for start in graph.nodes():
        if start in seen:
            continue
        part, todo = [], [start]
        seen.add(start)
        while todo:
            node = todo.pop()
            part.append(node)
            for target in both.neighbours(node):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        parts.append(sorted(part))
    return sorted(parts, key=lambda part: (-len(part), part))


def topological_order(graph):
    """Every node after those that lead to it, the smallest first where there is a choice. Raises CycleError."""
    waiting = {node: graph.in_degree(node) for node in graph.nodes()}
    ready = [node for node, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for target in graph.neighbours(node):
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, target)
    if len(order) < len(waiting):
        raise CycleError("the graph has a cycle")
    return order


def has_cycle(graph):
    try:
        topological_order(graph)
    except CycleError:
        return True
    return False


def spanning_tree(graph):
    """(total weight, edges) of a cheapest tree over an undirected reading of the graph; ValueError if it is in parts."""
    leader = {node: node for node in graph.nodes()}

    def find(node):
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    total, chosen = 0, []
    for weight, a, b in sorted((w, a, b) for a, b, w in graph.edges()):
        root_a, root_b = find(a), find(b)
        if root_a != root_b:
            leader[root_a] = root_b
            total += weight
            chosen.append((a, b))
    if len(chosen) < len(leader) - 1:
        raise ValueError("the graph is in parts")
    return total, chosen
