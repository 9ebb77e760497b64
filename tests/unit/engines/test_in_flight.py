"""Where a request's tokens change version, when vLLM keeps them until the end. Fakes of vLLM's request state."""

from __future__ import annotations

from types import SimpleNamespace

from openrlhf_tir.engines.in_flight import InFlight, sampled_logprobs


class FakeRequest:
    """vLLM's side of one request: its state while it runs, its collector when it is finished."""

    def __init__(self, states: dict, request_id: str) -> None:
        self.states = states
        self.collector = SimpleNamespace(request_id=request_id, output=None)
        self.token_ids: list[int] = []
        states[request_id] = SimpleNamespace(detokenizer=SimpleNamespace(num_output_tokens=lambda: len(self.token_ids)))

    def sample(self, *token_ids: int) -> None:
        self.token_ids += token_ids

    def finish(self) -> SimpleNamespace:
        """Move the answer to the collector, as vLLM does; return it."""
        del self.states[self.collector.request_id]
        count = len(self.token_ids)
        flat = SimpleNamespace(start_indices=list(range(count)), logprobs=[-0.5] * count)
        output = SimpleNamespace(
            token_ids=self.token_ids, logprobs=flat, text="", finish_reason="stop", stop_reason=None
        )
        self.collector.output = SimpleNamespace(outputs=[output])
        return output


def test_tokens_of_a_running_request_change_version_where_a_pause_found_it():
    states: dict = {}
    in_flight = InFlight(version=1)
    request = FakeRequest(states, "r-internal")
    with in_flight.track("r") as live:
        live.follow(request.collector, states)
        request.sample(5, 6)
        assert in_flight.progress() == {"r": 2}
        in_flight.switch(2)
        request.sample(7)
        in_flight.switch(3)
        in_flight.switch(4)
        request.sample(8, 9)
        output = request.finish()
        live.finish(output)
        assert live.completion(output).versions.tolist() == [1, 1, 2, 4, 4]
    assert in_flight.tokens == 5


def test_an_answer_that_waits_to_be_read_keeps_the_version_that_sampled_it():
    states: dict = {}
    in_flight = InFlight(version=1)
    request = FakeRequest(states, "r-internal")
    with in_flight.track("r") as live:
        live.follow(request.collector, states)
        request.sample(5, 6)
        output = request.finish()
        in_flight.switch(2)
        live.finish(output)
        assert live.completion(output).versions.tolist() == [1, 1]


def test_a_request_that_vllm_does_not_have_yet_is_wholly_of_the_weights_that_come():
    in_flight = InFlight(version=1)
    states: dict = {}
    with in_flight.track("r") as live:
        in_flight.switch(2)
        request = FakeRequest(states, "r-internal")
        live.follow(request.collector, states)
        request.sample(5)
        output = request.finish()
        live.finish(output)
        assert live.completion(output).versions.tolist() == [2]


def test_the_sampled_token_comes_first_among_the_log_probs_of_a_position():
    """Two log-probs at the first position (the sampled token and the most likely one), one at the second."""
    assert sampled_logprobs(SimpleNamespace(start_indices=[0, 2], logprobs=[-3.0, -0.1, -0.2])) == [-3.0, -0.2]
    assert sampled_logprobs(SimpleNamespace(start_indices=[0, 1], logprobs=[-3.0, -0.2])) == [-3.0, -0.2]
