"""Rows of zerotir.jsonl: format, text metrics, answer check, composite reward and sample filter, one function per kind.

None of these rows is marked as a defect, yet some are (the +0.5 for trailing text), so all are held against the
reference's rules (`zerotir.OFFICIAL`); what ours change is in tests/unit. The rows' verifiers and tokenizers are stubs:
one token per word or mark, n-grams over white space separated words.
"""

from __future__ import annotations

from openrlhf_tir.filters import zerotir as filters
from openrlhf_tir.rewards import zerotir
from openrlhf_tir.rewards.checking import code_text, text_metrics, zerotir_format
from openrlhf_tir.rewards.checking.answer_text import count_words, open_boxed

from ._compare import mismatches, same
from ._zerotir_rules import block_pattern_score, is_quality, observation_of_reply


def check(row: dict, compat: bool) -> list[str] | None:
    kind = KINDS.get(row["kind"])
    return kind(row) if kind else None


def _equals(got, want) -> list[str]:
    return [] if same(got, want) else [f"{got!r} is not {want!r}"]


def _format_score(row: dict) -> list[str]:
    got = {"code_pattern_score": block_pattern_score(row["response"])}
    for name, template in zerotir_format.TEMPLATES.items():
        valid, reward = template.score(row["response"])
        got |= {f"{name}|format_reward=no": [valid, 0.0], f"{name}|format_reward=yes": [valid, reward]}
    return mismatches(got, row["expected"])


def _math_verify(row: dict) -> list[str]:
    answer = open_boxed(row["response_after_last_think"])
    got = {"extracted": answer, "score": zerotir.official_verdict(answer, row["gold_ans"]) if answer else 0.0}
    return mismatches(got, row.get("expected_math_verify_0_9_0", row["expected"]))


FLAG_OF = {
    "CONDITIONAL_TOOL_REWARD": ("tool_bonus", float),
    "PATTERN_REWARD": ("pattern_bonus", float),
    "CODE_EXECTION_REWARD": ("code_execution", lambda v: float(v) > 0),
    "OVER_LONG_REWARD": ("overlong", lambda v: float(v) > 0),
    "USE_FORMAT_REWARD": ("format_reward", lambda v: v == "yes"),
    "USE_SHORTCUT_REWARD": ("shortcut", lambda v: float(v) > 0),
    "USE_TIR_FORMAT_LOOSE": ("loose", lambda v: float(v) > 0),
}


def _math_score(row: dict) -> list[str]:
    flags = {name: read(row["env_flags"][key]) for key, (name, read) in FLAG_OF.items() if key in row["env_flags"]}
    facts = zerotir.Facts(
        response=row["response"],
        finish_reason=row["finish_reason"],
        num_tokens=count_words(row["response"].replace(zerotir.PAD, "")),
        stop_strings=row["stop_tokens"],
        executions=row["code_exec_nums"],
        errors=row["code_exec_errors"],
    )
    verdicts = (row["rule_verdict"], row["model_verdict"])
    settings = zerotir.Flags(**flags, max_tokens=row["max_tokens"])
    checked = zerotir.check_format(facts, settings, zerotir.OFFICIAL)
    repeated = text_metrics.repeatness(facts.response)
    got = zerotir.score(facts, settings, zerotir.OFFICIAL, checked, verdicts, repeated)
    return mismatches(got, row["expected"])


def _filters(row: dict) -> list[str]:
    m = row["metrics"]
    got = {
        "drop_experience": bool(filters.mask_reason(m, base_ppl=row["base_ppl"], max_tokens=row["generate_max_len"])),
        "is_quality_sample": int(is_quality(m, **row["label"])),
        "verifier_failed": int(filters.verifiers_failed(m)),
    }
    return mismatches(got, row["expected"])


def _program(row: dict) -> list[str]:
    got = {"has_code": code_text.has_code(row["text"]), "extract_code": code_text.extract_code(row["text"])}
    return mismatches(got, row["expected"])


def _reply(row: dict) -> list[str]:
    output, error = observation_of_reply(row["sandbox_reply"])
    return mismatches({"output": output, "error": error}, row["expected"])


KINDS = {
    "format_score": _format_score,
    "repeatness": lambda row: _equals(text_metrics.repeatness(row["text"]), row["expected"]),
    "repetition_penalty_ngram3": lambda row: _equals(
        -text_metrics.repeated_ngrams(row["text"].split()), row["expected"]
    ),
    "soft_overlong": lambda row: _equals(
        text_metrics.soft_overlong(row["length"], row["max_length"], row["cache"]), row["expected"]
    ),
    "pattern_count": lambda row: mismatches(
        text_metrics.keyword_flags(row["text"], text_metrics.OFFICIAL_KEYWORDS), row["expected"]
    ),
    "has_code_extract_code": _program,
    "sandbox_parse_response": _reply,
    "math_verify": _math_verify,
    "math_score": _math_score,
    "filters": _filters,
}
