"""Search-R1: exact match as verl ported it."""

from __future__ import annotations

from collections.abc import Sequence

from openrlhf_tir.rewards.searchr1 import last_answer, score

MAX_TAGS = 10
"""verl's port divides the score of a response with more answer tags by 4."""


def verl_score(response: str, golds: str | Sequence[str]) -> float:
    """qa_em as verl ported it: the response alone, and many answers are worth a quarter."""
    many = max(response.count("<answer>"), response.count("</answer>")) > MAX_TAGS
    return score(last_answer(response), golds) / (4 if many else 1)
