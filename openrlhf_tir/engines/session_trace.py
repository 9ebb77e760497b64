"""Build one trajectory from the requests of an agent's session.

Works on token ids only; no text is compared.

    request 1   prompt P1              sampled S1
    request 2   prompt P1 S1 E1        sampled S2      continues request 1: E1 are environment tokens
    request 3   prompt Q               sampled S3      does not continue one: a new chain

    chain 1     P1 | S1 E1 S2          chain 2     Q | S3

A prompt *continues* a chain if it starts with all tokens of the chain, id by id, sampled ones included. That fails if
the client edits the history, or if its chat template renders it differently from how it was sampled (without the
thinking, with other white space, tokenised differently). The prompt then begins a new chain, and nothing sampled
earlier is trained in it. So a chain never has a token at a position where the engine did not see it.

All chains are trained: the one with the most sampled tokens is the trajectory, the others are its branches (sub-agents,
repeated turns, rewritten contexts). A sampled token belongs to exactly one chain; in chains that branch off behind it,
it is part of the prompt. So it is trained once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import WeightsUnverified
from ..ports import Codec
from ..types import Completion, Segment, Trajectory
from .in_flight import Live

AGENT_FACTS = ("requests", "chains", "branch_tokens")
"""Parts of every traced trajectory: requests and chains of its session, and tokens sampled in its branches."""


@dataclass(slots=True)
class Chain:
    """One prompt and everything that followed it.

    Attributes:
        prompt_ids: Tokens of the prompt.
        tokens: Tokens of the prompt and of everything after it.
        parts: (environment tokens before it, what was sampled), in order.
    """

    prompt_ids: list[int]
    tokens: list[int]
    parts: list[tuple[list[int], Completion]] = field(default_factory=list)

    @property
    def model_tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(len(c.token_ids) for _, c in self.parts)

    def is_continued_by(self, prompt_ids: Sequence[int]) -> bool:
        """Return True if the prompt starts with all tokens of this chain."""
        return list(prompt_ids[: len(self.tokens)]) == self.tokens

    def extend(self, prompt_ids: Sequence[int], completion: Completion) -> None:
        """Add a prompt that continues this chain, and what was sampled after it."""
        between = list(prompt_ids[len(self.tokens) :])
        self.parts.append((between, completion))
        self.tokens += between + completion.token_ids.tolist()


@dataclass(slots=True)
class RequestTrace:
    """The requests of one session so far."""

    chains: list[Chain] = field(default_factory=list)
    requests: int = 0
    first_version: int | None = None
    """Version that sampled the first token; None before that."""
    sampled: list[Live] = field(default_factory=list)
    """The requests as the engine tracks them, which knows whose tokens turned out void."""

    def add(self, prompt_ids: Sequence[int], completion: Completion) -> None:
        """Add an answered request to the longest chain that it continues, or to a new one."""
        self.requests += 1
        self.first_version = completion.began if self.first_version is None else self.first_version
        continued = [c for c in self.chains if c.is_continued_by(prompt_ids)]
        chain = max(continued, key=lambda c: len(c.tokens), default=None)
        if chain is None:
            chain = Chain(list(prompt_ids), list(prompt_ids))
            self.chains.append(chain)
        chain.extend(prompt_ids, completion)

    def trajectory(self, index: int, codec: Codec) -> Trajectory:
        """Return the trajectory of the session; its parts are AGENT_FACTS.

        It is the chain with the most sampled tokens (the first of equals), with the others as its branches. Without any
        chain it has no tokens.

        Args:
            index: Index of the trajectory in its group.
            codec: Decodes environment tokens to text.

        Raises:
            WeightsUnverified: A push that sampled some of its tokens was not proved, and another one followed.
        """
        if any(request.void for request in self.sampled):
            raise WeightsUnverified("A session has tokens of a push that was not proved, and another one followed.")
        longest = max(self.chains, key=lambda c: c.model_tokens, default=None)
        traj = _trajectory(longest, index, codec) if longest else Trajectory(index, np.zeros(0, np.int32))
        traj.branches = [_trajectory(c, index, codec) for c in self.chains if c is not longest]
        branch_tokens = sum(branch.model_tokens for branch in traj.branches)
        facts = (self.requests, len(self.chains), branch_tokens)
        traj.parts = dict(zip(AGENT_FACTS, map(float, facts), strict=True))
        return traj


def _trajectory(chain: Chain, index: int, codec: Codec) -> Trajectory:
    traj = Trajectory(index, np.asarray(chain.prompt_ids, np.int32))
    for between, completion in chain.parts:
        if between:
            traj.segments.append(Segment.of_env(between, codec.decode(between)))
        traj.segments.append(Segment.of_model(completion))
        traj.finish_reason = completion.finish_reason
        traj.stop_reason = completion.stop_reason
    return traj
