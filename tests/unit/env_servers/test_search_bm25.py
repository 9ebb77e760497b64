"""The BM25 index by hand and against bm25s's own; top-k; a corpus whose lines are wrong; the index's cache."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_servers.search import bm25_build
from env_servers.search.bm25 import BLOCK, Bm25, ensure_index, top
from env_servers.search.env import format_passages
from env_servers.search.words import STOP_WORDS, split
from openrlhf_tir.errors import ConfigError, DataError

TEXTS = [
    "The Cat\nA cat is a small animal.",
    "Dogs\nThe dog chased the cat, and the cat ran.",
    "Paris\nParis is the capital of France since 987.",
    "Ünïcode\nStraße 7 und café",
    "!!!",
]


def write(path, texts):
    path.write_text("".join(json.dumps({"id": str(i), "contents": t}) + "\n" for i, t in enumerate(texts)))
    return path


@pytest.fixture
def retriever(tmp_path):
    corpus = write(tmp_path / "c.jsonl", TEXTS)
    ensure_index(corpus, tmp_path / "index")
    return Bm25(corpus, tmp_path / "index")


def ids(hits):
    return [int(h.document["id"]) for h in hits]


def test_the_best_passages_come_first_and_unknown_words_find_nothing(retriever):
    assert len(retriever) == 5
    assert ids(retriever.search("cat", 3)) == [0, 1]
    assert ids(retriever.search("Which is the CAPITAL of France?", 3)) == [2]
    assert ids(retriever.search("café straße", 3)) == [3]
    assert retriever.search("zebra", 3) == retriever.search("the of", 3) == retriever.search("", 3) == []


def test_a_score_computed_by_hand(tmp_path):
    # N = 2, "sun" in one of them: idf = log(1 + 1.5 / 1.5) = log 2; twice in 2 words where the mean is 2: 2 / (0.9 + 2)
    corpus = write(tmp_path / "c.jsonl", ["sun sun", "moon light"])
    ensure_index(corpus, tmp_path / "i")
    (hit,) = Bm25(corpus, tmp_path / "i").search("sun", 3)
    assert hit.score == pytest.approx(np.log(2) * 2 / 2.9, rel=1e-6)


@pytest.mark.parametrize("chunk_words", [1, 7, 10**6])
def test_the_index_is_that_of_bm25s_for_any_chunk_size(tmp_path, monkeypatch, chunk_words):
    import bm25s

    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in rng.zipf(1.5, rng.integers(1, 30)) % 50) for _ in range(60)]
    monkeypatch.setattr(bm25_build, "CHUNK_WORDS", chunk_words)
    corpus = write(tmp_path / "c.jsonl", texts)
    ensure_index(corpus, tmp_path / "i")
    ours = bm25s.BM25.load(tmp_path / "i", show_progress=False)
    theirs = bm25s.BM25(k1=bm25_build.K1, b=bm25_build.B, method="lucene")
    theirs.index([[w for w in split(t) if w not in STOP_WORDS] for t in texts], show_progress=False)
    for word in ours.vocab_dict:
        np.testing.assert_allclose(ours.get_scores([word]), theirs.get_scores([word]), rtol=1e-5, atol=1e-7)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 3))
def test_top_is_a_full_sort_of_the_positive_scores(values, k, blocks):
    scores = np.zeros(blocks * BLOCK + len(values), np.float32)
    scores[-len(values) :] = values
    scores[0] = 3
    expected = [i for i in np.lexsort((np.arange(len(scores)), -scores)) if scores[i] > 0][:k]
    assert top(scores, k).tolist() == expected


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"contents": "a"', "c.jsonl:2: .*JSON"),
        ("[1]", "c.jsonl:2: list "),
        ('{"text": "a"}', 'c.jsonl:2: .*"contents", .*: text\\.'),
        ('{"contents": 3}', 'c.jsonl:2: "contents" .* 3, '),
        ('{"contents": " "}', "c.jsonl:2: \"contents\" .*' ', "),
        ('{"contents": "a", "title": "\\ud800"}', "c.jsonl:2: .*JSON \\('utf-8' codec can't encode"),
        ('{"contents": "a", "title": "\ud800"}', "c.jsonl:2: .*JSON \\('utf-8' codec can't encode"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, line, says):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(f'{{"contents": "good"}}\n{line}\n', errors="surrogatepass")
    with pytest.raises(DataError, match=says):
        ensure_index(corpus, tmp_path / "i")
    assert [p.name for p in tmp_path.iterdir()] == ["c.jsonl"]


def test_blank_lines_do_not_count_and_a_last_line_may_lack_its_newline(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('\n{"contents": "one", "id": "0"}\n\n{"contents": "two", "id": "1"}')
    ensure_index(corpus, tmp_path / "i")
    assert ids(Bm25(corpus, tmp_path / "i").search("two one", 5)) == [0, 1]


def test_an_index_is_kept_until_the_corpus_changes(tmp_path):
    corpus = write(tmp_path / "c.jsonl", ["one"])
    assert ensure_index(corpus, tmp_path / "i") is True
    assert ensure_index(corpus, tmp_path / "i") is False
    write(corpus, ["one", "two"])
    os.utime(corpus, ns=(1, 1))
    assert ensure_index(corpus, tmp_path / "i") is True
    assert ids(Bm25(corpus, tmp_path / "i").search("two", 1)) == [1]


def test_a_directory_with_other_files_is_not_overwritten(tmp_path):
    corpus, mine = write(tmp_path / "c.jsonl", ["one"]), tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"/mine .*--index"):
        ensure_index(corpus, mine)
    assert (mine / "thesis.txt").read_text() == "precious"


def test_passages_without_a_body_have_a_title_only():
    assert format_passages([{"contents": "T\na\nb"}, {"contents": "U"}]) == "Doc 1(Title: T) a\nb\nDoc 2(Title: U) \n"
