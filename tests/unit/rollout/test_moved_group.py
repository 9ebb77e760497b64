"""Groups whose responses move between two engines while they are written, on a real model: the group is the one that it
would have been."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from miniatures.toy.model import build_model
from miniatures.toy.tokenizer import build_tokenizer
from openrlhf_tir.engines.codec import HfCodec, text_of
from openrlhf_tir.engines.torch_engine import TorchEngine
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.rollout.protocols.chat_format import chat_formats
from openrlhf_tir.rollout.sequence_migration import SequenceMigration
from openrlhf_tir.types import KEEP, Group, GroupKey, Task

from .documented_game import Games, Guessed, game_config

pytestmark = [pytest.mark.extended, pytest.mark.slow]
KEY, MOVED_AT = GroupKey(0, 3), 4


class Greedy(TorchEngine):
    """Takes the likeliest token. With a `migration`, a response whose sample is odd moves to `lane` before its fifth
    token, in the middle of whatever it is."""

    migration: SequenceMigration | None = None
    lane: TorchEngine

    def _sample(self, prompt_ids, sampling, request_id, given_up):
        self.trajectory = request_id.rpartition("/")[0]
        return super()._sample(prompt_ids, replace(sampling, temperature=0.0), request_id, given_up)

    def _tokens_of(self, prompt_ids, sampling, seed):
        for n, drawn in enumerate(super()._tokens_of(prompt_ids, sampling, seed)):
            if n == MOVED_AT and self.migration and int(self.trajectory.partition("#")[2]) % 2:
                asyncio.run_coroutine_threadsafe(
                    self.migration.move(self.trajectory, "lane", self.lane), self.loop
                ).result()
            yield drawn


async def played(tmp_path, *, moves: bool, prompt: str) -> tuple[Group, SequenceMigration]:
    cfg = game_config(tmp_path, samples=4)
    tokenizer = build_tokenizer()
    codec = HfCodec(tokenizer)
    here, lane = (Greedy(build_model(0), codec, cfg=cfg) for _ in range(2))
    lane.version = 1
    migration = SequenceMigration(here, lambda prompt_ids, ids: text_of(codec, prompt_ids, ids))
    here.loop, here.lane = asyncio.get_running_loop(), lane
    here.migration = migration if moves else None
    games = Games(tmp_path)
    runner = GroupRunner(
        cfg,
        here,
        codec,
        games,
        Guessed(),
        lambda group: KEEP,
        chat_formats=chat_formats(cfg, codec, tokenizer),
        migration=migration,
    )
    _, group = await runner.run(KEY, Task(prompt, "-", "guess", {"high": 3}))
    return group, migration


@pytest.mark.parametrize("prompt", ["Guess.", "Say a number: 1 2 3", pytest.param("So?", marks=pytest.mark.long)])
async def test_tokens_log_probs_stops_and_tool_calls_are_those_of_a_response_that_stayed(tmp_path, prompt):
    stayed, _ = await played(tmp_path, moves=False, prompt=prompt)
    moved, migration = await played(tmp_path, moves=True, prompt=prompt)
    assert not migration.locations, "nothing is kept of a response that has ended"
    crossed = 0
    for a, b in zip(stayed.trajectories, moved.trajectories, strict=True):
        assert (a.failed, b.failed) == (None, None)
        assert [s.text for s in a.segments] == [s.text for s in b.segments]
        assert [s.token_ids.tolist() for s in a.segments] == [s.token_ids.tolist() for s in b.segments]
        assert (a.finish_reason, a.stop_reason, a.reward, a.parts) == (
            b.finish_reason,
            b.stop_reason,
            b.reward,
            b.parts,
        )
        assert [(c.action, c.observation, c.outcome, c.turn) for c in a.calls] == [
            (c.action, c.observation, c.outcome, c.turn) for c in b.calls
        ]
        for s, t in zip(a.segments, b.segments, strict=True):
            if s.source == "model":
                np.testing.assert_allclose(s.logprobs, t.logprobs, atol=1e-4)
        versions = np.concatenate([s.versions for s in b.segments if s.source == "model"])
        crossed += len(set(versions.tolist())) > 1
        assert b.index % 2 or not versions.any(), "who was not moved stayed"
        assert (np.diff(versions) >= 0).all(), "from the move on it is the lane's, turn after turn"
    assert crossed, "a response was cut in two"
