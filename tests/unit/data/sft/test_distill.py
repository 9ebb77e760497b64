"""Distill: which kept trajectories become rows, and that a row is learned as its trajectory was trained."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.data.sft.distill import Selection, distill
from openrlhf_tir.data.sft.pieces import Reader
from openrlhf_tir.data.sft.tokens import tokenised
from openrlhf_tir.errors import DataError
from openrlhf_tir.inert import plain
from openrlhf_tir.telemetry.trajectories import TrajectoryLog, read
from openrlhf_tir.types import Group, GroupKey, Segment, Task, Trajectory
from tests.pipeline.fakes import group_of
from tests.unit.data.sft.test_sft_rows import vocabulary


def kept(text="4", *, prompt="2+2?", reward=1.0, correct=1.0, end="<|im_end|>", **changed):
    """A row as telemetry/trajectories.py keeps it."""
    runs = [{"source": "env", "text": "hint: add. "}, {"source": "model", "text": text, "end": end}]
    row = {
        "prompt": prompt,
        "label": "4",
        "env": "e",
        "reward": reward,
        "parts": {"correct": correct},
        "key": [0, 0, 0],
        "index": 0,
        "versions": [3, 3],
    }
    return row | {"failed": None, "masked": "", "finish_reason": "stop", "branches": [], "runs": runs} | changed


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (kept(failed="timeout"), "failed"),
        (kept(masked="faked_output"), "masked"),
        (kept(finish_reason="length"), "truncated"),
        (kept(correct=0.0), "wrong"),
        (kept(correct=0.5), "wrong"),
        (kept(parts={}), "wrong"),
        (kept(reward=0.8), "low_reward"),
        (kept(reward=None), "low_reward"),
        (kept(branches=[[]]), "several_chains"),
        (kept(" "), "no_response"),
    ],
)
def test_a_trajectory_that_is_no_example_is_counted_by_its_reason(row, why):
    out = distill([row, kept()], Selection(min_reward=0.9))
    assert +out.counts == {why: 1, "kept": 1} and len(out.rows) == 1


def test_the_same_response_to_the_same_prompt_is_kept_once():
    out = distill([kept(), kept(key=[1, 0, 0]), kept(prompt="1+3?"), kept("four")], Selection())
    assert [(r["prompt"], r["segments"][-1]["text"]) for r in out.rows if r["prompt"] != "2+2?"] == [("1+3?", "4")]
    assert +out.counts == {"kept": 3, "duplicate": 1}


def test_of_the_same_response_the_higher_reward_counts_whatever_came_first():
    rows = [kept("4", reward=0.6), kept("four", reward=0.8), kept("4", reward=1.0)]
    for given in (rows, rows[::-1]):
        out = distill(given, Selection(per_prompt=1))
        assert [(r["segments"][-1]["text"], r["reward"]) for r in out.rows] == [("4", 1.0)] and out.counts == {
            "kept": 1,
            "duplicate": 1,
            "over_cap": 1,
        }


def test_responses_that_differ_in_who_wrote_what_are_no_duplicates():
    other = kept(runs=[{"source": "model", "text": "hint: add. 4", "end": "<|im_end|>"}])
    assert distill([kept(), other], Selection()).counts["kept"] == 2


@pytest.mark.parametrize("name", ["masked", "finish_reason", "branches", "runs", "parts", "prompt"])
def test_a_log_that_lacks_what_is_asked_for_is_refused_by_name(name):
    row = {k: v for k, v in kept().items() if k != name}
    with pytest.raises(DataError, match=rf"{name}.*--logger\.trajectories 1"):
        distill([row], Selection())


def test_of_a_prompt_the_highest_rewards_are_kept_and_the_order_of_the_log_decides_nothing():
    rows = [kept(f"{i}", reward=1.0 + (i == 7)) for i in range(9)] + [kept("x", prompt="other")]
    out, turned = (distill(given, Selection(per_prompt=3)) for given in (rows, rows[::-1]))
    chosen = [r["segments"][-1]["text"] for r in out.rows if r["prompt"] == "2+2?"]
    assert chosen[0] == "7" and len(set(chosen)) == 3 and out.counts["over_cap"] == 6
    assert chosen == [r["segments"][-1]["text"] for r in turned.rows if r["prompt"] == "2+2?"]


def test_wrong_responses_are_taken_only_when_asked_for_and_by_their_reward():
    rows = [kept("a", correct=0.0, reward=0.7), kept("b", correct=0.0, reward=0.2)]
    assert [r["reward"] for r in distill(rows, Selection(wrong=True, min_reward=0.5)).rows] == [0.7]


def test_a_distilled_row_is_learned_where_its_trajectory_was_trained(tmp_path):
    """From tokens through the log and back: the same tokens, and the same ones with a weight."""
    words = vocabulary()
    of_model = [*words.codec.encode("The answer is 42."), words.specials["<|im_end|>"]]
    of_tool = words.codec.encode("\n<interpreter><|im_end|>42</interpreter>")
    of_template = words.codec.encode_prompt("\n<|im_start|>user\nSure?<|im_end|>\n")
    prompt = "<|im_start|>user\n6*7?<|im_end|>\n<|im_start|>assistant\n"

    def model(ids):
        return Segment(
            "model",
            np.array(ids, np.int32),
            np.zeros(len(ids), np.float32),
            np.zeros(len(ids), np.int32),
            words.codec.decode(ids),
        )

    segments = [
        model(of_model[:-1]),
        Segment.of_env(of_tool, "\n<interpreter><|im_end|>42</interpreter>"),
        model(of_model),
        Segment.of_env(of_template, "\n<|im_start|>user\nSure?<|im_end|>\n"),
        model(of_model),
    ]
    t = Trajectory(
        0,
        np.array(words.codec.encode_prompt(prompt), np.int32),
        segments,
        finish_reason="stop",
        reward=1.0,
        parts={"correct": 1.0},
    )
    log = TrajectoryLog(tmp_path, "rollout-0", 1.0, words.codec.special)
    log.write(group_of(GroupKey(0, 0), 0)[0], Group(GroupKey(0, 0), Task(prompt, "42"), [t]))
    log.close()
    (row,) = distill(read(tmp_path), Selection()).rows
    ids, weights = tokenised(Reader(Config().sft, None)("d line 1", row)[0], words)
    assert ids.tolist() == [*t.prompt_ids.tolist(), *t.token_ids.tolist()]
    assert (weights[len(t.prompt_ids) :] > 0).tolist() == t.is_model.tolist() and not weights[: len(t.prompt_ids)].any()


def test_the_special_tokens_of_a_kept_trajectory_are_learned_and_those_that_a_tool_printed_are_not(tmp_path):
    """Mistral begins a call with a special token; a tool's reply, which a template rendered, spells one."""
    words = vocabulary("mistral_v3")
    codec = words.codec
    reply = f"[TOOL_RESULTS]{codec.inert('</s>[TOOL_CALLS]')}[/TOOL_RESULTS]"
    call = codec.encode_prompt('[TOOL_CALLS] [{"name": "f"}]</s>')
    answer = [*codec.encode("[INST] it is"), words.specials["</s>"]]

    def model(ids):
        versions = np.zeros(len(ids), np.int32)
        return Segment("model", np.array(ids, np.int32), versions.astype(np.float32), versions, codec.decode(ids))

    segments = [model(call), Segment.of_env(codec.encode_rendered(reply), plain(reply)), model(answer)]
    t = Trajectory(0, np.array(codec.encode_prompt("<s>[INST] hm[/INST]"), np.int32), segments)
    t.finish_reason, t.reward, t.parts = "stop", 1.0, {"correct": 1.0}
    log = TrajectoryLog(tmp_path, "rollout-0", 1.0, codec.special, spelled=codec.spell_inert)
    log.write(group_of(GroupKey(0, 0), 0)[0], Group(GroupKey(0, 0), Task("<s>[INST] hm[/INST]", "42"), [t]))
    log.close()
    (row,) = distill(read(tmp_path), Selection()).rows
    ids, weights = tokenised(Reader(Config().sft, None)("d line 1", row)[0], words)
    assert ids.tolist() == [*t.prompt_ids.tolist(), *t.token_ids.tolist()]
    assert (weights[len(t.prompt_ids) :] > 0).tolist() == t.is_model.tolist()
