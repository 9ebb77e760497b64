from router import Router, parse_query


def test_a_parameter():
    router = Router()
    router.add("GET", "/users/{id:int}", "user")
    assert router.match("GET", "/users/7") == ("user", {"id": 7})


def test_a_query():
    assert parse_query("a=1&b=2&a=3") == {"a": ["1", "3"], "b": ["2"]}
