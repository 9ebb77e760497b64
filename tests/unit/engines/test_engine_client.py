"""What vLLM's app is answered by the stand-in for its AsyncLLM, and what of it a session keeps. vLLM itself answers in
tests/e2e/agents."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from openrlhf_tir.config import Config
from openrlhf_tir.engines.openai_app import EngineClient
from openrlhf_tir.engines.sessions import Sessions
from openrlhf_tir.engines.vllm_requests import VllmRequests
from openrlhf_tir.errors import WeightsUnverified

from .test_proof import delta

pytestmark = pytest.mark.slow  # importing vLLM


class Llm:
    """AsyncLLM that samples one token by version 0 and, after a push of version 1, as many as it is told."""

    def __init__(self, by_new_weights: int) -> None:
        self.requests = VllmRequests(self, 0, Config())
        self.by_new_weights = by_new_weights

    async def generate(self, prompt, params, request_id):
        yield SimpleNamespace(outputs=[delta(7)], prompt_token_ids=[1, 2], finished=False)
        self.requests.switch(1)
        last = delta(*range(self.by_new_weights), finish="stop")
        yield SimpleNamespace(outputs=[last], prompt_token_ids=[1, 2], finished=True)


@pytest.mark.parametrize("by_new_weights", [0, 2])
async def test_an_answer_that_was_recorded_before_its_push_was_found_unproved_costs_the_session(by_new_weights):
    llm = Llm(by_new_weights)
    client = EngineClient(llm, llm.requests)
    session = Sessions(idle_s=60).open()
    with session.request():
        params = SamplingParams(output_kind=RequestOutputKind.DELTA)
        outputs = [out async for out in client.generate({"prompt_token_ids": [1, 2]}, params, "a")]
    assert len(outputs) == 2 and len(session.trace.chains) == 1
    llm.requests.void(1)  # another push follows
    codec = SimpleNamespace(decode=str)
    if by_new_weights:
        with pytest.raises(WeightsUnverified):
            session.trace.trajectory(0, codec)
    else:
        assert session.trace.trajectory(0, codec).model_tokens == 1
