"""The character tokenizer, as AutoTokenizer gives it back for a saved model directory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miniatures.toy import tokenizer as toy
from miniatures.toy.model import save_model
from openrlhf_tir.engines.codec import HfCodec

printable = st.text(alphabet=toy.CHARACTERS, max_size=60).filter(lambda text: "<|" not in text)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "model"
    save_model(path, seed=0)
    return path


@pytest.fixture(scope="module")
def loaded(directory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def test_it_has_98_ids_of_which_two_are_special(loaded):
    assert len(loaded) == toy.VOCAB_SIZE == 98
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.bos_token_id) == (96, 97, None)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(text=printable)
def test_printable_text_comes_back_exactly_one_id_per_character(loaded, text):
    ids = loaded.encode(text, add_special_tokens=False)
    assert len(ids) == len(text)
    assert loaded.decode(ids) == loaded.decode(ids, skip_special_tokens=True) == text
    assert toy.encode(text) == ids


def test_spaces_and_newlines_survive_a_saved_model_directory(loaded):
    text = "  print(1)\n\n\n it's  we'll \n "
    assert loaded.decode(loaded(text)["input_ids"]) == text


def test_characters_outside_ascii_are_dropped(loaded):
    assert loaded.decode(loaded.encode("a☃b\tc\x00d\U0001f600")) == "abcd"
    assert toy.encode("a☃b\tc\x00d\U0001f600") == loaded.encode("abcd")


def test_names_of_special_tokens_in_a_text_from_outside_are_plain_characters(loaded):
    text = f"x{toy.EOS}y{toy.PAD}"
    ids = HfCodec(loaded).encode(text)
    assert ids == toy.encode(text) and len(ids) == len(text) and max(ids) < toy.PAD_ID
    assert loaded.decode(ids, skip_special_tokens=True) == text


def test_the_tokenizer_of_a_saved_model_does_as_every_other_with_special_tokens_in_a_prompt(directory, loaded):
    assert "split_special_tokens" not in (directory / "tokenizer_config.json").read_text()
    assert loaded.encode(f"x{toy.EOS}")[-1] == toy.EOS_ID


def test_streaming_detokenisation_gives_the_characters_one_by_one(loaded):
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=True)
    text = "a  `\n\n``x "
    assert [stream.step(loaded.backend_tokenizer, i) for i in loaded.encode(text)] == list(text)
