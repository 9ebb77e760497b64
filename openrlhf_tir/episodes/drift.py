"""Drift check: do a trajectory's tokens still say what its text says? Decodes and compares; nothing is ever re-encoded
to train on.

    model segment   decode(token_ids) is the segment's text, but for what the last token holds beyond a stop string
    env segment     encode(text) are the segment's token_ids, none of them is special, and nothing stands before it

Drift means that engine and codec disagree, or that somebody re-tokenised: rewards would judge another text than the
learner trains. `retokenised` is no fault: it tells whether the common shortcut, decoding a response and encoding it
again, would have changed its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ..engines.codec import REPLACEMENT
from ..errors import TokenDrift
from ..ports import Codec
from ..types import Segment, Trajectory

CONTEXT = 4
"""Tokens decoded before a segment: what a token says may depend on its neighbours (leading spaces)."""


def drift(trajectory: Trajectory, codec: Codec, *, rendered: bool = False) -> list[str]:
    """One sentence per segment that has drifted.

    rendered: environment segments were written by a chat template. Their special tokens are meant: not compared."""
    before = trajectory.prompt_ids[-CONTEXT:].tolist()
    found = []
    for i, segment in enumerate(trajectory.segments):
        ids = segment.token_ids.tolist()
        fact = None
        if segment.source == "model":
            fact = _model_drift(before, ids, segment, codec)
        elif not rendered:
            fact = _env_drift(before, ids, segment, codec)
        if fact:
            found.append(f"segment {i} ({segment.source}) {fact}")
        before = (before + ids)[-CONTEXT:]
    return found


def refuse_drift(trajectory: Trajectory, codec: Codec, *, rendered: bool = False) -> None:
    """Raises TokenDrift, so that the trajectory is failed and counted instead of trained."""
    if found := drift(trajectory, codec, rendered=rendered):
        raise TokenDrift(
            f"Tokens and text disagree: {'; '.join(found)}. Engine and actor must use the same tokenizer files."
        )


def retokenised(trajectory: Trajectory, codec: Codec) -> bool:
    """Whether encoding the decoded response gives other tokens than were sampled and inserted."""
    ids: list[int] = trajectory.token_ids.tolist()
    return codec.encode(codec.decode(ids)) != ids


def _model_drift(before: Sequence[int], ids: list[int], segment: Segment, codec: Codec) -> str | None:
    said = _continuation(codec, before, ids)
    text = segment.text.strip(REPLACEMENT)  # a character that the length limit cut in two
    if said == text:
        return None
    if said.startswith(text) and _continuation(codec, [*before, *ids[:-1]], ids[-1:]).endswith(said[len(text) :]):
        return None  # the stop string ended inside the last token
    return f"decodes to {said[-80:]!r}, its text is {text[-80:]!r}"


def _continuation(codec: Codec, before: Sequence[int], ids: list[int]) -> str:
    head = codec.decode(before)
    whole = codec.decode([*before, *ids])
    return whole[len(head.rstrip(REPLACEMENT)) :].strip(REPLACEMENT)


def _env_drift(before: Sequence[int], ids: list[int], segment: Segment, codec: Codec) -> str | None:
    """Compare the tokens with those of the text, and what they decode to with the text.

    Either may differ alone: a tool's text has marks while it is tokenised, where it would become added tokens, and a
    tokenizer may normalise text (to NFC), so that it decodes to another one. A blank in front of the text, as
    tokenizers of Llama 2's kind put it there, is seen in what the tokens decode to.
    """
    said = _continuation(codec, before, ids)
    text = segment.text.strip(REPLACEMENT)
    same_tokens = codec.encode(segment.text) == ids
    if same_tokens and (said == text or not said.endswith(text)):
        return None
    if said == text and hasattr(codec, "inert"):
        return None
    return f"has tokens that are not those of its text {segment.text[:80]!r}"
