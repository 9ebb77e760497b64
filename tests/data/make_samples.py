"""python -m tests.data.make_samples: tiny files, in each method's own schema, of problems made up here. Two rows each,
and samples of them; written beside this file."""

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
SEARCH = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new"
    " information. Question: "
)
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer:"
    " $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its"
    ' own line after "Answer:".'
)
TARGET = (
    '<think> I should look it up. </think>\n<tool_call>\n{"name": "weather", "parameters": {"city":'
    ' "Oslo"}}\n</tool_call>'
)

TOOLACE = (
    "You are an expert in composing functions. Based on the question, you will need to make one or more function/tool"
    " calls.\nHere is a list of functions in JSON format that you can invoke:\n"
    + json.dumps([{**WEATHER, "name": "Weather Now"}])
    + ". \nShould you decide to return the function call(s). "
    "Put it in the format of [func1(params_name=params_value, params_name2=params_value2...), func2(params)]"
)
SWE = {
    "instance_id": "toy__sums-1",
    "repo": "toy/sums",
    "base_commit": "0" * 40,
    "problem_statement": "add(2, 2) returns 0.",
    "patch": "--- a/sums.py\n+++ b/sums.py\n@@ -1 +1 @@\n-add = lambda a, b: a - b\n+add = lambda a, b: a + b\n",
    "test_patch": (
        "--- /dev/null\n+++ b/test_sums.py\n@@ -0,0 +1,4 @@\n+from sums import add\n+\n+def test_add():\n+    assert"
        " add(2, 2) == 4\n"
    ),
    "version": "1.0",
}


def _chat(**said: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in said.items()]


def rows() -> dict[str, list[Any]]:
    """File name -> its rows."""
    rule = {"style": "rule"}
    return {
        "zerotir.jsonl": [
            {
                "prompt": q,
                "query": q,
                "label": json.dumps({"env_func": "math_tir_async", "gold_ans": a}),
                "task": "math_tir",
            }
            for q, a in SUMS
        ],
        "orz.json": [
            [{"from": "human", "value": q}, {"from": "assistant", "ground_truth": {"value": a}}] for q, a in SUMS
        ],
        "dapo.parquet": [
            {
                "data_source": "math_dapo",
                "prompt": _chat(user=DAPO.format(q)),
                "ability": "MATH",
                "reward_model": {**rule, "ground_truth": a},
            }
            for q, a in SUMS
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
            {
                "data_source": "made_up",
                "prompt": _chat(user=q),
                "ability": "MATH",
                "reward_model": {"ground_truth": a},
                "agent_name": "tool_agent",
            }
            for q, a in SUMS
        ],
        "toolrl.jsonl": [
            {
                "data_source": "rlla",
                "prompt": _chat(
                    system="You may use tools.", user=f"**Dialogue Records History**\n<user> {q} </user>\n"
                ),
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
            {
                "data_source": "nq",
                "prompt": _chat(user=SEARCH + "who wrote hamlet?\n"),
                "reward_model": {**rule, "ground_truth": {"target": ["Shakespeare"]}},
            },
            {
                "data_source": "nq",
                "prompt": _chat(user=SEARCH + "capital of norway?\n"),
                "reward_model": {**rule, "ground_truth": {"target": ["Oslo"]}},
            },
        ],
        "xlam.jsonl": [
            {"id": 0, "query": "Is it cold in Oslo?", "tools": json.dumps([WEATHER]), "answers": json.dumps(CALL)},
            {
                "id": 1,
                "query": "Sing.",
                "tools": json.dumps([WEATHER]),
                "answers": json.dumps([{"name": "sing", "arguments": {}}]),
            },
        ],
        "hammer.jsonl": [
            {
                "id": 0,
                "query": "Is it cold?",
                "tools": [{**WEATHER, "name": "x3_qp"}],
                "answers": [{"name": "x3_qp", "arguments": {"city": "Oslo"}}],
            },
            {"id": 1, "query": "Sing me a song.", "tools": json.dumps([WEATHER]), "answers": "[]"},
        ],
        "toolace.json": [
            {
                "system": TOOLACE,
                "conversations": [
                    {"from": "user", "value": "Is it cold in Oslo and in Rome?"},
                    {
                        "from": "assistant",
                        "value": (
                            '[Weather Now(city="Oslo"), Weather Now(city=\'Rome, Italy\', units=["C"], exact=true)]'
                        ),
                    },
                    {"from": "tool", "value": '[{"name": "Weather Now", "results": {"celsius": -4}}]'},
                    {"from": "assistant", "value": "Oslo is cold."},
                    {"from": "user", "value": "And Bergen?"},
                    {"from": "assistant", "value": '[Weather Now(city="Bergen")]'},
                ],
            },
            {
                "system": TOOLACE,
                "conversations": [{"from": "user", "value": "Sing."}, {"from": "assistant", "value": "I cannot sing."}],
            },
        ],
        "retool_sft.jsonl": [
            {
                "messages": _chat(
                    user=q,
                    assistant=f"<code>\n```python\nprint({a})\n```\n</code>\n<interpreter>\n{a}</interpreter>\n\n\\boxed{{{a}}}",
                ),
                "tools": [],
            }
            for q, a in SUMS
        ],
        "swegym.jsonl": [
            {**SWE, "FAIL_TO_PASS": ["test_sums.py::test_add"], "PASS_TO_PASS": []},
            {
                "data_source": "swe-gym",
                "instance": {**SWE, "FAIL_TO_PASS": '["test_sums.py::test_add"]', "PASS_TO_PASS": "[]"},
            },
        ],
        "bfcl_multi_turn.jsonl": [
            {
                "id": f"multi_turn_base_{i}",
                "question": [_chat(user="Make a directory 'new'."), _chat(user="Go there.")],
                "initial_config": {"GorillaFileSystem": {"root": {}}},
                "path": ["GorillaFileSystem.mkdir", "GorillaFileSystem.cd"],
                "involved_classes": ["GorillaFileSystem"],
                "ground_truth": [["mkdir(dir_name='new')"], ["cd(folder='new')"]],
            }
            for i in range(2)
        ],
        "flashrag.jsonl": [
            {"id": "a", "question": "who wrote hamlet", "golden_answers": ["Shakespeare", "William Shakespeare"]},
            {"id": "b", "question": "capital of norway?", "golden_answers": ["Oslo"]},
        ],
    }


def outcomes() -> dict[str, list[Any]]:
    """Samples as an evaluation may keep them: the first sum is learned, the second was always known, and another
    problem never is."""
    right = {SUMS[0][0]: (0, 2, 4), SUMS[1][0]: (4, 4, 4), "What is 17 ** 25?": (0, 0, 0)}
    made = [
        {"question": q, "epoch": epoch, "correct": [i < n for i in range(4)]}
        for q, by in right.items()
        for epoch, n in enumerate(by)
    ]
    return {"samples.jsonl": made}


def main() -> None:
    for name, made in (rows() | outcomes()).items():
        path = HERE / name
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(made), path)
        elif path.suffix == ".json":
            path.write_text(json.dumps(made, indent=1) + "\n")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in made))


if __name__ == "__main__":
    main()
