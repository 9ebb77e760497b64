import pytest

from graph import Graph


def small():
    return Graph([("a", "b", 3), ("b", "c"), ("a", "c", 7)])


def test_nodes_and_edges():
    g = small()
    g.add_node("z")
    assert g.nodes() == ["a", "b", "c", "z"]
    assert g.edges() == [("a", "b", 3), ("a", "c", 7), ("b", "c", 1)]
    assert g.neighbours("a") == ["b", "c"]
    assert g.weight("b", "c") == 1


def test_adding_a_node_again_keeps_its_edges():
    g = small()
    g.add_node("a")
    assert g.neighbours("a") == ["b", "c"]


def test_degrees():
    g = small()
    assert [g.out_degree(n) for n in "abc"] == [2, 1, 0]
    assert [g.in_degree(n) for n in "abc"] == [0, 1, 2]


def test_has_edge():
    g = small()
    assert g.has_edge("a", "b") is True
    assert g.has_edge("b", "a") is False
    assert g.has_edge("x", "a") is False


def test_removing():
    g = small()
    g.remove_edge("a", "b")
    assert g.has_edge("a", "b") is False
    with pytest.raises(KeyError):
        g.remove_edge("a", "b")
    g = small()
    g.remove_node("c")
    assert g.nodes() == ["a", "b"]
    assert g.edges() == [("a", "b", 3)]


def test_weights():
    with pytest.raises(ValueError):
        Graph([("a", "b", -1)])
    assert Graph([("a", "b", 0)]).weight("a", "b") == 0


def test_reverse():
    g = small()
    g.add_node("z")
    assert g.reverse().edges() == [("b", "a", 3), ("c", "a", 7), ("c", "b", 1)]
    assert g.reverse().nodes() == ["a", "b", "c", "z"]


def test_undirected_takes_the_smaller_weight():
    g = Graph([("a", "b", 3), ("b", "a", 2), ("b", "c", 4)])
    g.add_node("z")
    assert g.undirected().edges() == [("a", "b", 2), ("b", "a", 2), ("b", "c", 4), ("c", "b", 4)]
    assert g.undirected().nodes() == ["a", "b", "c", "z"]
    assert Graph([("a", "b", 2), ("b", "a", 3)]).undirected().edges() == [("a", "b", 2), ("b", "a", 2)]
