"""Reward functions written for verl and TRL run as they are: recognised by their signature, called as there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from openrlhf_tir.config import Reward
from openrlhf_tir.config.integrations.reward_signatures import UnknownSignature, convention_of
from openrlhf_tir.errors import ConfigError, RewardError
from openrlhf_tir.rewards import load, load_group
from openrlhf_tir.rewards.foreign import _messages
from openrlhf_tir.rewards.own import GroupReward, OwnReward
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.types import Chat, Group, GroupKey, Task
from tests.unit.rewards.reward_fakes import in_run, says, trajectory

ROW = {
    "data_source": "openai/gsm8k",
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"index": 3, "split": "train"},
    "level": 2,
}
TASK = Task("6*7?", "42", extra=ROW)


def own(tmp_path, text: str, name: str = "compute_score") -> str:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return f"{path}:{name}"


def scored(name: str, task: Task = TASK, text: str = "It is 42", **settings):
    return OwnReward(name)(says(text), task, in_run(**settings))[0]


SIGNATURES = {
    "ours": ["trajectory, task, context", "t, _task, c", "trajectory, task, context, scale=1.0"],
    "verl": [
        "data_source, solution_str, ground_truth, extra_info",
        "data_source, solution_str, ground_truth, extra_info=None, **kwargs",
        "*, data_source, solution_str, ground_truth, extra_info",
        "ground_truth, solution_str, **kwargs",
        "solution_str, ground_truth, method='strict', format_score=0.0",
        "data_source, solution_str, ground_truth, extra_info, reward_router_address=None, reward_model_tokenizer=None",
    ],
    "verl_batch": ["data_sources, solution_strs, ground_truths, extra_infos", "solution_strs, ground_truths, **kwargs"],
    "trl": [
        "completions, **kwargs",
        "prompts, completions, answer, **kwargs",
        "prompts, completions, completion_ids, trainer_state, log_metric=None, **kwargs",
        "completions, ground_truth, extra_info=None, **kwargs",
        "*, completions, level",
    ],
}


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in SIGNATURES.items() for shape in shapes])
@pytest.mark.parametrize("prefix", ["", "async "])
def test_the_names_of_the_parameters_determine_the_convention(name, shape, prefix):
    space: dict = {}
    exec(f"{prefix}def f({shape}): pass", space)
    convention = convention_of(space["f"], options=())
    assert convention.name == name and convention.is_async == bool(prefix)


@pytest.mark.parametrize(
    "shape",
    [
        "",
        "*args",
        "**kwargs",
        "*args, **kwargs",
        "prompt, completion, answer",
        "response, label, info",
        "a, b",
        "a, b, c, d",
        "queries, prompts, labels",
        "completions, solution_str, ground_truth",
        "solution_str, solution_strs",
        "data_source, solution_str, ground_truth, extra_info, tokenizer",
        "solution_str, ground_truth, /, extra_info=None",
        "completions, environments",
        "self, data_source, solution_str, ground_truth, extra_info",
    ],
)
def test_an_ambiguous_or_unknown_signature_is_refused_with_the_supported_ones(shape):
    space: dict = {}
    exec(f"def f({shape}): pass", space)
    with pytest.raises(UnknownSignature):
        convention_of(space["f"], options=())


def test_a_value_in_the_options_is_what_verl_calls_reward_kwargs(tmp_path):
    name = own(
        tmp_path, "def compute_score(data_source, solution_str, ground_truth, extra_info, bonus):\n    return bonus\n"
    )
    with pytest.raises(UnknownSignature):
        convention_of(load(name), options=())
    assert scored(name, options={"bonus": 0.25}).reward == 0.25


def test_a_class_instance_and_a_partial_are_functions_too(tmp_path):
    text = (
        "import functools\n"
        "class Judge:\n"
        "    async def __call__(self, completions, level, **kwargs):\n        return [level[0] + len(completions[0])]\n"
        "judge = Judge()\n"
        "def score(solution_str, ground_truth, scale, **kwargs):\n    return scale * (ground_truth in solution_str)\n"
        "doubled = functools.partial(score, scale=2)\n"
    )
    assert scored(own(tmp_path, text, "judge")).reward == 2 + 8
    assert scored(own(tmp_path, text, "doubled")).reward == 2.0


VERL_RESULTS = {
    "1": (1.0, True, {}),
    "True": (1.0, True, {}),
    "-0.5": (-0.5, False, {}),
    "np.float64(0.5)": (0.5, True, {}),
    "np.array(0.5)": (0.5, True, {}),
    "np.array([0.5])": (0.5, True, {}),
    "{'score': -1.0, 'acc': True, 'pred': '42', 'format ok': 1}": (
        -1.0,
        True,
        {"score": -1.0, "acc": 1.0, "format_ok": 1.0},
    ),
    "{'score': 1.0, 'acc': 0.0}": (1.0, False, {"score": 1.0, "acc": 0.0}),
    "{'score': 0.0}": (0.0, False, {"score": 0.0}),
}


@pytest.mark.parametrize("result", VERL_RESULTS)
@pytest.mark.parametrize("prefix", ["", "async "])
def test_verl_may_return_a_number_or_a_dict_with_score(tmp_path, result, prefix):
    shape = "data_source, solution_str, ground_truth, extra_info"
    text = f"import numpy as np\n{prefix}def compute_score({shape}):\n    return {result}\n"
    assert scored(own(tmp_path, text)) == VERL_RESULTS[result]


@pytest.mark.parametrize(
    "result", ["None", "'1'", "{'reward': 1.0}", "float('nan')", "10**400", "{'score': 'high'}", "[1.0, 2.0]", "{}"]
)
def test_a_result_that_verl_would_not_accept_is_an_error_and_never_a_zero(tmp_path, result):
    with pytest.raises(RewardError, match=r"mine\.py:1"):
        scored(
            own(
                tmp_path,
                f"def compute_score(solution_str, **kwargs): return {result}\n".replace(
                    "solution_str", "solution_str, ground_truth"
                ),
            )
        )


def test_verl_is_given_the_columns_of_the_row(tmp_path):
    text = (
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    assert data_source == 'openai/gsm8k' and solution_str == 'It is 42' and ground_truth == '42'\n"
        "    assert extra_info['index'] == 3 and extra_info['num_turns'] == 2\n"
        "    assert extra_info['rollout_reward_scores'] == {}\n"
        "    extra_info['index'] = 99\n"
        "    return 1.0\n"
    )
    name = own(tmp_path, text)
    assert scored(name).reward == scored(name).reward == 1.0 and ROW["extra_info"]["index"] == 3


def test_a_ground_truth_keeps_its_type_and_a_row_without_one_gives_its_label(tmp_path):
    text = (
        "def compute_score(solution_str, ground_truth, **kwargs):\n"
        "    return {'score': 1, 'list': isinstance(ground_truth, list), 'text': ground_truth == '42'}\n"
    )
    name = own(tmp_path, text)
    assert scored(name, Task("", "[1]", extra={"reward_model": {"ground_truth": [1]}})).parts["list"] == 1
    assert scored(name, Task("", "42", extra={"reward_model": '{"style": "rule"}'})).parts["text"] == 1


def test_the_batch_form_is_called_with_lists(tmp_path):
    text = (
        "def compute_score(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):\n"
        "    assert len(data_sources) == len(solution_strs) == 1\n"
        "    return [{'score': float(g in s), 'n': e['index']}\n"
        "            for s, g, e in zip(solution_strs, ground_truths, extra_infos)]\n"
    )
    assert scored(own(tmp_path, text)) == (1.0, True, {"score": 1.0, "n": 3.0})


def test_trl_is_given_lists_with_the_columns_of_the_row(tmp_path):
    text = (
        "def reward(prompts, completions, level, completion_ids, trainer_state, log_metric, log_extra, **kwargs):\n"
        "    assert prompts == ['6*7?'] and completions == ['It is 42'] and level == [2]\n"
        "    assert completion_ids == [[ord(c) for c in 'It is 42']] and trainer_state.global_step == 0\n"
        "    assert kwargs['data_source'] == ['openai/gsm8k'] and 'prompt' not in kwargs\n"
        "    log_metric('mean length', 8)\n"
        "    log_extra('found', ['42'])\n"
        "    return [0.5]\n"
    )
    assert scored(own(tmp_path, text, "reward")) == (0.5, True, {"mean_length": 8.0})


def test_a_chat_of_trl_has_messages_and_a_text_has_texts(tmp_path):
    text = (
        "def reward(prompts, completions, **kwargs):\n"
        "    last = completions[0][-1]['role'] == 'assistant'\n"
        "    return [len(prompts[0]) + 10 * len(completions[0]) + 100 * last]\n"
    )
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    name = own(tmp_path, text, "reward")
    chat = trajectory(("model", "call"), ("env", "<tool>4</tool>"), ("model", "4"), calls=("ok",))
    assert OwnReward(name)(chat, Task("rendered", "", chat=Chat(messages)), in_run())[0].reward == 2 + 30 + 100
    with pytest.raises(RewardError):  # a text's completion is a string, which has no roles
        OwnReward(name)(chat, Task("text", "", chat=Chat(messages, of_text=True)), in_run())


def test_messages_of_trl_hold_calls_and_their_results():
    first = ("model", 'I add. <tool_call>{"name": "add"}</tool_call>')
    said = trajectory(first, ("env", "<tool>"), ("model", "It is 3."), calls=("ok",))
    calls = [{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a": 2}}]
    said.calls[0] = replace(said.calls[0], action=json.dumps(calls), observation="1\n3")
    assert _messages(said) == [
        {"role": "assistant", "content": "I add.", "tool_calls": [{"type": "function", "function": c} for c in calls]},
        {"role": "tool", "name": "add", "content": "1"},
        {"role": "tool", "name": "add", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]


def test_none_adds_nothing_and_is_counted(tmp_path):
    text = "def reward(completions, **kwargs):\n    return [None]\n"
    assert scored(own(tmp_path, text, "reward")) == (0.0, False, {"not_applicable": 1.0})


@pytest.mark.parametrize("result", ["1.0", "[1.0, 2.0]", "[]", "['1']", "[float('nan')]", "None", "{'a': 1}"])
def test_a_result_that_trl_would_not_accept_is_an_error(tmp_path, result):
    with pytest.raises(RewardError, match=r"mine\.py:1"):
        scored(own(tmp_path, f"def reward(completions, **kwargs): return {result}\n", "reward"))


def test_a_group_reward_of_trl_sees_all_completions_of_a_prompt(tmp_path):
    text = (
        "def reward(completions, level, **kwargs):\n"
        "    longest = max(map(len, completions))\n"
        "    return [None if len(c) == longest else n for c, n in zip(completions, level)]\n"
    )
    name = own(tmp_path, text, "reward")
    load_group(name)
    group = Group(GroupKey(0, 0), TASK, [says("a", index=0), says("abc", index=1)])
    assert GroupReward(name)(group, in_run()) == ([2.0, 0.0], [])


def test_an_error_in_the_function_is_reported_with_its_line(tmp_path):
    with pytest.raises(RewardError, match=r"mine\.py:3: ZeroDivisionError"):
        scored(
            own(
                tmp_path,
                "async def compute_score(solution_str, ground_truth, **kwargs):\n    n = 0\n    return 1 / n\n",
            )
        )


@pytest.mark.slow
async def test_rewards_of_several_conventions_are_added_by_their_weights(tmp_path):
    text = (
        "def right(data_source, solution_str, ground_truth, extra_info):\n"
        "    return float(ground_truth in solution_str)\n"
        "async def short(completions, **kwargs):\n    return [-len(c) / 10 for c in completions]\n"
        "def mine(trajectory, task, context):\n    return float(task.extra['level'])\n"
    )
    names = [own(tmp_path, text, name) for name in ("right", "short", "mine")]
    weights = dict(zip(names, (1.0, 0.5, 2.0), strict=True))
    pool = RewardPool(Reward(weights=weights), decode_plain=lambda ids: "42" * (len(ids) == 8))
    try:
        parts = await pool.score(says("It is 42"), TASK)
    finally:
        pool.close()
    assert parts.reward == pytest.approx(1.0 + 0.5 * -0.2 + 2 * 2.0) and parts.correct
    assert parts.parts["right"] == 1.0 and parts.parts["short"] == pytest.approx(-0.2) and parts.parts["mine"] == 2.0


def test_a_wrong_signature_is_reported_with_file_and_line_before_a_run(tmp_path):
    with pytest.raises(ConfigError, match=r"mine\.py:2.*prompt"):
        load(own(tmp_path, "\ndef reward(prompt, completion, answer): return 1\n", "reward"))
