"""The types of a weight push: what learner, publisher and engines tell each other (weights/).

learner --(gathers, digests)--> DeltaDigest | BroadcastRendezvous | Exposed   how the weights travel
engine  --(loads)-------------> BroadcastResult, ReadBackReport               what arrived, what the model holds
engine  --(samples)-----------> the answer to a Canary                        what it computes with them
publisher --------------------> PublishReport                                 what was decided, on which figures
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class DeltaDigest(NamedTuple):
    """A delta push as the learner announces it (weights/delta_file.py).

    Attributes:
        digest: Digest of the whole weights after the push.
        link: Digest of the delta file, chained to the weights before it.
    """

    digest: str
    link: str


class BroadcastRendezvous(NamedTuple):
    """Where learner rank 0 and the engines' workers meet for broadcasts of weights (weights/broadcast).

    Attributes:
        backend: Communication library: "nccl" or "gloo".
        address: Address of learner rank 0's node.
        port: A free port there.
        receivers: Number of workers; they are ranks 1 to this.
        deadline_s: Seconds for all to arrive, and again for each bucket of weights.
    """

    backend: str
    address: str
    port: int
    receivers: int
    deadline_s: float


class BroadcastResult(NamedTuple):
    """Result of a broadcast for its sender, or for one receiver.

    Attributes:
        digest: Digest of everything that was sent or received; None if something is missing.
        nbytes: Bytes of the weights.
        fault: Why something is missing; None if nothing is.
        unusable: True if retrying the push cannot help: the engine must be replaced.
    """

    digest: str | None = None
    nbytes: int = 0
    fault: str | None = None
    unusable: bool = False


BUCKET_BYTES = 512 << 20
"""Weights that are gathered and sent at a time, unless one tensor is larger: enough to keep a network or a bus busy,
and little beside what a rank holds of any model of several buckets."""
EXPOSED_BUCKETS = 2
"""Buffers of a learner rank that engines map. A push of at most this many buckets is exposed as a whole before any
engine pauses."""


class Item(NamedTuple):
    """A tensor of a push as it is announced: its name, safetensors dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class ExposedBucket(NamedTuple):
    """Tensors of a push in one buffer of a learner rank, which engine workers on the same device can map.

    Attributes:
        items: The tensors, in the order of the buffer.
        nbytes: Size of the buffer. It has the layout of `weights/broadcast/stream.py` (place_bucket).
        digest: Digest of names, dtypes, shapes and bytes (weights/ipc/device_digest.py).
        handles: Device -> what a process needs to map the rank's buffer on it (weights/ipc/sharing.py).
    """

    items: list[Item]
    nbytes: int
    digest: str
    handles: dict[str, bytes]


class Exposed(NamedTuple):
    """Consecutive buckets of a push that the learner has exposed (weights/ipc).

    Attributes:
        push: Identity of the push.
        buckets: The buckets.
        remaining: Number of buckets of the push that follow these.
        fault: Why the learner cannot expose its weights; None if it can.
    """

    push: str
    buckets: list[ExposedBucket]
    remaining: int = 0
    fault: str | None = None


CANARY_TEXTS = 8
"""Texts in one round of a push's proof. An engine answers them at once, beside the requests that it keeps."""


class Canary(NamedTuple):
    """What an engine computes first with new weights, for the learner to compare.

    Attributes:
        prompt_ids: Texts. The engine reports the log-probs of their own tokens (all but the first of each) where it
            can: both sides then score the same tokens.
        max_tokens: Tokens to sample after each text, which proves decoding as well.
        seed: Text i is continued with the seed `seed + i`.
    """

    prompt_ids: list[list[int]]
    max_tokens: int
    seed: int


class ReadBackReport(NamedTuple):
    """The exact proof of a load: what one worker's model, or all workers of an engine, hold against what was sent.

    Attributes:
        tensors: Number of tensors sent.
        differing: Tensors that the model does not hold as they were sent.
        unread: Tensors that could not be read back (quantised layers, what a loader transforms); only log-probs prove
            these.
        missing: Linear layers, embeddings and norms that should have been sent a tensor and were not.
        nbytes: Bytes compared.
        seconds: Duration of the comparison.
    """

    tensors: int
    differing: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def fault(self) -> str | None:
        """What is wrong, in words; None if everything that could be read is right."""
        parts = []
        if self.differing:
            parts.append(f"{len(self.differing)} of {self.tensors} tensors differ ({_first(self.differing)})")
        if self.missing:
            parts.append(f"{len(self.missing)} modules were sent nothing ({_first(self.missing)})")
        return "; ".join(parts) or None


def _first(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


@dataclass(frozen=True, slots=True)
class PublishReport:
    """Result of a weight push to all engines.

    Attributes:
        version: The version that was pushed.
        seconds: Duration of the whole push. The learner trains again after it.
        digest: Digest of the weights.
        canary_max_diff: Largest difference of a log-probability on the worst engine that was proved, in nats.
        refused: Engines whose proof failed; they are being started again.
        write_s: Seconds, among `seconds`, that the learner took to gather, hash and write the weights.
        nbytes: Bytes that the learner wrote for the engines.
        delta: True if only what changed was written, for every engine.
        canary_level: Mean difference over the uncertain tokens on the worst engine, in nats of the token's logit.
        canary_excess: The disagreement in units of what is accepted. Above 1 the push would have been refused.
        canary_repeats: Engines on which the proof was repeated on other texts.
        pushes_repeated: Engines that got a second, full push because the first was not proved.
        parts: Further figures of the push by the name of their metric: the seconds of its parts (`push_*_s`), and the
            number of engines that it reached by CUDA IPC.
    """

    version: int
    seconds: float
    digest: str
    canary_max_diff: float
    refused: int = 0
    write_s: float = 0.0
    nbytes: int = 0
    delta: bool = False
    canary_level: float = 0.0
    canary_excess: float = 0.0
    canary_repeats: int = 0
    pushes_repeated: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
