"""A trace of the lesson `mending` as an episode: SkyRL's turns, the toy chat template, the caller's environment."""

from __future__ import annotations

from collections.abc import Sequence

from miniatures.toy.lessons import mending
from miniatures.toy.tokenizer import build_tokenizer
from openrlhf_tir.config import Config
from openrlhf_tir.data.sft.tokens import SftRow
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols import make
from openrlhf_tir.rollout.protocols.chat_format import ChatFormat
from openrlhf_tir.types import Task, Trajectory

from .test_toy_lessons import Writes, text_of


async def episode_of(words: Sequence[int], question: str, env) -> Trajectory:
    """What comes of a model that writes these tokens, whatever it is answered."""
    tokenizer = build_tokenizer()
    cfg = Config(
        env={"name": "swe", "protocol": "skyrl", "max_calls": mending.TURNS, "output_max_tokens": mending.SHOWN},
        data={"apply_chat_template": True},
    )
    codec = HfCodec(tokenizer)
    chats = ChatFormat.of(cfg, cfg.env, codec, tokenizer)
    assert chats is not None
    task, protocol = chats.task(Task(question, "-")), make(cfg.env)
    episode = await run_episode(
        codec.encode_prompt(task.prompt),
        index=0,
        engine=Writes([*words]),
        env=env,
        codec=codec,
        protocol=protocol,
        limits=Limits(800, mending.SHOWN),
        request_id="r",
        renderer=chats.renderer(protocol, task),
    )
    assert episode.failed is None, episode.why
    return episode


async def played(trace: SftRow, question: str, env) -> Trajectory:
    """The trace's own words of the model through the turns; checks that what comes of it begins with the trace: what
    the environment says at the end is behind it, as nothing of the model's follows that could be learned."""
    written = [int(i) for i, weight in zip(trace.token_ids, trace.weights, strict=True) if weight > 0]
    episode = await episode_of(written, question, env)
    prompt = episode.prompt_ids.tolist()
    assert trace.token_ids[: len(prompt)].tolist() == prompt and not trace.weights[: len(prompt)].any()
    taught = len(trace.token_ids) - len(prompt)
    said, wanted = text_of(episode.token_ids[:taught]), text_of(trace.token_ids[len(prompt) :])
    assert said == wanted, f"{said!r}, and not {wanted!r}"
    assert (
        episode.is_model[:taught].tolist() == (trace.weights[len(prompt) :] > 0).tolist()
        and not episode.is_model[taught:].any()
    )
    return episode
