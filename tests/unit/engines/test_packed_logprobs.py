"""Tokens and log-probs that leave vLLM's engine process in batches. Fakes of vLLM's step outputs."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_tir.engines.in_flight import InFlight
from openrlhf_tir.engines.packed_logprobs import MARK, HeldTokens, LogprobInbox, TokenTexts, is_packed
from openrlhf_tir.errors import EngineError


def params(**changed) -> SimpleNamespace:
    return SimpleNamespace(**({"extra_args": {MARK: True}, "flat_logprobs": True, "logprobs": 0} | changed))


def step(carrier: int, outputs: dict[str, tuple[int, float] | None]) -> list[SimpleNamespace]:
    """Return one step's outputs: request id -> (token, log-prob), or None for an output without a packed row."""
    made = [SimpleNamespace(request_id=request_id, new_logprobs=None) for request_id in outputs]
    rows = [row for row in outputs.values() if row is not None]
    ends = [0]
    for row in outputs.values():
        ends.append(ends[-1] + (row is not None))
    made[carrier].new_logprobs = SimpleNamespace(
        logprob_token_ids=np.array([[token] for token, _ in rows], np.int32),
        logprobs=np.array([[logprob] for _, logprob in rows], np.float32),
        cu_num_generated_tokens=ends,
    )
    return made


def inbox(*running: str) -> LogprobInbox:
    return LogprobInbox(lambda: None, set(running))


@pytest.mark.parametrize(
    ("of_request", "packed"),
    [
        (params(), True),
        (params(extra_args=None), False),
        (params(extra_args={"other": 1}), False),
        (params(flat_logprobs=False), False),
        (params(logprobs=2), False),
        (params(logprobs=None), False),
        (None, False),
    ],
)
def test_only_a_marked_request_for_the_sampled_tokens_alone_is_packed(of_request, packed):
    assert is_packed(of_request) is packed


def test_rows_of_several_steps_reach_their_requests_however_the_steps_order_them():
    box = inbox("a", "b")
    box.unpack(step(0, {"a": (5, -0.5), "b": (7, -0.25)}))
    box.unpack(step(1, {"prefill": None, "b": (8, -1.5), "a": (6, -2.0)}))
    a, b = box.take("a", [5, 6]), box.take("b", [7, 8])
    assert a.tolist() == [-0.5, -2.0]
    assert b.tolist() == [-0.25, -1.5]
    assert len(box) == 0


def test_float32_values_arrive_bit_by_bit():
    value = np.float32(-0.1)
    box = inbox("a")
    box.unpack(step(0, {"a": (5, value), "z": None}))
    assert np.asarray(box.take("a", [5])).tobytes() == value.tobytes()


def test_the_carrier_loses_the_rows_and_other_outputs_keep_vllms_own_log_probs():
    outputs = step(1, {"client": None, "a": (5, -0.5)})
    own = SimpleNamespace(cu_num_generated_tokens=None)
    outputs[0].new_logprobs = own
    inbox("a", "client").unpack(outputs)
    assert [output.new_logprobs for output in outputs] == [own, None]


def test_what_the_engine_still_samples_for_an_ended_request_is_not_kept():
    box = inbox("b")
    box.unpack(step(0, {"a": (5, -0.5), "b": (7, -0.25)}))
    assert len(box) == 1
    box.forget("b")
    box.forget("b")
    assert len(box) == 0


def test_an_aborted_request_whose_last_step_was_not_handed_over_has_the_log_probs_of_its_tokens():
    box = inbox("a")
    for token, logprob in ((5, -0.5), (6, -1.0)):
        box.unpack(step(0, {"a": (token, logprob)}))
    assert box.take("a", [5]).tolist() == [-0.5]
    assert inbox().take("never sampled", []).tolist() == []


@pytest.mark.parametrize("token_ids", [[5, 7], [5, 6, 7], [6]])
def test_log_probs_of_other_tokens_or_of_too_few_are_an_engine_error(token_ids):
    box = inbox("a")
    box.unpack(step(0, {"a": (5, -0.5)}))
    box.unpack(step(0, {"a": (6, -0.5)}))
    with pytest.raises(EngineError):
        box.take("a", token_ids)


def test_packed_log_probs_become_the_completions():
    in_flight = InFlight(version=1)
    output = SimpleNamespace(token_ids=[5, 6], logprobs=None, text="", finish_reason="stop", stop_reason=None)
    with in_flight.track("r") as live:
        live.finish(output, array("f", [-0.5, -1.0]))
        completion = live.completion(output)
    assert completion.logprobs.dtype == np.float32 and completion.logprobs.tolist() == [-0.5, -1.0]


def test_rows_of_several_tokens_of_a_request_arrive_in_their_order():
    outputs = [SimpleNamespace(request_id=name, new_logprobs=None) for name in ("a", "none", "b")]
    outputs[0].new_logprobs = SimpleNamespace(
        logprob_token_ids=np.array([[5], [6], [7]], np.int32),
        logprobs=np.array([[-0.5], [-1.0], [-0.25]], np.float32),
        cu_num_generated_tokens=[0, 2, 2, 3],
    )
    box = inbox("a", "b", "none")
    box.unpack(outputs)
    assert box.take("a", [5, 6]).tolist() == [-0.5, -1.0]
    assert box.take("b", [7]).tolist() == [-0.25]
    assert len(box) == 0


def test_held_tokens_are_kept_in_order_and_gone_after_they_left():
    held = HeldTokens(0, "")
    held.add([5], 5, -0.5)
    held.add([6], 6, -1.0)
    left = held.token_ids
    assert (held.token_ids, held.row_token_ids, held.logprobs) == ([5, 6], [5, 6], [-0.5, -1.0])
    held.clear()
    assert left == [5, 6] and (held.token_ids, held.row_token_ids, held.logprobs) == ([], [], [])


class Letters:
    """A tokenizer of five tokens."""

    texts = ("a", "b>", ">c", "\n", "\N{REPLACEMENT CHARACTER}")

    def __init__(self) -> None:
        self.decoded: list[int] = []

    def decode(self, token_ids: list[int]) -> str:
        self.decoded += token_ids
        return "".join(self.texts[token_id] for token_id in token_ids)


@pytest.mark.parametrize(
    ("stops", "ending"),
    [
        ((), []),
        (None, []),
        (("</search>",), [1, 2, 4]),
        (("\n```\n",), [3, 4]),
        (("</search>", "\n\n"), [1, 2, 3, 4]),
        (("x",), [4]),
        (("answer: ",), [0, 1, 2, 3, 4]),
    ],
)
def test_a_token_may_end_a_text_if_it_holds_the_last_character_of_a_stop_string_or_a_part_of_a_character(stops, ending):
    texts = TokenTexts(Letters())
    last = texts.last_characters(stops)
    assert [token for token in range(5) if texts.may_end([token], last)] == ending


def test_each_token_is_decoded_once():
    letters = Letters()
    texts = TokenTexts(letters)
    for _ in range(3):
        assert not texts.may_end([0], ">")
        assert texts.may_end([1], ">")
    assert letters.decoded == [0, 1]


def test_without_a_tokenizer_every_token_may_complete_a_stop_string():
    texts = TokenTexts(None)
    assert texts.may_end([0], texts.last_characters((">",)))
    assert not texts.may_end([0], texts.last_characters(()))
