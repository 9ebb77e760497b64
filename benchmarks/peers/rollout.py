"""Rollout: prompts -> sampled responses with tool calls, by Hugging Face's generate in one process. For the plain loop,
TRL's rollout function, and the evaluator of all systems.

    generate until every row ends or closes a code block  ->  the sandbox runs the blocks together  ->  their rows go on
    with the output  ->  ...

The turns are ZeroTIR's, as ours plays them (openrlhf_tir/rollout/protocols/zerotir.py): the same stops, the same
inserted text, the same budget of model and environment tokens together. The tokenizer has a token per character, so
stop strings are runs of ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from miniatures.toy.tokenizer import CHARACTERS, EOS_ID, PAD_ID, encode
from openrlhf_tir.rollout.protocols.zerotir import BASE_STOPS, OPEN, ZeroTir

RunCode = Callable[[Sequence[str]], list[str]]
FENCE = "```"


@dataclass
class Sample:
    """`ids` [T] of the response, `mine` [T] whether the model wrote the token, `text` what it wrote, `ended` properly
    and not by the budget."""

    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    mine: list[int] = field(default_factory=list)
    text: str = ""
    calls: int = 0
    ended: bool = False
    reward: float = 0.0

    def append(self, ids: Sequence[int], mine: bool) -> None:
        self.ids += ids
        self.mine += [int(mine)] * len(ids)


def text_of(ids: Sequence[int]) -> str:
    return "".join(CHARACTERS[i] for i in ids if i < len(CHARACTERS))


class Stops(StoppingCriteria):
    """Per row: a stop string of the turn protocol, or the fence that closes a code block; which rows are at such a
    fence is in `closed`."""

    def __init__(self, in_code: torch.Tensor, calls_left: torch.Tensor) -> None:
        self.in_code, self.calls_left, self.closed = in_code, calls_left, torch.zeros_like(in_code)
        self._ends = [torch.tensor(encode(s)) for s in BASE_STOPS]
        self._open, self._fence = torch.tensor(encode(OPEN)), torch.tensor(encode(FENCE))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_) -> torch.Tensor:
        self.closed |= self.in_code & _at(input_ids, self._fence)
        self.in_code |= self.calls_left & _at(input_ids, self._open)
        done = self.closed.clone()
        for end in self._ends:
            done |= _at(input_ids, end)
        return done


def has_ended(ids: Sequence[int], text: str) -> bool:
    """Whether a response stopped by itself."""
    return list(ids[-1:]) == [EOS_ID] or text.endswith(BASE_STOPS)


def _at(input_ids: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
    """[B] whether a row's last ids are `tail`."""
    return (input_ids[:, -len(tail) :] == tail).all(dim=1)


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    *,
    budget: int,
    calls: int,
    run: RunCode,
    spent: Callable[[str, float], None],
) -> list[Sample]:
    """One response to each prompt, at temperature 1 from the whole vocabulary. `spent(phase, since)` is told what took
    how long."""
    out = [Sample(list(p)) for p in prompts]
    turns = ZeroTir(max_calls=calls)
    live = list(out)
    while live:
        since = time.monotonic()
        wrote, closed = _generate(model, live, budget, calls)
        spent("generate", since)
        codes: list[tuple[Sample, str]] = []
        for s, ids, at_fence in zip(live, wrote, closed, strict=True):
            s.append(ids, mine=True)
            text = text_of(ids)
            s.text += text
            if at_fence:
                codes.append((s, text.rpartition(OPEN)[2].removesuffix(FENCE).strip()))
            else:
                s.ended = has_ended(ids, text)
        since = time.monotonic()
        for (s, _), output in zip(codes, run([code for _, code in codes]) if codes else [], strict=True):
            s.calls += 1
            s.append(encode(turns.insertion(output)), mine=False)
        spent("tools", since)
        live = [s for s, _ in codes if len(s.ids) < budget]
    return out


def _generate(
    model: PreTrainedModel, rows: Sequence[Sample], budget: int, calls: int
) -> tuple[list[list[int]], list[bool]]:
    """What the model writes next to each row, at most what is left of its budget, and whether it stopped at the end of
    a code block."""
    prefixes = [s.prompt_ids + s.ids for s in rows]
    width = max(map(len, prefixes))
    input_ids = torch.tensor([[PAD_ID] * (width - len(p)) + p for p in prefixes])
    left = [budget - len(s.ids) for s in rows]
    stops = Stops(torch.zeros(len(rows), dtype=torch.bool), torch.tensor([s.calls < calls for s in rows]))
    made = model.generate(
        input_ids=input_ids,
        attention_mask=(input_ids != PAD_ID).long(),
        max_new_tokens=max(left),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        stopping_criteria=StoppingCriteriaList([stops]),
    )[:, width:].tolist()
    wrote = [until_padding(ids)[:most] for ids, most in zip(made, left, strict=True)]
    return wrote, [
        bool(c) and len(until_padding(ids)) <= most
        for c, ids, most in zip(stops.closed.tolist(), made, left, strict=True)
    ]


def until_padding(ids: list[int]) -> list[int]:
    """Rows that are done are filled with padding, which the model never writes on purpose; if it does, the row ends."""
    return ids[: ids.index(PAD_ID)] if PAD_ID in ids else ids
