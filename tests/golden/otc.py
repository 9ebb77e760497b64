"""Rows of otc.jsonl (derived from the paper's formulas): PPO factor, GRPO group, and the metrics."""

from __future__ import annotations

from openrlhf_tir.evaluation.items import Item
from openrlhf_tir.evaluation.scores.figures import figures
from openrlhf_tir.rewards import otc

from ._compare import mismatches


def check(row: dict, compat: bool) -> list[str] | None:
    kind = KINDS.get(row["kind"])
    return kind(row) if kind else None


def _single(row: dict) -> list[str]:
    factor = otc.ppo_factor(row["m"], row["c"])
    return mismatches({"r_tool": factor, "reward": row["alpha"] * factor * row["correct"]}, row["expected"])


def _group(row: dict) -> list[str]:
    got = otc.grpo_group(row["m"], row["correct"], row["r_phi"], row["c"], row["alpha"], row["stored_optimal_n"])
    return mismatches({**got._asdict(), "new_stored_optimal_n": got.n}, row["expected"])


def _metrics(row: dict) -> list[str]:
    """Compare the figures of an evaluation with one sample of each question."""
    empty = {"suite": "", "row": "", "kind": "", "env": "", "prompt": "", "label": ""}
    items = [
        Item(
            index=index,
            correct=[bool(correct)],
            answers=[None],
            calls=[calls],
            calls_ok=[calls],
            used_code=[calls > 0],
            response_tokens=[0],
            model_tokens=[0],
            truncated=[False],
            **empty,
        )
        for index, (correct, calls) in enumerate(zip(row["correct"], row["calls"], strict=True))
    ]
    got = figures(items, 1)
    tools = got["tools"]
    return mismatches(
        {"EM": got["avg@1"][0], "TC": tools["calls"][0], "TP": tools["tool_productivity"][0]}, row["expected"]
    )


KINDS = {
    "otc_ppo_single": _single,
    "otc_grpo_group": _group,
    "metrics": _metrics,
}
