import pytest

from wrap import dedent, fill, indent, justify, shorten, wrap


@pytest.mark.parametrize(("text", "width", "lines"), [
    ("", 5, []),
    ("   ", 5, []),
    ("a", 5, ["a"]),
    ("a b c d", 3, ["a b", "c d"]),
    ("aaaa bb", 4, ["aaaa", "bb"]),
    ("aa bb", 5, ["aa bb"]),
    ("aa bbb", 5, ["aa", "bbb"]),
    ("abcdefgh", 3, ["abc", "def", "gh"]),
    ("abcdef", 3, ["abc", "def"]),
    ("a abcdef b", 3, ["a", "abc", "def", "b"]),
    ("x abcd y", 3, ["x", "abc", "d y"]),
    ("a  b\n c", 10, ["a b c"]),
])
def test_wrapping(text, width, lines):
    assert wrap(text, width) == lines


def test_prefixes():
    assert wrap("aa bb cc dd", 7, "* ", "  ") == ["* aa bb", "  cc dd"]
    assert wrap("aa bb", 5, "> ") == ["> aa", "bb"]
    for width in (1, 2):
        with pytest.raises(ValueError):
            wrap("a", width, "* ")
    with pytest.raises(ValueError):
        wrap("a", 0)


def test_paragraphs():
    assert fill("aa bb cc\n\n\n\ndd\nee", 5) == "aa bb\ncc\n\ndd ee"
    assert fill("", 5) == ""


@pytest.mark.parametrize(("line", "width", "text"), [("a b c", 7, "a  b  c"), ("a b c", 8, "a   b  c"), ("a b", 3, "a b"), (" word ", 10, "word"), ("", 4, ""), ("aa b c d", 10, "aa  b  c d")])
def test_justified(line, width, text):
    assert justify(line, width) == text


def test_a_line_that_does_not_fit():
    with pytest.raises(ValueError):
        justify("aa bb", 4)


def test_indent():
    assert indent("a\n\nb", "> ") == "> a\n\n> b"
    assert indent("a\n\nb", "> ", skip_empty=False) == "> a\n> \n> b"


def test_dedent():
    assert dedent("    a\n      b\n\n    c") == "a\n  b\n\nc"
    assert dedent("a\n  b") == "a\n  b"
    assert dedent("  a\n \n  b") == "a\n\nb"
    assert dedent("") == ""


@pytest.mark.parametrize(("text", "width", "short"), [("a b", 3, "a b"), ("a  b", 3, "a b"), ("hello big world", 11, "hello..."), ("hello big world", 12, "hello big..."), ("hello big world", 14, "hello big..."), ("hello big world", 15, "hello big world"), ("abcdefghij", 5, "..."), ("abcdef", 2, ".."), ("hello world", 8, "hello..."), ("hello world", 7, "...")])
def test_shortened(text, width, short):
    assert shorten(text, width) == short


def test_another_mark():
    assert shorten("hello world", 7, "~") == "hello~"
