"""Gemma's tokenizer from the pieces of a GGUF."""

from __future__ import annotations

from miniatures.gguf_tokenizer import tokenizer_from_pieces


def test_pieces_are_merged_by_their_rank_and_runs_of_white_space_are_never_cut():
    """As a unigram model's log-probs, the same scores would cut "bcd" into bc and d."""
    pieces = [
        *(("<pad>", 0.0, 3), ("<eos>", 0.0, 3), ("<bos>", 0.0, 3), ("<unk>", 0.0, 3), ("<mask>", 0.0, 3)),
        *(("<turn>", 0.0, 3), ("<b>", 0.0, 4), ("\n", 0.0, 4), ("\n\n", 0.0, 4), ("  ", 0.0, 4), ("   ", 0.0, 4)),
        *(("cd", -0.0, 1), ("bc", -1.0, 1), ("\u2581b", -2.0, 1)),
        *(("\u2581", -3.0, 1), ("d", -4.0, 1), ("c", -5.0, 1), ("b", -30.0, 1)),
    ]
    texts, scores, types = (list(column) for column in zip(*pieces, strict=True))
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = tokenizer_from_pieces(texts, scores, types, named)
    for text, expected in {
        "bcd": ["b", "cd"],
        "bcb": ["bc", "b"],
        " b": ["\u2581b"],
        "   b": ["\u2581" * 3, "b"],
        "b\n\n\n<turn>d<b>": ["b", "\n\n", "\n", "<turn>", "d", "<b>"],
    }.items():
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.convert_ids_to_tokens(ids) == ["<bos>", *expected]
        assert tokenizer.decode(ids[1:]) == text
    assert tokenizer.decode(tokenizer("b<turn><b>")["input_ids"], skip_special_tokens=True) == "b<b>"
