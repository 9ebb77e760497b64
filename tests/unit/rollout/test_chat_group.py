"""A messages protocol from the documentation, on a real model: groups as an actor runs them, without its process."""

from __future__ import annotations

import pytest

from miniatures.toy.model import build_model
from miniatures.toy.tokenizer import EOS_ID, build_tokenizer
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.engines.torch_engine import TorchEngine
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.rollout.protocols.chat_format import chat_formats
from openrlhf_tir.types import KEEP, GroupKey, Task

from .documented_game import Games, Guessed, game_config

pytestmark = pytest.mark.extended


@pytest.mark.slow
async def test_the_documentations_messages_protocol_plays_its_game_on_a_real_model(tmp_path):
    cfg = game_config(tmp_path, samples=12)
    tokenizer = build_tokenizer()
    codec = HfCodec(tokenizer)
    engine = TorchEngine(build_model(0), codec, cfg=cfg)
    games = Games(tmp_path)
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
