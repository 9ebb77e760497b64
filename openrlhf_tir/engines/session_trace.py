"""RequestTrace: the requests of one session -> chains of tokens -> one Trajectory. Token ids only; nothing is decoded
to be compared.

    request 1   prompt P1              sampled S1
    request 2   prompt P1 S1 E1        sampled S2      goes on from request 1: E1 are environment tokens
    request 3   prompt Q               sampled S3      does not: a new chain

    chain 1     P1 | S1 E1 S2          chain 2     Q | S3

A prompt *goes on* from a chain when it starts with all of the chain's tokens, sampled ones included, id by id. A client
that edits the history, or whose chat template renders it differently from how it was sampled (thinking left out, other
white space, another tokenisation of the same text), breaks that: what it sends is then the prompt of a new chain, and
nothing sampled earlier is trained there. A chain never holds a token at a place where the engine did not see it.

Every chain is trained: the one with the most sampled tokens is the trajectory, the others are its branches (sub-agents,
turns that were tried again, rewritten contexts). A sampled token is one of a chain's own in exactly one of them, and
part of the prompt in those that branch off behind it; so it is trained once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..ports import Codec
from ..types import Completion, Segment, Trajectory

AGENT_FACTS = ("requests", "chains", "branch_tokens")
"""Parts that every traced trajectory has: its session's requests and chains, and what was sampled in its branches."""


@dataclass(slots=True)
class Chain:
    """One prompt and what followed it. `tokens` holds both."""

    prompt_ids: list[int]
    tokens: list[int]
    parts: list[tuple[list[int], Completion]] = field(default_factory=list)
    """(environment tokens before it, what was sampled), in order."""

    @property
    def model_tokens(self) -> int:
        return sum(len(c.token_ids) for _, c in self.parts)

    def leads_to(self, prompt_ids: Sequence[int]) -> bool:
        return list(prompt_ids[: len(self.tokens)]) == self.tokens

    def extend(self, prompt_ids: Sequence[int], completion: Completion) -> None:
        between = list(prompt_ids[len(self.tokens) :])
        self.parts.append((between, completion))
        self.tokens += between + completion.token_ids.tolist()


@dataclass(slots=True)
class RequestTrace:
    chains: list[Chain] = field(default_factory=list)
    requests: int = 0
    since: int | None = None
    """Version that sampled the first token; None: there is none yet."""

    def add(self, prompt_ids: Sequence[int], completion: Completion) -> None:
        """One answered request. The chain that it goes on from is the longest of which it has every token."""
        self.requests += 1
        self.since = completion.began if self.since is None else self.since
        before = [c for c in self.chains if c.leads_to(prompt_ids)]
        chain = max(before, key=lambda c: len(c.tokens), default=None)
        if chain is None:
            chain = Chain(list(prompt_ids), list(prompt_ids))
            self.chains.append(chain)
        chain.extend(prompt_ids, completion)

    def trajectory(self, index: int, codec: Codec) -> Trajectory:
        """The chain with the most sampled tokens (the first of equals), the others as its branches; without tokens when
        there is none.

        parts: AGENT_FACTS.
        """
        chosen = max(self.chains, key=lambda c: c.model_tokens, default=None)
        traj = _trajectory(chosen, index, codec) if chosen else Trajectory(index, np.zeros(0, np.int32))
        traj.branches = [_trajectory(c, index, codec) for c in self.chains if c is not chosen]
        traj.parts = dict(
            zip(
                AGENT_FACTS,
                map(float, (self.requests, len(self.chains), sum(b.model_tokens for b in traj.branches))),
                strict=True,
            )
        )
        return traj


def _trajectory(chain: Chain, index: int, codec: Codec) -> Trajectory:
    traj = Trajectory(index, np.asarray(chain.prompt_ids, np.int32))
    for between, completion in chain.parts:
        if between:
            traj.segments.append(Segment.of_env(between, codec.decode(between)))
        traj.segments.append(Segment.of_model(completion))
        traj.finish_reason, traj.stop_reason = completion.finish_reason, completion.stop_reason
    return traj
