"""Rows of toolrl.jsonl: ToolRL's score of the assistant's text, under the official code's environment variables."""

from __future__ import annotations

from openrlhf_tir.rewards.toolrl import Variant, score

from ._compare import mismatches

FLAG_OF = {
    "COARSEREWARD": "coarse",
    "INTERMEDIATEREWARD": "intermediate",
    "REFINEDREWARD": "refined",
    "CORRECTMAX1": "equal_max",
    "MAX1STEP30MAX3": "two_stage",
    "SCHEDULEREWARD": "dynamic",
    "WITHLENGTH": "length",
    "SCHEDULELENGTH": "dynamic_length",
}
MARKERS = {
    "llama": ("<|start_header_id|>assistant<|end_header_id|>", "<|eot_id|>"),
    "qwen": ("<|im_start|>assistant", "<|im_end|>"),
}


def check(row: dict, compat: bool) -> list[str] | None:
    family = next((f for f in MARKERS if f in row["env"].get("EXPERIMENT_NAME", "")), None)
    if family is None:
        return None  # the official code guesses the chat template from the experiment's name; we are given the text
    start, end = MARKERS[family]
    text = row["solution_str"].split(start)[-1].split(end)[0].strip()
    variant = Variant(**{name: row["env"].get(key) == "1" for key, name in FLAG_OF.items()})
    return mismatches(score(text, row["ground_truth"], variant, row["step"])._asdict(), row["expected"])
