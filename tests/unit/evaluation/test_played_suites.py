"""Suites that our own environments play: rows that are made, rows of a file, and what the environments said as
figures."""

from __future__ import annotations

import json
import re

import pytest

from env_servers.swe.make_tasks import candidates
from env_servers.swe.sources import names
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.evaluation.items import Item, read_item, signals_of
from openrlhf_tir.evaluation.scores.figures import figures
from openrlhf_tir.types import ToolCall
from tests.unit.env_servers.swe.test_tasks import ROW
from tests.unit.evaluation.test_plan import planned
from tests.unit.evaluation.test_store import sample
from tests.unit.evaluation.test_suites import jsonl

pytestmark = pytest.mark.extended

DESK = {"env": {"name": "functions", "protocol": "tool", "options": {"user": True}}}
BUG = {"prompt": "Mend it.", "label": "patch", "env": "swe", "meta": {"repo": "roman", "files": {}}}
ISSUE = {**ROW, "instance_id": "o__lib-1", "base_commit": "abc"}


def swe(**env):
    return {"env": {"name": "swe", "protocol": "skyrl", **env}}


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_the_help_desk_needs_no_file_and_is_made_once(tmp_path):
    p = planned(tmp_path, "tau_like", **DESK)
    (asked,) = p.sets
    problems = rows(asked.directory / "problems.jsonl")
    assert (asked.rows, asked.published, p.cfg.reward.name) == (48, 48, "env") and len(problems) == 48
    kinds = [row["meta"]["kind"] for row in problems]
    assert len(set(kinds)) == 8 and kinds.count("somebody_elses") == 6
    assert all(row["meta"]["check"] == "end" and "<tool>[" in row["prompt"] for row in problems)
    made = asked.directory / "rows_tool.jsonl"
    before = made.stat().st_mtime_ns
    planned(tmp_path, "tau_like", **DESK)
    assert made.stat().st_mtime_ns == before


@pytest.mark.slow
def test_for_messages_the_policy_is_the_system_message_and_the_template_is_told_the_functions(tmp_path):
    env = {"env": {**DESK["env"], "protocol": "messages"}, "data": {"apply_chat_template": True}}
    (asked,) = planned(tmp_path, "tau_like", **env).sets
    row = rows(asked.directory / "problems.jsonl")[0]
    assert [m["role"] for m in row["prompt"]] == ["system", "user"] and "# Policy" in row["prompt"][0]["content"]
    assert "find_customer" in [t["function"]["name"] for t in row["meta"]["chat_tools"]]


@pytest.mark.slow
def test_the_tasks_of_a_suite_are_not_those_that_training_makes(tmp_path):
    ours = rows(planned(tmp_path, "tau_like", **DESK).sets[0].directory / "problems.jsonl")
    states = {json.dumps(row["meta"]["state"]) for row in ours}
    from env_servers.functions.policy import policy_task

    assert not states & {json.dumps(policy_task(i, seed)[1].state) for i in range(48) for seed in range(3)}
    repos = names()[::4]
    trained = [*candidates(repos, 0)]
    kept = [*candidates(repos, 7, "held_out")]
    assert len(kept) > 20
    for part in ("source", "line"):  # a line is on one side
        of_trained, of_kept = ({(n, p, getattr(m, part)) for n, p, m in those} for those in (trained, kept))
        assert not of_trained & of_kept
    assert len(trained) + len(kept) == len([*candidates(repos, 0, "all")])


@pytest.mark.parametrize(
    ("name", "row", "config"),
    [("tau_like", {**BUG, "meta": {"domains": ["shop"], "gold": [[]]}}, DESK), ("swe_like", BUG, swe())],
)
def test_a_file_in_the_environments_form_is_taken_as_it_is(tmp_path, name, row, config):
    path = jsonl(tmp_path / "mine.jsonl", row, row | {"prompt": "Again."})
    p = planned(tmp_path, f"{name}={path}", **config)
    assert [r["prompt"] for r in rows(p.sets[0].directory / "problems.jsonl")] == ["Mend it.", "Again."]
    assert any(re.search(r" 2 \w+, ", fact) for fact in p.sets[0].facts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "root"),
    [({"mirror": "m"}, "/tmp/lib"), ({"runtime-api": "http://r"}, "/testbed"), ({"docker": True}, "/testbed")],
)
def test_rows_of_swe_gym_become_prompts_in_the_protocol_of_the_run(tmp_path, options, root):
    path = jsonl(tmp_path / "gym.jsonl", ISSUE)
    p = planned(tmp_path, f"swe_rows={path}", **swe(server_options=options), data={"apply_chat_template": True})
    (row,) = rows(p.sets[0].directory / "problems.jsonl")
    system, user = row["prompt"]
    assert "<function=" in system["content"] and "twice(2) is 5." in user["content"]
    assert f"<uploaded_files>\n{root}\n" in user["content"]
    assert (row["meta"]["kind"], row["meta"]["base_commit"], p.sets[0].published) == ("o/lib", "abc", None)
    assert not any(re.search(r" 1 \w+, ", fact) for fact in p.sets[0].facts), "any number of rows is the whole set"


@pytest.mark.slow
def test_rows_of_swe_gym_tell_the_chat_template_of_the_tools(tmp_path):
    chat = swe(protocol="messages", options={"calls": "hermes"}, server_options={"mirror": "m"})
    p = planned(tmp_path, f"swe_rows={jsonl(tmp_path / 'gym.jsonl', ISSUE)}", **chat)
    (row,) = rows(p.sets[0].directory / "problems.jsonl")
    told = [tool["function"]["name"] for tool in row["meta"]["chat_tools"]]
    assert told == ["execute_bash", "str_replace_editor", "finish"]


def test_rows_that_were_made_before_are_taken_as_they_are(tmp_path):
    own = {"prompt": "In my words.", "label": "", "meta": {k: v for k, v in ISSUE.items() if k != "patch"}}
    p = planned(tmp_path, f"swe_rows={jsonl(tmp_path / 'made.jsonl', own)}", **swe(url="http://127.0.0.1:1"))
    assert rows(p.sets[0].directory / "problems.jsonl")[0]["prompt"] == "In my words."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "row", "config", "said"),
    [
        ("swe_rows", ISSUE, swe(), "server_options mirror=DIR"),
        ("swe_rows", ISSUE, swe(server_options={"mirror": "m"}, protocol="toolrl"), " skyrl.*'toolrl'.*env.protocol"),
        ("tau_like", None, {"env": {**DESK["env"], "protocol": "toolrl"}}, " tool, hermes.*'toolrl'.*env.protocol"),
        (
            "tau_airline",
            None,
            {"env": {"name": "tau", "protocol": "mine.py:Mine", "options": {"user": True}}},
            " messages, .*'mine.py:Mine'.*env.protocol",
        ),
        ("tau_like", None, {"env": {"name": "functions", "protocol": "tool"}}, "options user=true"),
        ("tau_like", None, swe(), "--env.name functions"),
        ("swe_like", None, DESK, "--env.name swe"),
        ("swe_rows", {**ISSUE, "test_patch": ""}, swe(server_options={"mirror": "m"}), " o/lib .* test_patch "),
        ("swe_rows", {**ISSUE, "instance_id": 7}, swe(server_options={"mirror": "m"}), r":1: "),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_starts(tmp_path, name, row, config, said):
    text = name if row is None else f"{name}={jsonl(tmp_path / 'rows.jsonl', row)}"
    with pytest.raises(ConfigError) as e:
        planned(tmp_path, text, **config)
    assert re.search(said, str(e.value))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "", "meta": {"repo": "f"}}, "'prompt'"),
        ({"prompt": "P", "meta": {"x": 1}}, "domains or repo"),
        ({"prompt": "P", "meta": {"repo": "d/d", "FAIL_TO_PASS": '["test_a (a.T)"]'}}, "test_a (a.T)"),
    ],
)
def test_a_row_of_another_form_names_its_line(tmp_path, row, said):
    with pytest.raises(DataError) as e:
        planned(tmp_path, f"swe_like={jsonl(tmp_path / 'rows.jsonl', BUG, row)}", **swe())
    assert said in str(e.value) and "line 2" in str(e.value)


def made(index: int, correct: list[int], *signals: dict) -> Item:
    some = [0] * len(correct)
    return Item(
        *("s", index, f"row{index}", "all", "swe", "p", "l", [bool(c) for c in correct]),
        *([0.0 for _ in correct], [None for _ in correct], some, some, [False for _ in some], some, some, some),
        ["" for _ in some],
        signals=list(signals),
    )


def test_pass_hat_k_is_over_all_trials_of_a_task_and_the_mean_over_tasks():
    told = {"state_match": 1, "state_total": 1, "ended": True}
    items = [made(0, [1, 1, 1, 0], *[told] * 4), made(1, [1, 1, 1, 1], *[told] * 4), made(2, [0, 0, 0, 1], *[told] * 4)]
    found = figures(items, 4)
    # C(3,2)/C(4,2) = 1/2, 1, 0; C(3,4) = 0, 1, 0
    assert found["pass^k"]["2"][0] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert found["pass^k"]["4"][0] == pytest.approx(1 / 3)
    assert found["pass^k"]["1"][0] == pytest.approx(found["avg@4"][0]) == pytest.approx((3 / 4 + 1 + 1 / 4) / 3)


def test_what_a_mended_repository_says_is_told_as_shares_of_those_that_have_it():
    judged = {"turn": 4, "evaluation": "tests_failed", "tests_passed": 3, "tests_total": 4, "ended": True}
    items = [
        made(
            0,
            [1, 0],
            {**judged, "evaluation": "resolved", "tests_passed": 4, "viewed_first": True},
            {**judged, "viewed_first": False},
        ),
        made(
            1, [0, 0], {"turn": 2, "evaluation": "patch_empty", "tests_total": 0, "tests_passed": 0, "ended": True}, {}
        ),
    ]
    env = {name: value[0] for name, value in figures(items, 2)["env"].items()}
    assert env == {
        "ended": 3 / 4,
        "turns": pytest.approx((4 + 4 + 2) / 3),
        "viewed_first": 1 / 2,
        "patch_empty": pytest.approx(1 / 3),
        "tests_passed": 7 / 8,
    }


def test_an_environment_that_says_none_of_it_has_no_such_figures():
    assert "env" not in figures([made(0, [1, 0])], 2)


def test_an_item_keeps_what_was_last_told_and_no_nonsense():
    told = sample(0, "x", 1.0)
    told.calls = [
        ToolCall("a", "o", "ok", {"turn": 1, "viewed_first": None, "evaluation": 3, "secret": "s"}),
        ToolCall("a", "o", "ok", {"turn": 2, "patch_bytes": float("inf"), "tests_passed": "all"}, done=True),
    ]
    assert signals_of(told) == {"turn": 2, "ended": True}
    row = made(0, [1], {"turn": 2, "ended": True}).as_row()
    assert read_item(json.loads(json.dumps(row)), "here").signals == [{"turn": 2, "ended": True}]
    for wrong in ([{"turn": "2"}], [{}, {}], "x", [3]):
        with pytest.raises(DataError, match="here"):
            read_item(row | {"signals": wrong}, "here")
