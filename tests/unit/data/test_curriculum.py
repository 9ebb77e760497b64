"""The curriculum's formulas by hand, its promise that no prompt starves, and that a restored one goes on exactly."""

from __future__ import annotations

import json
from collections import Counter
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_tir.config.settings import load
from openrlhf_tir.data import PromptSet, PromptStream
from openrlhf_tir.data.blend import curriculum_of
from openrlhf_tir.data.curriculum import AdaptivePass, Settings, chance_of_keeping
from openrlhf_tir.data.stream import PromptLane
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.types import PromptOutcome, Task


def lane(size, *, n=4, explore=0.25, half_life=32.0, seed=0, shuffle=True, limits=(0.0, 1.0)):
    return AdaptivePass(range(size), [seed], shuffle, Settings(n, explore, half_life, [limits] * size))


def chance(right, wrong, n, low=0.0, high=1.0):
    return float(
        chance_of_keeping(np.array([right], float), np.array([wrong], float), n, np.array([low]), np.array([high]))[0]
    )


def test_the_chance_of_being_kept_is_the_beta_binomials():
    """Nothing known, n = 2: k is 0 or 2 with 3/8 each. After 2 of 2, a = 2.5, b = .5: P(2) = 2.5 * 3.5 / (3 * 4), P(0)
    = .5 * 1.5 / (3 * 4) and 12/12 - 8.75/12 - .75/12 = 2.5/12."""
    assert chance(0, 0, 2) == pytest.approx(1 / 4)
    assert chance(2, 0, 2) == pytest.approx(2.5 / 12)
    assert chance(2, 0, 2, low=-1.0) == pytest.approx(1 - 8.75 / 12) and chance(
        2, 0, 2, low=-1.0, high=2.0
    ) == pytest.approx(1.0)
    assert chance(50, 50, 8) > 0.98 > 0.4 > chance(16, 0, 8)


def test_hundreds_of_samples_have_a_chance_too():
    """P(0) of 512 samples of a prompt that is nearly always solved is below the smallest float, and all chances were
    0."""
    assert chance(6000, 60, 512) == pytest.approx(0.9929, abs=0.002)
    assert chance(60, 6000, 512) == pytest.approx(chance(6000, 60, 512))


def test_what_is_known_fades_by_half_in_a_half_life():
    one = lane(2, half_life=2.0)
    one.learned([PromptOutcome(0, 3, 4), PromptOutcome(1, 0, 4)])
    assert (one.right.tolist(), one.wrong.tolist()) == ([3, 0], [1, 4])
    one.learned([])
    one.learned([PromptOutcome(0, 1, 1)])
    assert one.right[0] == pytest.approx(2.5) and one.wrong == pytest.approx([0.5, 2.0])


def test_prompts_of_middling_difficulty_are_chosen_and_the_others_now_and_then():
    """Of 40 prompts 10 are solved half of the time, 15 always, 15 never. After one pass most draws are of the ten."""
    truth = {i: 0.5 if i < 10 else float(i < 25) for i in range(40)}
    one, dice, drawn = lane(40, n=8, explore=0.2), np.random.default_rng(0), Counter()
    for batch in range(60):
        prompts = [one.next()[1] for _ in range(4)]
        one.learned([PromptOutcome(p, int(dice.binomial(8, truth[p])), 8) for p in prompts])
        drawn.update(p < 10 for p in prompts if batch >= 20)
    assert drawn[True] / drawn.total() > 0.7, "a quarter by chance"
    facts = one.facts()
    assert (
        facts["never_drawn"] == 0 and facts["explored"] == pytest.approx(0.2, abs=0.01) and facts["expected_kept"] > 0.8
    )
    assert facts["easy"] > 0.1 and facts["hard"] > 0.1


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1, 25),
    explore=st.sampled_from([0.1, 0.25, 0.5, 1.0]),
    seed=st.integers(0, 99),
    batch=st.integers(1, 7),
)
def test_no_prompt_starves_whatever_is_learned(size, explore, seed, batch):
    """Prompt 0 is always solved, and so never worth choosing: still it is drawn once in size / explore draws (and one
    batch, in which it waits)."""
    one, dice = lane(size, explore=explore, seed=seed), np.random.default_rng(seed)
    last = dict.fromkeys(range(size), 0)
    bound = ceil((size + batch) / explore) + 1
    for draw in range(1, 4 * bound):
        _, prompt = one.next()
        last[prompt] = draw
        assert draw - min(last.values()) <= bound
        if draw % batch == 0:
            one.learned([PromptOutcome(p, 4 if p == 0 else int(dice.integers(0, 5)), 4) for p in range(size)])
    assert one.facts()["longest_wait"] <= bound


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 30), taken=st.integers(0, 60), seed=st.integers(0, 99))
def test_a_restored_curriculum_goes_on_where_the_saved_one_stood(size, taken, seed):
    def play(stream, steps, begin=0):
        drawn = []
        for i in range(begin, begin + steps):
            key = stream.next()
            drawn.append(key)
            if key and i % 3 == 2:
                stream.learned([PromptOutcome(p, p % 5, 4) for _, p in filter(None, drawn[-3:])])
        return drawn

    by = Settings(4, 0.25, 8.0, [(0.0, 1.0)] * size)
    whole = PromptStream(size, seed, True, 3, curriculum=by)
    taken -= taken % 3  # a checkpoint keeps what ended within a batch as well: Source's
    play(whole, taken)
    other = PromptStream(size, seed, True, 3, curriculum=by)
    other.restore(json.loads(json.dumps(whole.state())))
    assert play(other, 20, taken) == play(whole, 20, taken)


def test_keys_are_never_repeated_and_the_stream_ends_after_as_many_draws_as_passes_have():
    stream = PromptStream(7, 0, True, 3, curriculum=Settings(4, 0.25, 8.0, [(0.0, 1.0)] * 7))
    keys = list(iter(stream.next, None))
    assert len(keys) == len(set(keys)) == 21 and not stream.more()
    for prompt in range(7):
        epochs = [e for e, p in keys if p == prompt]
        assert epochs == list(range(len(epochs)))


def test_a_prompt_whose_group_has_not_ended_is_not_drawn_again():
    one = lane(6)
    first = [one.next()[1] for _ in range(6)]
    assert sorted(first) == list(range(6))
    one.learned([PromptOutcome(first[2], 0, 0)])  # it failed: nothing is known of it, and it may come again
    assert one.next()[1] == first[2] and one.right.sum() == one.wrong.sum() == 0


def test_the_shares_of_environments_hold_with_a_curriculum():
    ranges = [(0.0, 1.0)] * 20
    stream = PromptStream(
        20,
        0,
        True,
        9,
        [PromptLane(range(15), "a", 3.0), PromptLane(range(15, 20), "b", 1.0)],
        Settings(4, 0.25, 8.0, ranges),
    )
    assert Counter(p < 15 for _, p in (stream.next() for _ in range(40))) == {True: 30, False: 10}
    assert stream.in_place_of(17)[1] >= 15
    assert set(stream.facts()) == {
        f"curriculum/{n}" for n in ("explored", "expected_kept", "easy", "hard", "never_drawn", "longest_wait")
    }


def test_a_checkpoint_with_another_curriculum_is_refused():
    off, on = PromptStream(5, 0), PromptStream(5, 0, curriculum=Settings(4, 0.25, 8.0, [(0.0, 1.0)] * 5))
    with pytest.raises(ConfigError, match=r"data\.curriculum = off, .*difficulty"):
        on.restore(off.state())
    with pytest.raises(ConfigError, match=r"data\.curriculum = difficulty, .*off"):
        off.restore(on.state())


def test_what_is_kept_is_what_the_environments_accuracy_filter_says(tmp_path):
    given = {"run_dir": str(tmp_path), "data.curriculum": "difficulty", "filter.accuracy_range": (0.1, 0.8)}
    prompts = PromptSet([Task("p", "0", "x")])
    assert curriculum_of(load(None, given), prompts).ranges == [(0.1, 0.8)]
    assert curriculum_of(load(None, {**given, "filter.names": []}), prompts).ranges == [(0.0, 1.0)]
    assert curriculum_of(load(None, {"run_dir": str(tmp_path)}), prompts) is None
