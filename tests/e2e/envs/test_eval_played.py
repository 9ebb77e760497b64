"""`openrlhf-tir eval --suite tau_like`, `swe_like` on the real stack: the run starts the environment's server, plays
every task to its end, and the environment's verdicts are the items and the figures."""

from __future__ import annotations

import json
import re
from math import comb

import pytest

from env_servers.functions.make_tasks import row as function_row
from env_servers.functions.policy import POLICY, policy_task
from miniatures.toy.model import save_model
from tests.contract.swe_hostile import CODE, MEND, ROOT, task
from tests.unit.env_servers.functions.solver import Solver

from ..test_guess_game import command

CHOICES = '''
"""choices.py: the first digit that the model writes picks one of several plays, whose actions follow, a token each."""
import json
from pathlib import Path
from openrlhf_tir.rollout.protocols import Call, End

ANY = ("\\n", *map(chr, range(32, 127)))
PLAYS = json.loads(Path(__file__).with_name("plays.json").read_text())


class Choices:
    def __init__(self, *, max_calls, budget_message=False, user=False):
        self.play = None

    @property
    def stops(self):
        return tuple("0123456789") if self.play is None else ANY if self.play else ()

    def advance(self, completion):
        if completion.stop_reason not in self.stops:
            return End()
        if self.play is None:
            self.play = list(PLAYS[int(completion.stop_reason) % len(PLAYS)])
        return Call(self.play.pop(0))

    def insertion(self, observation):
        return " " + observation[:20] + "\\n"

    def too_long(self):
        return None

    def after_insertion(self):
        return ""
'''
RECIPE = """
run_dir = "run"

[actor]
model_name_or_path = "model"
num_gpus_per_node = 1

[ds]
param_dtype = "fp32"
attn_implementation = "eager"

[rollout]
engine = "torch"
max_new_tokens = NEW

[env]
max_calls = 8
workers = 2
step_timeout_s = 120.0
name = "NAME"
protocol = "PROTOCOL"
OPTIONS

[data]
input_template = "user_assistant"
max_len = 4096

[eval]
n_samples_per_prompt = 4

[logger]
tensorboard_dir = "unset"
"""


def lay_out(directory, plays, rows, **filled):
    directory.mkdir(exist_ok=True)
    (directory / "plays.json").write_text(json.dumps(plays))
    # an own copy of it is made for the run; plays.json stays where it is
    code = CHOICES.replace('Path(__file__).with_name("plays.json")', f'Path("{directory / "plays.json"}")')
    (directory / "choices.py").write_text(code)
    text = RECIPE
    for key, value in filled.items():
        text = text.replace(key, str(value))
    (directory / "r.toml").write_text(text)
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_model(directory / "model", seed=0)


def evaluated(directory, *words, name, kept="run/eval"):
    done = command("eval", "--recipe", "r.toml", "--out", "out.json", *words, cwd=directory)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((directory / "out.json").read_text())["suites"][name]
    items = [json.loads(line) for line in (directory / f"{kept}/{name}/items.jsonl").read_text().splitlines()]
    return done.stdout + done.stderr, found, items


def pass_hat(items, k):
    return sum(comb(sum(i["correct"]), k) / comb(len(i["correct"]), k) for i in items) / len(items)


@pytest.mark.long
def test_the_help_desk_is_played_by_the_file_and_out_of_the_box(tmp_path):
    wish, desk = policy_task(0, 5)
    solved, wrong = Solver(desk).actions, [json.dumps({"message": "No."})] * 8
    rows = [{**function_row(wish, desk, "tool", POLICY), "prompt": f"{wish} {i}\n"} | {"label": "-"} for i in range(6)]
    lay_out(
        tmp_path,
        [solved, wrong, solved],
        rows,
        NEW=512,
        NAME="functions",
        PROTOCOL="choices.py:Choices",
        OPTIONS="options = { user = true }",
    )
    words = ("--suite", "tau_like=rows.jsonl")
    said, found, items = evaluated(tmp_path, *words, name="tau_like")
    assert (found["problems"], found["samples"], found["failed"]) == (6, 24, 0)
    assert 0 < found["avg@4"][0] < 1 and "pass^n" in said and "state_right" in said
    for k in (1, 2, 4):
        assert found["pass^k"][str(k)][0] == pytest.approx(pass_hat(items, k))
    signals = [s for i in items for s in i["signals"]]
    right = [s.get("state_match", 0) == s.get("state_total") for s in signals]
    ended = [s.get("ended", False) for s in signals]
    assert [c for i in items for c in i["correct"]] == [r and e for r, e in zip(right, ended, strict=True)]
    assert found["env"]["state_right"][0] == pytest.approx(sum(right) / sum("state_total" in s for s in signals))
    assert found["env"]["ended"][0] == pytest.approx(sum(ended) / 24)

    path = tmp_path / "run/eval/tau_like/items.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in lines[:4]))
    said, _, items = evaluated(tmp_path, *words, name="tau_like")
    assert re.search(r"\b4 \w+ 6\b", said) and len(items) == 6 and path.read_text().splitlines()[:4] == lines[:4]

    tool = (
        "--env.protocol",
        "tool",
        "--env.options",
        "user=true",
        "--rollout.max_new_tokens",
        "16",
        "--eval.n_samples_per_prompt",
        "1",
    )
    _, found, _ = evaluated(tmp_path, "--suite", "tau_like", *tool, "--items", "made", name="tau_like", kept="made")
    assert (found["problems"], found["rows"], found["published"], found["failed"]) == (48, 48, 48, 0)
    assert found["avg@1"][0] == 0 and len(found["kinds"]) == 8, "a model without training writes noise, which is wrong"


@pytest.mark.long
def test_bugs_are_mended_or_not_and_the_sessions_are_told_of(tmp_path):
    def calls(*named):
        return json.dumps([{"name": name, "arguments": arguments} for name, arguments in named])

    view, finish = ("str_replace_editor", {"command": "view", "path": f"{ROOT}/{CODE}"}), ("finish", {})
    spoil = {"command": "insert", "path": f"{ROOT}/{CODE}", "insert_line": 0, "new_str": "# here"}
    edit = ("str_replace_editor", spoil)
    plays = [
        [calls(("execute_bash", {"command": MEND})), calls(finish)],
        [calls(view), calls(edit), calls(finish)],
        [calls(edit), calls(finish)],
        [calls(finish)],
    ]
    rows = [{"prompt": f"Mend it, {i}.\n", "label": "-", "meta": task()} for i in range(5)]
    lay_out(tmp_path, plays, rows, NEW=256, NAME="swe", PROTOCOL="choices.py:Choices", OPTIONS="")
    evenly = ("--eval.temperature", "5")  # an untrained model has digits that it likes
    said, found, items = evaluated(tmp_path, "--suite", "swe_like=rows.jsonl", *evenly, name="swe_like")
    assert (found["problems"], found["samples"], found["failed"]) == (5, 20, 0) and "viewed_first" in said
    signals = [s for i in items for s in i["signals"]]
    resolved = [s.get("evaluation") == "resolved" for s in signals]
    assert [c for i in items for c in i["correct"]] == resolved and found["avg@4"][0] == sum(resolved) / 20
    judged = [s for s in signals if "evaluation" in s]
    assert {s["evaluation"] for s in judged} == {"resolved", "tests_failed", "patch_empty"}
    empty = sum(s["evaluation"] == "patch_empty" for s in judged)
    assert found["env"]["patch_empty"][0] == pytest.approx(empty / len(judged))
    looked = [s["viewed_first"] for s in judged if "viewed_first" in s]
    assert found["env"]["viewed_first"][0] == pytest.approx(sum(looked) / len(looked)) and 0 < sum(looked) < len(looked)
    assert {s["turn"] for s in judged} == {1, 2, 3}


@pytest.mark.long
def test_our_held_out_bugs_are_made_and_asked_without_a_file(tmp_path):
    lay_out(tmp_path, [], [], NEW=8, NAME="swe", PROTOCOL="tool", OPTIONS="")
    _, found, items = evaluated(tmp_path, "--suite", "swe_like", "--eval.n_samples_per_prompt", "1", name="swe_like")
    assert (found["problems"], found["published"], found["failed"], found["avg@1"][0]) == (60, 60, 0, 0.0)
    assert len(found["kinds"]) > 8 and all(not i["correct"][0] for i in items)
