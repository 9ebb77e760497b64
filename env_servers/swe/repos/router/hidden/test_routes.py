import pytest

from router import MethodNotAllowed, NotFound, Router


def site():
    r = Router()
    r.add("GET", "/", "home")
    r.add("get", "/users/{id:int}", "user")
    r.add("POST", "/users/{id:int}", "change")
    r.add("GET", "/users/{name}", "by_name")
    r.add("GET", "/users/me", "me")
    r.add("GET", "/files/{path:rest}", "file")
    r.add("ANY", "/any/{x}/{y}", "any")
    return r


@pytest.mark.parametrize(("method", "path", "target", "parameters"), [
    ("GET", "/", "home", {}),
    ("GET", "", "home", {}),
    ("GET", "/users/7", "user", {"id": 7}),
    ("get", "/users/7/", "user", {"id": 7}),
    ("POST", "/users/8", "change", {"id": 8}),
    ("GET", "/users/ann", "by_name", {"name": "ann"}),
    ("GET", "/users/me", "me", {}),
    ("GET", "/users/a%20b", "by_name", {"name": "a b"}),
    ("GET", "/files/a/b/c", "file", {"path": "a/b/c"}),
    ("GET", "/files", "file", {"path": ""}),
    ("DELETE", "/any/1/2", "any", {"x": "1", "y": "2"}),
])
def test_matches(method, path, target, parameters):
    assert site().match(method, path) == (target, parameters)


@pytest.mark.parametrize("path", ["/nowhere", "/users", "/users/1/2", "/any/1", "/user/1"])
def test_paths_that_are_not_there(path):
    with pytest.raises(NotFound):
        site().match("GET", path)


def test_methods_that_are_not_allowed():
    with pytest.raises(MethodNotAllowed) as error:
        site().match("PUT", "/users/7")
    assert error.value.allowed == ["GET", "POST"]
    with pytest.raises(MethodNotAllowed):
        site().match("POST", "/users/ann")


@pytest.mark.parametrize("pattern", ["users", "/a/{x}/{x}", "/{p:rest}/a", "/{x:float}", "/{1x}", "/{}"])
def test_patterns_that_are_not(pattern):
    with pytest.raises(ValueError):
        Router().add("GET", pattern, "t")


def test_of_two_equal_ones_the_first_wins():
    r = Router()
    r.add("GET", "/{a}", "first")
    r.add("GET", "/{b}", "second")
    assert r.match("GET", "/x") == ("first", {"a": "x"})


def test_the_way_back():
    r = site()
    assert r.url_for("user", id=7) == "/users/7"
    assert r.url_for("file", path="a/b") == "/files/a/b"
    assert r.url_for("home") == "/"
    assert r.url_for("any", x=1, y=2) == "/any/1/2"
    for target, parameters in (("user", {}), ("nobody", {}), ("home", {"x": 1})):
        with pytest.raises(KeyError):
            r.url_for(target, **parameters)
