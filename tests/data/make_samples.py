"""python -m tests.data.make_samples: tiny files, in each method's own schema, of problems made up here. Two rows each; written beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
SUMS = [("What is 17 + 25?", "42"), ("What is 6 * 7 - 2?", "40")]
WEATHER = {"name": "weather", "description": "Weather of a city.", "parameters": {"city": {"type": "string"}}}
CALL = [{"name": "weather", "arguments": {"city": "Oslo"}}]
SEARCH = "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new information. Question: "
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer (without quotes) where $Answer is "
    'the answer to the problem.\n\n{}\n\nRemember to put your answer on its own line after "Answer:".'
)
TARGET = '<think> I should look it up. </think>\n<tool_call>\n{"name": "weather", "parameters": {"city": "Oslo"}}\n</tool_call>'


def _chat(**said: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in said.items()]


def rows() -> dict[str, list[Any]]:
    """File name -> its rows."""
    rule = {"style": "rule"}
    return {
        "zerotir.jsonl": [{"prompt": q, "query": q, "label": json.dumps({"env_func": "math_tir_async", "gold_ans": a}), "task": "math_tir"} for q, a in SUMS],
        "orz.json": [[{"from": "human", "value": q}, {"from": "assistant", "ground_truth": {"value": a}}] for q, a in SUMS],
        "dapo.parquet": [
            {"data_source": "math_dapo", "prompt": _chat(user=DAPO.format(q)), "ability": "MATH", "reward_model": {**rule, "ground_truth": a}} for q, a in SUMS
        ],
        "torl.parquet": [
            {
                "data_source": "made_up",
                "prompt": _chat(system=BOXED, user=q),
                "ability": "other",
                "reward_model": {"ground_truth": a, "stype": "rule"},
                "extra_info": {"id": i, "split": "train"},
            }
            for i, (q, a) in enumerate(SUMS)
        ],
        "verl.parquet": [
            {"data_source": "made_up", "prompt": _chat(user=q), "ability": "MATH", "reward_model": {"ground_truth": a}, "agent_name": "tool_agent"}
            for q, a in SUMS
        ],
        "toolrl.jsonl": [
            {
                "data_source": "rlla",
                "prompt": _chat(system="You may use tools.", user=f"**Dialogue Records History**\n<user> {q} </user>\n"),
                "ability": "math",
                "reward_model": {**rule, "ground_truth": TARGET},
                "extra_info": {"split": "train", "index": i},
            }
            for i, q in enumerate(("Is it cold in Oslo?", "Do I need a coat in Oslo?"))
        ],
        "tooln1.jsonl": [
            {
                "tools": json.dumps([WEATHER]),
                "conversations": json.dumps([{"from": "human", "value": "Is it cold in Oslo?"}]),
                "answer": json.dumps(CALL),
                "raw_system": "You are an expert in composing functions.",
            },
            {"tools": json.dumps([WEATHER]), "query": "Sing me a song.", "answers": "[]"},
        ],
        "searchr1.jsonl": [
            {"data_source": "nq", "prompt": _chat(user=SEARCH + "who wrote hamlet?\n"), "reward_model": {**rule, "ground_truth": {"target": ["Shakespeare"]}}},
            {"data_source": "nq", "prompt": _chat(user=SEARCH + "capital of norway?\n"), "reward_model": {**rule, "ground_truth": {"target": ["Oslo"]}}},
        ],
        "flashrag.jsonl": [
            {"id": "a", "question": "who wrote hamlet", "golden_answers": ["Shakespeare", "William Shakespeare"]},
            {"id": "b", "question": "capital of norway?", "golden_answers": ["Oslo"]},
        ],
    }


def main() -> None:
    for name, made in rows().items():
        path = HERE / name
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(made), path)
        elif path.suffix == ".json":
            path.write_text(json.dumps(made, indent=1) + "\n")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in made))


if __name__ == "__main__":
    main()
