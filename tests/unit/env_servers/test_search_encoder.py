"""A real small encoder, its weights made here: BERT in sentence-transformers' layout, loaded, pooled, searched with."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.errors import ConfigError
from tests.contract.tiny_encoder import WORDS, make_model

pytestmark = pytest.mark.slow  # torch and transformers are imported


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("bert"))


def hidden(model: Path, text: str) -> np.ndarray:
    """[T, D] of the transformer alone, one text without padding."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    with torch.inference_mode():
        batch = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt")
        return AutoModel.from_pretrained(model).eval()(**batch).last_hidden_state[0].numpy()


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_an_embedding_is_the_mean_over_the_tokens_and_padding_changes_nothing(model):
    from env_servers.search.encoder import Encoder

    texts = ["paris", "The capital of France is Paris", "a cat sleeps on the mat"]
    encoded = Encoder(str(model)).encode(texts)
    assert (encoded.shape, encoded.dtype) == ((3, 32), np.float32)
    for text, vector in zip(texts, encoded, strict=True):
        np.testing.assert_allclose(vector, unit(hidden(model, text.lower()).mean(0)), atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "by_hand"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda h: h[0]),
        ({"pooling_mode": "max"}, lambda h: h.max(0)),
        ({"pooling_mode": "lasttoken"}, lambda h: h[-1]),
    ],
    ids=["cls", "max", "last token"],
)
def test_cls_max_and_last_token_pooling(tmp_path, pooling, by_hand):
    from env_servers.search.encoder import Encoder

    model = make_model(tmp_path, pooling=pooling)
    encoded = Encoder(str(model)).encode(["paris is blue", "a dog runs on the red mat"])
    np.testing.assert_allclose(encoded[0], unit(by_hand(hidden(model, "paris is blue"))), atol=1e-5)


def test_a_long_text_is_cut_at_the_models_maximum_length(model):
    from env_servers.search.encoder import Encoder

    encoder = Encoder(str(model))
    np.testing.assert_allclose(encoder.encode(["cat " * 14])[0], encoder.encode(["cat " * 300])[0], atol=1e-5)


def test_concurrent_threads_get_their_own_embeddings(model):
    from env_servers.search.encoder import Encoder

    encoder, texts = Encoder(str(model)), [" ".join(WORDS[i : i + 1 + i % 5]) for i in range(16)]
    alone = [encoder.encode([text])[0] for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for one, together in zip(alone, pool.map(lambda text: encoder.encode([text])[0], texts), strict=True):
            np.testing.assert_allclose(one, together, atol=1e-6)


def test_dense_retrieval_finds_a_passage_by_its_own_text_and_stores_its_embeddings(model, tmp_path):
    from env_servers.search.dense import Dense

    corpus = tmp_path / "corpus.jsonl"
    contents = [f"{' '.join(WORDS[i : i + 3])}\n{' '.join(WORDS[i + 3 : i + 7])}" for i in range(10)]
    corpus.write_text("".join(json.dumps({"id": str(i), "contents": text}) + "\n" for i, text in enumerate(contents)))
    dense = Dense(corpus, tmp_path / "index", str(model))
    for i, text in enumerate(contents):
        best = dense.search(text, 3)
        assert (best[0].document["id"], round(best[0].score, 4)) == (str(i), 1.0)
        assert best[0].score > best[1].score >= best[2].score
    again = Dense(corpus, tmp_path / "index", str(model), lambda share: pytest.fail("embedded again"))
    assert [hit.document["id"] for hit in again.search(contents[4], 2)] == [
        hit.document["id"] for hit in dense.search(contents[4], 2)
    ]


def test_the_models_prompts_are_read(tmp_path):
    from env_servers.search.encoder import Encoder

    assert (
        Encoder(
            str(make_model(tmp_path, config_sentence_transformers={"prompts": {"query": "red ", "document": ""}}))
        ).prompts["query"]
        == "red "
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"modules": ("Transformer", "Pooling", "Dense")}, "'Dense'; "),
        ({"pooling": {"pooling_mode_weightedmean_tokens": True}}, " ['pooling_mode_weightedmean_tokens']; "),
        ({"pooling": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}}, " ['mean', 'cls']; "),
    ],
)
def test_a_model_with_unsupported_modules_or_pooling_is_refused(tmp_path, changes, says):
    from env_servers.search.encoder import Encoder

    with pytest.raises(ConfigError) as e:
        Encoder(str(make_model(tmp_path, **changes)))
    assert says in str(e.value)


def test_a_path_without_a_model_is_refused_with_the_remedy(tmp_path):
    from env_servers.search.encoder import Encoder

    with pytest.raises(ConfigError, match=f"--dense {tmp_path} "):
        Encoder(str(tmp_path))


def test_embeddings_are_those_of_sentence_transformers(model):
    library = pytest.importorskip("sentence_transformers")
    from env_servers.search.encoder import Encoder

    texts = ["The capital of France is Paris", "cat", "a dog runs " * 20]
    theirs = library.SentenceTransformer(str(model)).encode(texts, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_allclose(Encoder(str(model)).encode(texts), theirs, atol=1e-5)
