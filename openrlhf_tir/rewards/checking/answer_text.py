"""Find the answer in what the model itself wrote, and check the format. Strings only, no mathematics.

Text of the environment, and python and output blocks that the model wrote, never hold an answer: a box that code prints
is no statement of the model.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...types import Trajectory

MAX_TRAILING = 5
"""Words and marks that may follow </answer>. The reference counts tokens of its tokenizer, which is not known here."""

END_MARKS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<eos>", "<pad>")
"""Texts of end-of-sequence and padding tokens, for tokenizers that do not leave them out."""
MAX_END_MARKS = 64

_FENCED = re.compile(r"```(?:python|output).*?```", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_WORD = re.compile(r"\w+|[^\w\s]")


class Answer(NamedTuple):
    """Whether a text has the format, and the content of its last box (None without the format)."""

    ok: bool
    text: str | None


def model_text(trajectory: Trajectory) -> str:
    """Return what the model wrote, in order."""
    return "".join(segment.text for segment in trajectory.segments if segment.source == "model")


def without_code(text: str) -> str:
    """Return a text without its python and output blocks."""
    return _FENCED.sub("", text)


def without_end_marks(text: str) -> str:
    """Return a text without END_MARKS at its end (at most MAX_END_MARKS), and without the white space around these."""
    for _ in range(MAX_END_MARKS):
        bare = text.rstrip()
        mark = next((end_mark for end_mark in END_MARKS if bare.endswith(end_mark)), None)
        if mark is None:
            break
        text = bare.removesuffix(mark)
    return text


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{...} whose braces close, at any depth. Escaped braces do not nest."""
    opened: list[int | None] = []  # for each open brace: where the content of its box starts, None for other braces
    start = -1
    end = -1
    for m in _BRACES.finditer(text):
        if m[0] == "}":
            box = opened.pop() if opened else None
            if box is not None and box > start:
                start = box
                end = m.start()
        elif m[0].endswith("{") and m[0] != "\\{":
            opened.append(m.end() if len(m[0]) > 1 else None)
    return text[start:end] if start >= 0 else None


def open_boxed(text: str) -> str | None:
    """Return what follows the last "boxed", as the official code of ZeroTIR and ReTool's evaluation read it.

    It is the content of its braces, or all that is left where they do not close; without a brace the text up to "$".
    None without a "boxed".
    """
    _, marker, tail = text.rpartition("boxed")
    if not marker:
        return None
    if not tail.startswith("{"):
        return tail.split("$")[0].strip()
    content = in_braces(tail)
    return tail[1:] if content is None else content


def in_braces(text: str) -> str | None:
    """Return the content of the braces with which a text begins; None if they do not close."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[1:position]
    return None


def count_words(text: str) -> int:
    """Return the number of words and marks."""
    return len(_WORD.findall(text))


def find_answer(text: str, format: str) -> Answer:
    r"""Find the answer in a model's text, in one of the formats of `config.Reward.format`.

    think_answer  exactly one </think>, then exactly one <answer>...\boxed{}...</answer>, at most MAX_TRAILING words
                  after it
    answer        the same without </think>
    boxed         the last \boxed{}, anywhere
    """
    text = without_code(text)
    if format == "boxed":
        boxed = last_boxed(text)
        return Answer(boxed is not None, boxed)
    if format == "think_answer":
        thought, tag, text = text.rpartition("</think>")
        if not tag or any(t in thought for t in ("</think>", "<answer>", "</answer>")):
            return Answer(False, None)
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return Answer(False, None)
    block = _ANSWER.search(text)
    boxed = last_boxed(block.group(1)) if block else None
    if block is None or boxed is None or count_words(text[block.end() :]) > MAX_TRAILING:
        return Answer(False, None)
    return Answer(True, boxed)
