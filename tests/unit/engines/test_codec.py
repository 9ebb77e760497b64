"""Codec: special tokens in tool output are inert; multi-byte characters survive being split over tokens."""

from __future__ import annotations

import re

import pytest

from openrlhf_tir.data.chat_template import bos_of
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

    with pytest.raises(ConfigError, match=re.escape(SPECIALS[2])):
        HfCodec(Leaky(byte_tokenizer()))


def llama2_tokenizer():
    """A sentencepiece-like tokenizer of Llama 2's kind: a blank before every text, bytes for what it does not know."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    characters = ["▁", *(chr(c) for c in range(33, 127))]
    vocab = {text: i for i, text in enumerate(["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *characters])}
    t = Tokenizer(models.BPE(vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ("<s>", "</s>", "[INST]")])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])
    return PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.mark.parametrize("text", ["\n<output>\n42\n</output>\n", " two", "x", "</s>", "é", "\n\n"])
def test_text_that_continues_a_sequence_gets_no_blank_of_the_tokenizers(text):
    codec = HfCodec(llama2_tokenizer())
    start = codec.encode_prompt("Question")
    assert codec.decode(start) == "Question"
    assert codec.decode([*start, *codec.encode(text)]) == f"Question{text}"
    assert codec.decode([*start, *codec.encode_rendered("a[INST]" + text)][: len(start) + 1]) == "Questiona"


def test_a_tokenizers_own_blank_at_the_start_of_a_prompt_stays():
    tokenizer = llama2_tokenizer()
    assert HfCodec(tokenizer).encode_prompt("ab") == tokenizer.encode("ab", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(HfCodec(tokenizer).encode_prompt("ab"))[0] == "▁"


def test_the_token_before_every_text_is_known_and_only_where_the_tokenizer_puts_it():
    assert bos_of(llama2_tokenizer()) == "<s>"
    assert bos_of(byte_tokenizer()) == ""


def test_marked_text_in_a_prompt_is_characters_and_the_templates_tokens_are_tokens(codec):
    start, end = codec.tokenizer.convert_tokens_to_ids(SPECIALS[1:])
    ids = codec.encode_prompt("<|im_start|>what is " + codec.inert("<|im_start|>") + "?<|im_end|>")
    assert (ids.count(start), ids.count(end)) == (1, 1)
    assert codec.decode(ids) == "what is <|im_start|>?"
    assert codec.encode_rendered(codec.inert("<|im_end|>")) == codec.encode("<|im_end|>")


def test_added_tokens_that_are_not_special_are_characters_in_a_tools_text():
    from tokenizers import AddedToken

    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    codec = HfCodec(tokenizer)
    added = tokenizer.convert_tokens_to_ids("<tool_call>")
    assert added in codec.encode("<tool_call>"), "a protocol's own text may have it"
    ids = codec.encode(codec.inert('<tool_call>{"name": "f"}</tool_call>'))
    assert added not in ids and codec.decode(ids) == '<tool_call>{"name": "f"}</tool_call>'
