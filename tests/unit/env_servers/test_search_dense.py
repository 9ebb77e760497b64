"""Dense retrieval with embeddings made by hand: what is embedded, and when again, in which order passages come."""

from __future__ import annotations

import json

import numpy as np
import pytest

from env_servers.search import dense
from env_servers.search.dense import Dense
from openrlhf_tir.errors import ConfigError, DataError

COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "purple": (0.8, 0, 0.6)}


class Encoder:
    """Embeds a text as the colour that is its last word, and keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.prompts: dict[str, str] = {}

    def encode(self, texts):
        self.seen += texts
        return np.array([COLOURS[text.split()[-1]] for text in texts], np.float32)


@pytest.fixture
def encoder(monkeypatch):
    encoder = Encoder()
    monkeypatch.setattr(dense, "_load", lambda model: encoder)
    return encoder


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": str(i), "contents": f'"{c}"\nit is {c}'}) + "\n"
            for i, c in enumerate(["red", "green", "blue"])
        )
    )
    return path


def test_passages_are_ordered_by_their_inner_product_with_the_query(corpus, tmp_path, encoder):
    results = Dense(corpus, tmp_path / "index", "some/model").search("which is purple", 2)
    assert [(hit.document["id"], round(hit.score, 6)) for hit in results] == [("0", 0.8), ("2", 0.6)]


def test_equal_scores_keep_the_order_of_the_corpus_and_k_may_exceed_its_size(corpus, tmp_path, encoder):
    assert [hit.document["id"] for hit in Dense(corpus, tmp_path / "index", "m").search("red", 9)] == ["0", "1", "2"]


def test_only_an_e5_model_gets_query_and_passage_prefixes(corpus, tmp_path, encoder):
    Dense(corpus, tmp_path / "e5", "intfloat/e5-base-v2").search("red", 1)
    assert encoder.seen == [
        'passage: "red"\nit is red',
        'passage: "green"\nit is green',
        'passage: "blue"\nit is blue',
        "query: red",
    ]
    encoder.seen.clear()
    Dense(corpus, tmp_path / "other", "other").search("red", 1)
    assert encoder.seen[-1] == "red"


def test_a_models_own_prompts_precede_queries_and_passages(corpus, tmp_path, encoder):
    encoder.prompts = {"query": "Q: ", "document": "D: "}
    Dense(corpus, tmp_path / "index", "m").search("red", 1)
    assert (encoder.seen[0], encoder.seen[-1]) == ('D: "red"\nit is red', "Q: red")


def test_embeddings_are_kept_until_the_corpus_or_the_model_changes(corpus, tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(dense, "BATCH", 2)
    assert len(Dense(corpus, tmp_path / "index", "m")) == 3
    assert len(encoder.seen) == 3
    Dense(corpus, tmp_path / "index", "m")
    assert len(encoder.seen) == 3
    Dense(corpus, tmp_path / "index", "n")
    assert len(encoder.seen) == 6
    with corpus.open("a") as f:
        f.write('{"contents": "late\\nit is purple"}\n')
    assert Dense(corpus, tmp_path / "index", "n").search("purple", 1)[0].document["contents"] == "late\nit is purple"
    assert len(encoder.seen) == 6 + 4 + 1


def test_a_missing_corpus_and_an_index_that_cannot_be_written_are_told_in_one_line(corpus, tmp_path, encoder):
    with pytest.raises(DataError, match="none"):
        Dense(tmp_path / "none.jsonl", tmp_path / "index", "some/model")
    with pytest.raises(ConfigError, match="--index"):
        Dense(corpus, corpus / "index", "some/model")
