"""ReTool's demonstrations: what is verified, rewritten and checked, and what a second run does not ask again."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.data.prepare.code_traces import Replies, Worked, demonstration, demonstrations, format_fault
from openrlhf_tir.data.templates import RETOOL
from openrlhf_tir.errors import DataError
from tests.unit.rewards.test_model_verdict import chat, server

PROGRAM = "<code>\n```python\nprint(6 * 7)\n```\n</code>\n<interpreter>\n42\n</interpreter>\n"
ANSWER = "<answer>\n\\boxed{42}\n</answer>"
WORKED = Worked("f line 1", "6 times 7?", "It is \\boxed{42}.", "42")


@pytest.mark.parametrize(
    ("trace", "fault"),
    [
        (f"I compute. {PROGRAM}So.\n{ANSWER}", ""),
        (f"{PROGRAM}{PROGRAM}{ANSWER}\n", ""),
        (f"So.\n{ANSWER}", "no_code"),
        (PROGRAM, "no_answer"),
        (f"{PROGRAM}<answer>42</answer>", "no_boxed_answer"),
        (f"{PROGRAM}{ANSWER} Done.", "text_behind_answer"),
        ("<code>print(1)</code><interpreter>1</interpreter>" + ANSWER, "no_program_in_code"),
        (PROGRAM.replace("</code>\n", "</code> shows ") + ANSWER, "text_before_output"),
        (PROGRAM.replace("<interpreter>\n42\n</interpreter>\n", "") + ANSWER, "tags_out_of_order"),
        ("</code>" + ANSWER, "tags_out_of_order"),
        (PROGRAM + "<answer>" + PROGRAM + ANSWER, "no_boxed_answer"),
    ],
)
def test_the_form_of_a_demonstration(trace, fault):
    assert format_fault(trace) == fault


def test_a_verified_solution_becomes_a_conversation_with_retools_prompt():
    row, reason = demonstration(WORKED, lambda prompt: PROGRAM + ANSWER, lambda prompt: "Correct")
    assert reason == ""
    asked, said = row["messages"]
    assert asked == {"role": "user", "content": RETOOL.replace("{input}", "6 times 7?")}
    assert said == {"role": "assistant", "content": PROGRAM + ANSWER}


@pytest.mark.parametrize(
    ("worked", "rewritten", "judged", "reason"),
    [
        (WORKED._replace(solution="It is 42."), "", "Correct", "solution_without_box"),
        (WORKED._replace(label="43"), "", "Correct", "solution_is_wrong"),
        (WORKED, "", "Incorrect", "model_says_wrong"),
        (WORKED, ANSWER, "Correct", "no_code"),
        (WORKED, PROGRAM + ANSWER.replace("42", "41"), "Correct", "answer_changed"),
    ],
)
def test_what_fails_a_stage_is_left_out_with_its_reason(worked, rewritten, judged, reason):
    assert demonstration(worked, lambda prompt: rewritten, lambda prompt: judged) == (None, reason)


def test_rows_keep_their_order_and_are_counted():
    rows = [WORKED._replace(question=str(i), label="42" if i % 2 else "0") for i in range(7)]
    left_out: Counter[str] = Counter()
    made = list(demonstrations(rows, lambda prompt: PROGRAM + ANSWER, None, 3, left_out))
    asked = [row["messages"][0]["content"] for row in made]
    assert asked == [RETOOL.replace("{input}", i) for i in "135"] and left_out == {"solution_is_wrong": 4}


def test_replies_are_asked_for_once_and_a_cut_last_line_is_no_fault(tmp_path):
    path, asked = tmp_path / "replies.jsonl", []
    ask = Replies(path).of("m", lambda prompt: asked.append(prompt) or "yes")
    assert (ask("a"), ask("a"), asked) == ("yes", "yes", ["a"])
    path.write_text(path.read_text() + '{"key": "x", "re')
    assert Replies(path).of("m", lambda prompt: "again")("a") == "yes"
    assert Replies(path).of("other", lambda prompt: "again")("a") == "again"
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(DataError, match=r"replies\.jsonl\D+1\b"):
        Replies(path)


def test_the_command_writes_rows_for_fine_tuning(tmp_path, capsys):
    rows = tmp_path / "worked.jsonl"
    given = [{"prompt": "6 times 7?", "label": label, "solution": "\\boxed{42}"} for label in ("42", "43")]
    rows.write_text("".join(json.dumps(row) + "\n" for row in given))
    out = tmp_path / "sft.jsonl"
    with server(chat(PROGRAM + ANSWER)) as (url, asked):
        flags = ["--url", url, "--model", "m", "--out", str(out), "--workers", "1"]
        assert main(["data", "rewrite", str(rows), *flags]) == 0
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["messages"][1]["content"] == PROGRAM + ANSWER
    assert len(asked) == 1 and asked[0][2]["model"] == "m"
    assert re.search("1.*solution_is_wrong", capsys.readouterr().out)


def test_a_server_that_refuses_ends_the_command_and_leaves_no_row_out_for_it(tmp_path, capsys):
    rows = tmp_path / "worked.jsonl"
    rows.write_text(json.dumps({"prompt": "6 times 7?", "label": "42", "solution": "\\boxed{42}"}))
    out = tmp_path / "sft.jsonl"
    with server((404, b"no such model")) as (url, _):
        assert main(["data", "rewrite", str(rows), "--url", url, "--model", "m", "--out", str(out)]) != 0
    assert "404" in capsys.readouterr().err and not out.exists()


def test_a_judge_without_a_name_and_rows_without_a_solution_are_refused(tmp_path, capsys):
    rows = tmp_path / "worked.jsonl"
    rows.write_text(json.dumps({"prompt": "q", "label": "1"}))
    flags = ["--url", "http://127.0.0.1:1/v1", "--model", "m", "--out", str(tmp_path / "o.jsonl")]
    assert main(["data", "rewrite", str(rows), *flags, "--judge-url", "http://h"]) == 2
    assert "--judge-model" in capsys.readouterr().err
    assert main(["data", "rewrite", str(rows), *flags]) == 2
    assert "line 1" in capsys.readouterr().err


@pytest.mark.parametrize("replies", ["nowhere/replies.jsonl", "worked.jsonl", "o.jsonl"])
def test_replies_that_could_not_be_kept_are_refused_before_one_is_asked_for(tmp_path, capsys, replies):
    rows = tmp_path / "worked.jsonl"
    rows.write_text(json.dumps({"prompt": "6 times 7?", "label": "42", "solution": "\\boxed{42}"}))
    before = rows.read_text()
    out = tmp_path / "o.jsonl"
    with server(chat(PROGRAM + ANSWER)) as (url, asked):
        flags = ["--url", url, "--model", "m", "--out", str(out), "--replies", str(tmp_path / replies)]
        assert main(["data", "rewrite", str(rows), *flags]) == 2
    assert "--replies" in capsys.readouterr().err
    assert not asked and not out.exists() and rows.read_text() == before
