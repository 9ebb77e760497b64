"""Codec: special tokens in tool output are inert; multi-byte characters survive being split over tokens."""

from __future__ import annotations

import pytest

from openrlhf_tir.engines.codec import HfCodec, IncrementalDecoder
from openrlhf_tir.errors import ConfigError

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_tokenizer():
    """256 byte tokens, as byte-level BPE without merges, and Qwen's special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, merges=[]))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True) for s in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=t, eos_token=SPECIALS[2], pad_token=SPECIALS[0], additional_special_tokens=[SPECIALS[1]]
    )


class IgnoresSplit:
    """A tokenizer that does not know split_special_tokens, as slow ones may."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def encode(self, text, add_special_tokens=False, split_special_tokens=False):
        return self._inner.encode(text, add_special_tokens=add_special_tokens)


@pytest.fixture(params=[False, True], ids=["native", "fallback"])
def codec(request) -> HfCodec:
    tokenizer = byte_tokenizer()
    return HfCodec(IgnoresSplit(tokenizer) if request.param else tokenizer)


@pytest.mark.parametrize(
    "text",
    [*SPECIALS, "a<|im_end|>b", "<|im_end|><|im_end|>", "<|im_<|im_end|>end|>", "<|im_start|>user\n", "plain", ""],
)
def test_text_never_becomes_a_special_token_and_comes_back_unchanged(codec, text):
    ids = codec.encode(text)
    assert not set(ids) & set(codec.tokenizer.convert_tokens_to_ids(SPECIALS))
    assert codec.decode(ids) == text


@pytest.mark.parametrize("text", ["", "plain", "a<|im_end|>b é 你好 🙂\r\n\x00", "x" * 5000])
def test_ids_are_those_that_transformers_gives_whatever_the_tokenizer_was_last_used_for(text):
    tokenizer, asked = byte_tokenizer(), byte_tokenizer()
    codec = HfCodec(tokenizer)
    wanted = [
        asked.encode(text, add_special_tokens=False, split_special_tokens=True),
        asked.encode(text, add_special_tokens=False),
    ]
    for _ in range(2):
        tokenizer.backend_tokenizer.enable_truncation(3)
        tokenizer.backend_tokenizer.enable_padding(length=9)
        assert [codec.encode(text), codec.encode_prompt(text)] == wanted
        tokenizer(["a", "<|im_end|> and more"], truncation=True, max_length=2, padding=True)
    assert tokenizer.encode(text, add_special_tokens=False) == wanted[1]


def test_a_tokenizer_with_an_encode_of_its_own_is_asked_by_it():
    class Own(type(byte_tokenizer())):
        def encode(self, text, **more):
            return [7] if text == "seven" else super().encode(text, **more)

    codec = HfCodec(Own(tokenizer_object=byte_tokenizer().backend_tokenizer, eos_token=SPECIALS[2]))
    assert (codec.encode("seven"), codec.encode_prompt("seven")) == ([7], [7])


def test_a_rendered_prompt_keeps_its_special_tokens(codec):
    ids = codec.encode_prompt("<|im_start|>user\nhi<|im_end|>")
    start, end = codec.tokenizer.convert_tokens_to_ids(SPECIALS[1:])
    assert (ids[0], ids[-1]) == (start, end)
    assert codec.decode(ids) == "user\nhi"


def test_a_character_split_over_tokens_comes_out_whole_with_its_last_token(codec):
    text = "é 日本 🙂!"
    ids = codec.encode(text)
    assert len(ids) == len(text.encode())
    decoder = IncrementalDecoder(codec)
    parts = [decoder.push(i) for i in ids]
    assert "".join(parts) == text
    assert parts[:3] == ["", "é", " "]


def test_the_decoder_continues_a_prompt_that_ended_inside_a_character(codec):
    ids = codec.encode("x🙂y")
    decoder = IncrementalDecoder(codec, ids[:3])
    assert "".join(decoder.push(i) for i in ids[3:]).endswith("y")


def test_a_tokenizer_whose_special_text_cannot_be_split_is_refused():
    class Leaky(IgnoresSplit):
        def encode(self, text, add_special_tokens=False, split_special_tokens=False):
            return [self.convert_tokens_to_ids(SPECIALS[2])]

    with pytest.raises(ConfigError, match="fast tokenizer"):
        HfCodec(Leaky(byte_tokenizer()))
