import pytest

from router import build_query, normalize_path, parse_query, parse_url, quote, unquote


@pytest.mark.parametrize(("text", "quoted"), [("abc-._~", "abc-._~"), ("a b", "a%20b"), ("ä", "%C3%A4"), ("a/b", "a%2Fb"), ("100%", "100%25"), ("\n", "%0A")])
def test_quoting(text, quoted):
    assert quote(text) == quoted
    assert unquote(quoted) == text


def test_safe_letters():
    assert quote("a/b c", safe="/") == "a/b%20c"


@pytest.mark.parametrize(("text", "plain"), [("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("%41", "A"), ("a%20b%", "a b%"), ("1+1", "1+1"), ("%e4%41", "\ufffdA")])
def test_unquoting(text, plain):
    assert unquote(text) == plain


def test_plus_in_queries():
    assert unquote("1+1", plus=True) == "1 1"
    assert unquote("1%2B1", plus=True) == "1+1"


@pytest.mark.parametrize(("text", "values"), [("", {}), ("a", {"a": [""]}), ("a=", {"a": [""]}), ("a=1&&b=2", {"a": ["1"], "b": ["2"]}), ("a=b=c", {"a": ["b=c"]}), ("x+y=1%262", {"x y": ["1&2"]}), ("=1", {"": ["1"]})])
def test_queries(text, values):
    assert parse_query(text) == values


def test_building_queries():
    assert build_query({"a": 1, "b": ["x", "y z"], "c": None, "d": ""}) == "a=1&b=x&b=y%20z&d="
    assert build_query({}) == ""
    assert build_query({"a b": [None, "&"]}) == "a%20b=%26"


@pytest.mark.parametrize(("path", "plain"), [("", "/"), ("/", "/"), ("a", "/a"), ("/a//b/", "/a/b/"), ("/a/./b", "/a/b"), ("/a/../b", "/b"), ("/../a", "/a"), ("/a/b/..", "/a/"), ("/a/.", "/a/"), ("/..", "/"), ("/a/b/../../c", "/c")])
def test_paths(path, plain):
    assert normalize_path(path) == plain


@pytest.mark.parametrize(("text", "parts"), [
    ("http://Example.com", ("http", "example.com", 80, "/", {}, "")),
    ("HTTPS://a.b/c/../d?x=1#y%20z", ("https", "a.b", 443, "/d", {"x": ["1"]}, "y z")),
    ("ftp://h:21/f/", ("ftp", "h", 21, "/f/", {}, "")),
    ("ws://h", ("ws", "h", 0, "/", {}, "")),
    ("http://h:65535/?a#b?c", ("http", "h", 65535, "/", {"a": [""]}, "b?c")),
    ("http://h:1", ("http", "h", 1, "/", {}, "")),
])
def test_urls(text, parts):
    assert parse_url(text) == parts


@pytest.mark.parametrize("text", ["", "example.com", "://h", "http:///x", "http://h:x", "http://h:0", "http://h:65536", "http://h:", "1a://h", "http://:80"])
def test_what_is_no_url(text):
    with pytest.raises(ValueError):
        parse_url(text)
