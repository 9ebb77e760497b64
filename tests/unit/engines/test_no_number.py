"""A completion from outputs that are no numbers is an engine's failure, and no sample. A stand-in for AsyncLLM."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.errors import EngineError
from openrlhf_tir.types import Sampling

pytestmark = pytest.mark.slow  # importing vLLM


class FakeLlm:
    """Samples token 7 with log-prob -1, and one with what it was given."""

    class model_config:
        max_model_len = 100
        get_vocab_size = staticmethod(lambda: 50)

    def __init__(self, last: float) -> None:
        self.logprobs = [-1.0, last]

    output_processor = SimpleNamespace(request_states={})

    async def add_request(self, request_id, prompt, params, priority):
        from vllm.logprobs import FlatLogprobs
        from vllm.outputs import RequestOutput
        from vllm.v1.engine.output_processor import RequestOutputCollector

        logprobs = FlatLogprobs()
        for logprob in self.logprobs:
            logprobs.append_fast([7], [logprob], [1], [None])
        output = SimpleNamespace(
            token_ids=[7] * len(self.logprobs),
            logprobs=logprobs,
            text="xx",
            finish_reason="length",
            stop_reason=None,
        )
        collector = RequestOutputCollector(params.output_kind, request_id)
        collector.put(RequestOutput(request_id, None, list(prompt["prompt_token_ids"]), None, [output], True))
        return collector


@pytest.mark.parametrize("value", [math.nan, -math.inf])
async def test_an_engine_whose_outputs_are_no_numbers_is_broken_and_returns_none_of_them(value):
    """Seen on the real one: its next answers are no numbers either, by whatever weights, as their KV cache is none."""
    engine = VllmEngine(FakeLlm(value), "model", None, 3, Config())
    fact = rf" 2 .*\br1\b.* {value} .* 3: "
    with pytest.raises(EngineError, match=fact):
        await engine.generate([1, 2], Sampling(2), request_id="r1")
    with pytest.raises(EngineError, match=fact):
        await engine.generate([1, 2], Sampling(2), request_id="r2")
    with pytest.raises(EngineError, match=fact):
        await engine.alive()


async def test_numbers_are_returned():
    completion = await VllmEngine(FakeLlm(-2.0), "model", None, 3, Config()).generate(
        [1, 2], Sampling(2), request_id="r1"
    )
    assert completion.logprobs.tolist() == [-1.0, -2.0]
