"""A messages protocol from the documentation, on a real model: groups as an actor runs them, without its process."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.engines.torch_engine import TorchEngine
from openrlhf_tir.miniatures.toy.model import build_model
from openrlhf_tir.miniatures.toy.tokenizer import EOS_ID, build_tokenizer
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.rollout.protocols.chat_format import chat_formats
from openrlhf_tir.types import KEEP, GroupKey, RewardParts, Task
from openrlhf_tir.user_code import plugins
from tests.contract.docs.docs_blocks import block


class Game:
    """A session of the documentation's environment, without its server."""

    server = None

    def __init__(self, cls, task, seed) -> None:
        self._env, self._task, self._seed = cls(), task, seed

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self._env.close()

    async def reset(self):
        return await self._env.reset(self._task, self._seed)

    async def step(self, action, *, step_id):
        s = await self._env.step(action, 1.0)
        return StepReply(
            session_id="s",
            step_id=step_id,
            observation=s.observation,
            reward=s.reward,
            done=s.done,
            outcome=s.outcome,
            signals=s.signals,
        )


class Games:
    def __init__(self, cls) -> None:
        self.cls = cls

    def session(self, env, task, *, seed):
        return Game(self.cls, task, seed)


class Guessed:
    async def score(self, trajectory, task):
        won = float(sum(call.reward or 0 for call in trajectory.calls))
        return RewardParts(won, won > 0, {})


@pytest.mark.slow
async def test_the_documentations_messages_protocol_plays_its_game_on_a_real_model(tmp_path):
    (tmp_path / "asks.py").write_text(block("protocols.md", "python", "class Asks"))
    (tmp_path / "guess.py").write_text(block("environments.md", "python", "class GuessEnv"))
    cfg = Config(
        env={
            "name": "guess",
            "protocol": f"{tmp_path / 'asks.py'}:Asks",
            "options": {"hint": " Try again."},
            "max_calls": 2,
        },
        rollout={"n_samples_per_prompt": 12, "batch_size": 4, "max_new_tokens": 100, "drift_check": 1.0},
        data={"apply_chat_template": True, "max_len": 224},
    )
    tokenizer = build_tokenizer()
    codec = HfCodec(tokenizer)
    engine = TorchEngine(build_model(0), codec, cfg=cfg)
    games = Games(plugins.load(plugins.ENVIRONMENT, f"{tmp_path / 'guess.py'}:GuessEnv"))
    runner = GroupRunner(
        cfg, engine, codec, games, Guessed(), lambda group: KEEP, chat_formats=chat_formats(cfg, codec, tokenizer)
    )
    meta, group = await runner.run(GroupKey(0, 0), Task("Guess.", "-", "guess", {"high": 3}))
    assert meta.failed is None and meta.failures == {} and len(group.valid) == 12
    opening = "\nI think of a number between 1 and 3.\nAssistant:"
    replies = set()
    for t in group.valid:
        assert codec.decode(t.prompt_ids) == "User: Guess.\n" and (t.segments[0].source, t.segments[0].text) == (
            "env",
            opening,
        )
        written = [s for s in t.segments[1:] if s.source == "env"]
        replies |= {s.text for s in written}
        assert len(written) == len(t.calls) and all(EOS_ID not in s.token_ids for s in written)
        assert all(s.token_ids.tolist() == codec.encode(s.text) for s in written)
        sampled = [s.text for s in t.segments if s.source == "model"]
        assert all(text[-1].isdigit() for text in sampled[: len(t.calls)]), "a digit ended the message"
    assert replies and replies <= {
        f"\n```output\n{said} Try again.\n\n```\n\n\n" for said in ("higher", "lower", "Correct.", "That is no number.")
    }
