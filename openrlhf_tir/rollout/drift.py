"""Check whether a trajectory's tokens still say what its text says.

    model segment   decode(token_ids) must be the segment's text, except for what the last token holds beyond a stop
                    string
    env segment     encode(text) must be the segment's token_ids, none of them special, and nothing stands before them

Tokens are decoded and compared; nothing that is trained is ever re-encoded. Drift means that engine and codec disagree,
or that some code tokenised text again: rewards would then judge another text than the learner trains.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..engines.codec import REPLACEMENT
from ..errors import TokenDrift
from ..ports import Codec
from ..types import Segment, Trajectory

CONTEXT_TOKENS = 4
"""Tokens that are decoded before a segment: what a token says may depend on its neighbours (leading spaces)."""
SHOWN_CHARS = 80
"""Characters of a text that a message shows."""


def drift(trajectory: Trajectory, codec: Codec, *, rendered: bool = False) -> list[str]:
    """Return one sentence for each segment whose tokens and text disagree.

    Args:
        trajectory: The trajectory.
        codec: The tokenizer.
        rendered: True if a chat template wrote the environment's segments. Their special tokens are intended, so they
            are not compared.
    """
    before = trajectory.prompt_ids[-CONTEXT_TOKENS:].tolist()
    faults = []
    for number, segment in enumerate(trajectory.segments):
        ids = segment.token_ids.tolist()
        fault = None
        if segment.source == "model":
            fault = _model_drift(before, ids, segment, codec)
        elif not rendered:
            fault = _env_drift(before, ids, segment, codec)
        if fault:
            faults.append(f"segment {number} ({segment.source}) {fault}")
        before = (before + ids)[-CONTEXT_TOKENS:]
    return faults


def refuse_drift(trajectory: Trajectory, codec: Codec, *, rendered: bool) -> None:
    """Check a trajectory; see `drift` for the arguments.

    Raises:
        TokenDrift: Tokens and text disagree. The trajectory is then failed and counted instead of trained.
    """
    faults = drift(trajectory, codec, rendered=rendered)
    if faults:
        raise TokenDrift(
            f"Tokens and text disagree: {'; '.join(faults)}. Engine and actor must use the same tokenizer files."
        )


def _model_drift(before: Sequence[int], ids: list[int], segment: Segment, codec: Codec) -> str | None:
    decoded = _decode_after(codec, before, ids)
    text = segment.text.strip(REPLACEMENT)  # a character that the length limit cut in two
    if decoded == text:
        return None
    if decoded.startswith(text):
        beyond = decoded[len(text) :]
        last_token = _decode_after(codec, [*before, *ids[:-1]], ids[-1:])
        if last_token.endswith(beyond):
            return None  # the stop string ended inside of the last token
    return f"decodes to {decoded[-SHOWN_CHARS:]!r}, its text is {text[-SHOWN_CHARS:]!r}"


def _decode_after(codec: Codec, before: Sequence[int], ids: list[int]) -> str:
    """Return the text of `ids` behind the tokens `before`."""
    head = codec.decode(before)
    complete = codec.decode([*before, *ids])
    return complete[len(head.rstrip(REPLACEMENT)) :].strip(REPLACEMENT)


def _env_drift(before: Sequence[int], ids: list[int], segment: Segment, codec: Codec) -> str | None:
    """Compare the tokens with those of the text, and the decoded tokens with the text.

    Either may differ alone. A tool's text carries marks while it is tokenised, so that it contains no special token;
    and a tokenizer may normalise text (to NFC), so that it decodes to another text. A blank before the text, which
    tokenizers like Llama 2's insert, shows in the decoded tokens.
    """
    decoded = _decode_after(codec, before, ids)
    text = segment.text.strip(REPLACEMENT)
    same_tokens = codec.encode(segment.text) == ids
    if same_tokens and (decoded == text or not decoded.endswith(text)):
        return None
    if decoded == text and hasattr(codec, "inert"):
        return None
    return f"has tokens that are not those of its text {segment.text[:SHOWN_CHARS]!r}"
