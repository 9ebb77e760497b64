import pytest

from graph import CycleError, Graph, components, distances, has_cycle, shortest_path, spanning_tree, topological_order

ROADS = Graph([("a", "b", 4), ("a", "c", 1), ("c", "b", 2), ("b", "d", 5), ("c", "d", 9), ("x", "a", 1)])


def test_distances():
    assert distances(ROADS, "a") == {"a": 0, "c": 1, "b": 3, "d": 8}
    assert distances(ROADS, "d") == {"d": 0}


def test_shortest_paths():
    assert shortest_path(ROADS, "a", "d") == (8, ["a", "c", "b", "d"])
    assert shortest_path(ROADS, "a", "a") == (0, ["a"])
    assert shortest_path(ROADS, "x", "b") == (4, ["x", "a", "c", "b"])
    assert shortest_path(ROADS, "a", "x") is None


def test_of_two_equal_ways_the_first_stays():
    g = Graph([("s", "a", 1), ("s", "b", 1), ("a", "t", 1), ("b", "t", 1)])
    assert shortest_path(g, "s", "t") == (2, ["s", "a", "t"])


def test_components():
    g = Graph([("a", "b"), ("d", "c"), ("c", "e"), ("z", "y")])
    g.add_node("q")
    assert components(g) == [["c", "d", "e"], ["a", "b"], ["y", "z"], ["q"]]
    assert components(Graph()) == []


def test_topological_order():
    g = Graph([("b", "d"), ("a", "d"), ("d", "e"), ("c", "e")])
    assert topological_order(g) == ["a", "b", "c", "d", "e"]
    assert topological_order(Graph([("z", "a"), ("y", "a")])) == ["y", "z", "a"]


def test_cycles():
    ring = Graph([("a", "b"), ("b", "c"), ("c", "a"), ("x", "a")])
    with pytest.raises(CycleError):
        topological_order(ring)
    assert has_cycle(ring) is True
    assert has_cycle(ROADS) is False
    assert has_cycle(Graph([("a", "a")])) is True


def test_a_cheapest_tree():
    assert spanning_tree(ROADS) == (9, [("a", "c"), ("x", "a"), ("c", "b"), ("b", "d")])
    assert spanning_tree(Graph([("a", "b", 2), ("b", "c", 2), ("a", "c", 2)])) == (4, [("a", "b"), ("a", "c")])
    with pytest.raises(ValueError):
        spanning_tree(Graph([("a", "b"), ("c", "d")]))
    single = Graph()
    single.add_node("a")
    assert spanning_tree(single) == (0, [])
