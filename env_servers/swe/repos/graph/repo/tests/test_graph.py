from graph import Graph, shortest_path, topological_order


def test_a_detour_that_is_shorter():
    g = Graph([("a", "c", 5), ("a", "b", 1), ("b", "c", 2)])
    assert shortest_path(g, "a", "c") == (3, ["a", "b", "c"])


def test_order():
    assert topological_order(Graph([("shirt", "tie"), ("tie", "jacket")])) == ["shirt", "tie", "jacket"]
