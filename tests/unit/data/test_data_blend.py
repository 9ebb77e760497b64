"""Blending: shares of environments and probabilities of data sets, from rows to the order of issued prompts."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.config import Config, Data
from openrlhf_tir.data import PromptSet, PromptStream, lanes_of, load_prompts
from openrlhf_tir.data.stream import PromptLane
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.types import Task

A, B = range(0, 6), range(6, 30)


def shared(seed=0, episodes=1, share=0.25):
    """6 prompts of env a, 24 of b."""
    return PromptStream(30, seed, True, episodes, [PromptLane(A, "a", share), PromptLane(B, "b", 1 - share)])


def drain(stream):
    return list(iter(stream.next, None))


def test_any_batch_of_prompts_in_a_row_has_each_environments_share():
    envs = ["a" if p in A else "b" for _, p in drain(shared(episodes=5))]
    assert all(envs[i : i + 8].count("a") == 2 for i in range(len(envs) - 8))


@pytest.mark.slow
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(3, 40))
def test_shares_hold_to_within_one_group_over_any_beginning(shares, n):
    stream = PromptStream(
        len(shares), 0, True, 10**6, [PromptLane([i], f"e{i}", float(s)) for i, s in enumerate(shares)]
    )
    counts = Counter(stream.next()[1] for _ in range(n))
    assert all(abs(counts[i] - n * s / sum(shares)) <= len(shares) - 1 for i, s in enumerate(shares))


def test_one_that_is_through_begins_its_next_pass_and_the_stream_ends_when_all_are():
    """a is through after 24 prompts, b after 32: by then a is in its second pass. Nothing is issued twice in a pass."""
    issued = drain(shared())
    assert len(set(issued)) == len(issued) == 32
    assert {p for epoch, p in issued if epoch == 0} == {*A, *B}
    assert [epoch for epoch, p in issued if p in A] == [0] * 6 + [1] * 2


@pytest.mark.slow
@given(taken=st.integers(0, 90), seed=st.integers(0, 3))
def test_a_restored_blend_goes_on_exactly(taken, seed):
    def blend():
        lanes = [
            PromptLane(range(5), "a", 1.0, 0, 2.0),
            PromptLane(range(5, 9), "a", 1.0, 1, 1.0),
            PromptLane(range(9, 20), "b", 2.0, 0, 2.0),
        ]
        return PromptStream(20, seed, True, 3, lanes)

    whole, resumed = blend(), blend()
    for i in range(taken):
        whole.next()
        if i % 7 == 0:
            whole.in_place_of(2)
    resumed.restore(json.loads(json.dumps(whole.state())))
    assert drain(resumed) == drain(whole)


@pytest.mark.slow
def test_data_sets_are_drawn_by_their_probability_seeded():
    def drawn(seed):
        return [
            p < 10
            for _, p in drain(
                PromptStream(
                    200,
                    seed,
                    True,
                    10,
                    [PromptLane(range(10), dataset=0, prob=0.3), PromptLane(range(10, 200), dataset=1, prob=0.7)],
                )
            )
        ]

    one, other = drawn(1), drawn(2)
    assert one == drawn(1) and one != other
    assert sum(one) / len(one) == pytest.approx(0.3, abs=0.03)


def test_another_prompt_in_place_of_a_dropped_one_is_of_its_environment_and_does_not_disturb_the_shares():
    stream = shared(episodes=9)
    before = [stream.next() for _ in range(8)]
    (_, dropped) = next((e, p) for e, p in before if p in A)
    another = stream.in_place_of(dropped)
    assert another[1] in A and another not in before
    envs = ["a" if p in A else "b" for _, p in (stream.next() for _ in range(80))]
    assert envs.count("a") == 20


def test_without_shares_nothing_takes_the_place_of_a_dropped_prompt():
    assert PromptStream(4, 0).in_place_of(1) is None


def test_a_position_of_another_blend_is_refused():
    with pytest.raises(ConfigError, match=r"'a', 0\.25.*'a', 0\.5"):
        shared(share=0.5).restore(shared().state())


def rows(path, *envs):
    path.write_text(
        "".join(
            json.dumps({"prompt": f"{path.stem}{i}", "label": "1"} | ({"env": e} if e else {})) + "\n"
            for i, e in enumerate(envs)
        )
    )
    return str(path)


def test_prompts_of_several_data_sets_know_theirs_and_their_environments_template(tmp_path):
    data = Data(
        prompt_dataset=[rows(tmp_path / "x.jsonl", "a", "b"), rows(tmp_path / "y.jsonl", "a")], input_template="Q {}"
    )
    prompts = load_prompts(data, templates_of={"a": "Q {}", "b": "Play {}"})
    assert [(t.prompt, t.env) for t in prompts.tasks] == [
        ("Q x0", "a"),
        ("Play x1", "b"),
        ("Q y0", "a"),
    ] and list(prompts.dataset_of) == [0, 0, 1]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (None, "line 2 .*'env'.*a, b"),
        ("c", r"line 2: env = 'c' .*a, b\..*\[envs.c\]"),
    ],
)
def test_a_row_without_one_of_the_environments_is_refused_by_its_line(tmp_path, env, said):
    with pytest.raises(DataError, match=said):
        load_prompts(Data(prompt_dataset=rows(tmp_path / "x.jsonl", "a", env)), templates_of={"a": None, "b": None})


def blend(shares, probs=None, envs=("a", "b", "b")):
    tasks = [Task("", "", env) for env in envs]
    cfg = Config(envs={name: {"share": share} for name, share in shares.items()})
    lanes = lanes_of(PromptSet(tasks, dataset_of=[0, 0, 1]), cfg.environments, probs)
    return [lane._replace(prompts=list(lane.prompts)) for lane in lanes]


def test_lanes_are_environments_by_data_sets():
    assert blend({"a": None, "b": None}) == [PromptLane([0, 1, 2], "", 1.0)]
    assert blend({"a": 1, "b": 3}) == [PromptLane([0], "a", 1.0), PromptLane([1, 2], "b", 3.0)]
    assert blend({"a": 1, "b": 3}, [0.2, 0.8]) == [
        PromptLane([0], "a", 1.0, 0, 0.2),
        PromptLane([1], "b", 3.0, 0, 0.2),
        PromptLane([2], "b", 3.0, 1, 0.8),
    ]
    assert blend({"a": 0, "b": 1}) == [PromptLane([1, 2], "b", 1.0)], "a share of 0: evaluated, never trained"


def test_a_share_without_a_prompt_is_refused():
    with pytest.raises(DataError, match=r"envs.c.share = 1.*'c'"):
        blend({"a": 1, "b": 1, "c": 1})
