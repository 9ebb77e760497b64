"""Reward: the recipe's, by its own functions, from text alone."""

from __future__ import annotations

from openrlhf_tir.rewards.checking import answer_check
from openrlhf_tir.rewards.checking.answer_text import find_answer


def correct(text: str, ended: bool, label: str) -> float:
    """1 for the right answer, in the required format, of a response that ends, else 0. `text`: what the model wrote."""
    ok, answer = find_answer(text, "answer")
    return float(ended and ok and answer is not None and answer_check.equal(answer, label))
