"""Experts of a mixture along an episode: each token keeps those with which it was first computed."""

from __future__ import annotations

import pickle

import numpy as np

from openrlhf_tir.types import Completion, Trajectory

from .test_episode import ANSWER, CODE, PlayedEngine, PlayedEnv, episode


class MixtureEngine(PlayedEngine):
    """Gives the token at position p the expert p + 70 * turn: so it shows in which turn it was computed."""

    def __init__(self, *answers) -> None:
        super().__init__(*answers)
        self.known: list[int] = []

    async def generate(self, token_ids, sampling, *, request_id) -> Completion:
        turn = len(self.known)
        self.known.append(sampling.experts_known)
        completion = await super().generate(token_ids, sampling, request_id=request_id)
        positions = np.arange(sampling.experts_known, len(token_ids) + len(completion.token_ids) - 1)
        experts = (positions + 70 * turn).astype(np.uint8).reshape(-1, 1, 1)
        return Completion(
            completion.token_ids, completion.logprobs, completion.versions, completion.text,
            completion.finish_reason, completion.stop_reason, experts=experts,
        )  # fmt: skip


async def test_a_later_turn_asks_for_the_last_token_and_the_environments_and_older_tokens_keep_theirs():
    """A prompt of 1 token, 9 + 13 sampled, 20 of the environment, 18 sampled: 61, of which the last has no experts."""
    engine = MixtureEngine(*CODE, ANSWER)
    trajectory = await episode(engine, PlayedEnv("2\n"))
    assert engine.known == [0, 9, 22]
    assert trajectory.experts is not None and trajectory.experts.shape == (60, 1, 1)
    expected = [*range(9), *(70 + p for p in range(9, 22)), *(140 + p for p in range(22, 60))]
    assert trajectory.experts[:, 0, 0].tolist() == expected


async def test_an_engine_that_returns_no_experts_leaves_none():
    trajectory = await episode(PlayedEngine(("ab", None)), PlayedEnv())
    assert trajectory.experts is None


def test_experts_of_tokens_that_have_some_are_ignored_and_a_gap_is_not_filled():
    trajectory = Trajectory(0, np.arange(3))
    trajectory.add_experts(np.array([[[1]], [[2]]], np.uint8), first=0)
    trajectory.add_experts(np.array([[[8]], [[9]]], np.uint8), first=1)
    assert trajectory.experts is not None and trajectory.experts[:, 0, 0].tolist() == [1, 2, 9]
    trajectory.add_experts(np.array([[[5]]], np.uint8), first=7)
    trajectory.add_experts(None, first=3)
    assert len(trajectory.experts) == 3


def test_a_stored_trajectory_has_its_experts_in_their_compact_type():
    trajectory = Trajectory(0, np.arange(3))
    trajectory.add_experts(np.array([[[1]], [[255]]], np.uint8), first=0)
    stored = pickle.loads(pickle.dumps(trajectory))
    assert stored.experts.dtype == np.uint8 and stored.experts[:, 0, 0].tolist() == [1, 255]
