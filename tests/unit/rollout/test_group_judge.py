"""Group rewards, filters in order, and ZeroTIR's masks, as a rollout actor applies them."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import FilterError, RewardError
from openrlhf_tir.rewards import zerotir as zerotir_reward
from openrlhf_tir.rollout.group_judge import GroupJudge
from openrlhf_tir.types import CounterUpdate, Group, GroupKey, RunFacts, Task, ToolCall
from tests.unit.filters.test_filters import CLEAN
from tests.unit.rewards.reward_fakes import group, scored


class Here:
    """Workers that do the work on the spot."""

    async def run(self, function, *args):
        return function(*args)


def judge_of(**sections) -> GroupJudge:
    return GroupJudge(Config.model_validate({"actor": {"num_gpus_per_node": 1}, **sections}), Here())


def own(directory, **functions) -> dict[str, str]:
    path = directory / "mine.py"
    path.write_text("".join(f"def {name}(a, b):\n    {body}\n" for name, body in functions.items()))
    return {name: f"{path}:{name}" for name in functions}


async def test_a_group_reward_replaces_the_rewards_and_the_old_ones_stay_a_part(tmp_path):
    name = own(tmp_path, twice="return [2 * t.reward for t in a.valid]")["twice"]
    members = group(scored(1.0), scored(0.0, failed="timeout"), scored(0.0))
    verdict = await judge_of(reward={"group": name})(members)
    assert verdict.keep
    assert [t.reward for t in members.trajectories] == [2.0, 0.0, 0.0] and members.valid[0].parts["before_group"] == 1.0


async def test_rewards_are_shaped_before_the_group_compares_them(tmp_path):
    name = own(tmp_path, twice="return [2 * t.reward for t in a.valid]")["twice"]
    cut, whole = scored(1.0), scored(1.0)
    cut.finish_reason, whole.finish_reason = "length", "stop"
    members = group(cut, whole)
    await judge_of(reward={"group": name, "stop_properly_penalty_coef": 0.25}, filter={"names": []})(members)
    assert [t.reward for t in members.trajectories] == [0.5, 2.0]
    assert [t.parts["shaping"] for t in members.trajectories] == [-0.75, 0.0]


async def test_otc_remembers_the_fewest_calls_of_a_prompt():
    """Right with 2 calls and with 1; in an earlier epoch 0 sufficed: n = 0 is the cosine of both."""
    two, one = scored(1.0), scored(1.0)
    two.calls, one.calls = [ToolCall("a", "", "ok")] * 2, [ToolCall("a", "", "ok")]
    judge = judge_of(reward={"group": "otc"}, filter={"names": []})
    fresh = group(two, one)
    await judge(fresh)
    assert fresh.changes == [CounterUpdate("prompt", "otc_fewest_calls", "lowest", 1.0)]
    assert one.reward == pytest.approx(1.0) and two.reward < 1.0
    again = Group(GroupKey(1, 0), Task("", "42", run=RunFacts(prompt={"otc_fewest_calls": 0.0})), [scored(1.0)])
    again.valid[0].calls = [ToolCall("a", "", "ok")]
    await judge(again)
    assert again.valid[0].reward == pytest.approx(0.8090169943749475)  # cos(pi / 5)


async def test_a_group_that_is_all_right_is_kept_when_the_filter_is_on_rewards():
    members = group(scored(1.0, reward=3.0), scored(1.0, reward=-7.0))
    assert (await judge_of()(members)).reason == "accuracy_high"
    by_reward = judge_of(filter={"names": ["reward", "zero_variance"], "reward_range": (-10.0, 2.5)})
    assert (await by_reward(members)).keep
    assert (await by_reward(group(scored(1.0, reward=1.0), scored(0.0, reward=1.0)))).reason == "zero_variance"
    assert (await by_reward(group(scored(0.0, reward=3.0), scored(0.0, reward=2.9)))).reason == "reward_high"


async def test_without_filters_every_group_is_kept():
    assert (await judge_of(filter={"names": []})(group(scored(1.0), scored(1.0)))).keep


async def test_filters_are_asked_in_their_order_own_ones_too(tmp_path):
    name = own(tmp_path, odd="return (False, b['why'])")["odd"]
    members = group(scored(1.0), scored(1.0))
    for names, reason in (([name, "accuracy"], "odd_one"), (["accuracy", name], "accuracy_high")):
        assert (await judge_of(filter={"names": names, "options": {"why": "odd_one"}})(members)).reason == reason


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return (False, '')", r"filter\.names = .*mine\.py:1: (?!.*'')"),
        (
            "return (False, 'a b/c')",
            r"mine\.py:1: .*'a b/c'",
        ),
        ("return True", r"mine\.py:1: .*True \(bool\)"),
        ("return a.nothing", r"mine\.py:2: AttributeError"),
    ],
)
async def test_a_filter_that_is_wrong_says_file_and_line(tmp_path, body, said):
    name = own(tmp_path, odd=body)["odd"]
    with pytest.raises(FilterError, match=said):
        await judge_of(filter={"names": [name]})(group(scored(1.0)))


@pytest.mark.parametrize(
    ("body", "said"),
    [("return True", r"filter\.sample = .*mine\.py:1: .*True"), ("return 'a b/c'", r"mine\.py:1: .*'a b/c'")],
)
async def test_a_sample_filter_must_give_a_reason_that_names_a_metric(tmp_path, body, said):
    name = own(tmp_path, odd=body)["odd"]
    with pytest.raises(FilterError, match=said):
        await judge_of(filter={"names": [], "sample": name})(group(scored(1.0)))


async def test_a_group_reward_that_fails_says_file_and_line(tmp_path):
    name = own(tmp_path, odd="return [1.0]")["odd"]
    with pytest.raises(RewardError, match=r"mine\.py:1: .*1 .*2 "):
        await judge_of(reward={"group": name})(group(scored(1.0), scored(0.0)))


def zerotir_sample(correct: float, **facts):
    t = scored(correct, reward=correct)
    t.parts |= {**CLEAN, "answer_rewards": correct, **facts}
    return t


def zerotir_judge() -> GroupJudge:
    return GroupJudge(load("zerotir_7b", {"actor.model_name_or_path": "x", "data.prompt_dataset": "x"}), Here())


async def test_the_zerotir_recipe_masks_cut_off_and_faked_samples_and_keeps_their_group():
    members = group(
        zerotir_sample(1.0),
        zerotir_sample(0.0),
        zerotir_sample(0.0, truncated=1.0),
        zerotir_sample(1.0, output_count=3.0),
    )
    assert (await zerotir_judge()(members)).keep
    assert [t.masked for t in members.trajectories] == ["", "", "cut_off", "faked_output"]


async def test_the_zerotir_recipe_drops_a_group_whose_verifiers_failed_or_that_has_nothing_to_train():
    timed_out = [zerotir_sample(0.0, verify_timeout=1.0) for _ in range(2)]
    assert (
        await zerotir_judge()(group(zerotir_sample(1.0), zerotir_sample(0.0), *timed_out))
    ).reason == "verifiers_failed"
    masked = [zerotir_sample(1.0, other=1.0), zerotir_sample(0.0, truncated=1.0)]
    assert (await zerotir_judge()(group(*masked))).reason == "all_masked"


def test_the_masks_read_what_the_zerotir_reward_records():
    """A part that the reward no longer records would fail every group."""
    facts, flags, rules = zerotir_reward.Facts("x", "stop", 1), zerotir_reward.Flags(), zerotir_reward.FIXED
    checked = zerotir_reward.check_format(facts, flags, rules)
    record = zerotir_reward.score(facts, flags, rules, checked, verdicts=(0.0, 0.0), repeated=0.0)
    assert set(CLEAN) <= set(record)
