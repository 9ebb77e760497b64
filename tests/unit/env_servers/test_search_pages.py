"""Documents by pages: what belongs to one, where it is cut, and how a model asks for it."""

from __future__ import annotations

import pytest

from env_servers.search.pages import MAX_PASSAGES, document_of, pages, parse_open
from env_servers.search.searches import Stopped


class Rows:
    """A retriever's passages, without a search."""

    def __init__(self, *contents: str) -> None:
        self.contents = contents

    def document(self, number):
        return {"contents": self.contents[number]}

    def __len__(self):
        return len(self.contents)


WIKI = Rows('"Faust"\none', '"Faust"\ntwo', '"Goethe"\nborn', '"Faust"\nan opera', "no text", "no text")


@pytest.mark.parametrize(
    ("number", "title", "text"),
    [
        (0, '"Faust"', "one\ntwo"),
        (1, '"Faust"', "one\ntwo"),
        (2, '"Goethe"', "born"),
        (3, '"Faust"', "an opera"),
        (4, "no text", "no text"),
    ],
)
def test_a_document_is_the_adjacent_passages_with_the_title_of_the_hit(number, title, text):
    assert document_of(WIKI, number) == (title, text)


def test_a_corpus_of_one_title_is_not_one_document():
    text = document_of(Rows(*(f"T\n{i}" for i in range(3000))), 1500)[1]
    assert len(text.split("\n")) == MAX_PASSAGES + 1
    assert "1500" in text.split("\n")


def test_reading_stops_when_the_client_left():
    with pytest.raises(Stopped):
        document_of(WIKI, 0, lambda: True)


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("", 5, [""]),
        ("abcde", 5, ["abcde"]),
        ("ab cd ef", 5, ["ab ", "cd ef"]),
        ("a bcdefghijk", 5, ["a bcd", "efghi", "jk"]),  # the only space is in the first half
        ("abcdefgh", 3, ["abc", "def", "gh"]),
    ],
)
def test_pages_end_between_words_and_join_to_the_whole_text(text, size, expected):
    assert pages(text, size) == expected
    assert "".join(pages(text, size)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", (2, 1)), (" 2 page 3 ", (2, 3)), ("Doc 2, page 3", (2, 3)), ("doc2 3", (2, 3)), ("2 PAGE 14", (2, 14)),
        ("two", None), ("", None), ("2 page", None), ("-1", None), ("2 3 4", None), ("https://a.b", None),
        ("9" * 50, None),
    ],
)  # fmt: skip
def test_an_open_action_is_parsed_or_refused(text, expected):
    assert parse_open(text) == expected
