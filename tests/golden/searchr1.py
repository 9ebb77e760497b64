"""Rows of searchr1.jsonl: exact match over prompt and response as the reference has it, structured, and verl's port."""

from __future__ import annotations

from openrlhf_tir.rewards import searchr1

from ._compare import mismatches


def check(row: dict, compat: bool) -> list[str] | None:
    text, response, golds = row["prompt"] + row["response"], row["response"], row["golden_answers"]
    answer, fault = searchr1.last_answer(text, at_least=2), searchr1.transcript_fault(text)
    right = searchr1.score(answer, golds) == 1.0

    def structured(retrieval: float) -> float:
        return searchr1.structured_score(
            answer, right, not fault, searchr1.is_retrieved(text, golds), 0.2, 0.1, retrieval
        )

    got = {
        "qa_em": searchr1.score(answer, golds),
        "qa_em_format_score_0.1": searchr1.score(answer, golds, format_score=0.1),
        "qa_subem": searchr1.score(answer, golds, substring=True),
        "qa_em_structured(0.2,0.1,0.1)": structured(0.1),
        "qa_em_structured(0.2,0.1,0)": structured(0.0),
        "valid_sequence": [not fault, fault or "Valid sequence format"],
        "verl_search_r1_like_response_only": searchr1.verl_score(response, golds),
        "verl_search_r1_like_subem_response_only": searchr1.score(
            searchr1.last_answer(response), golds, substring=True
        ),
    }
    return mismatches(got, row["expected"])
