"""A deterministic engine for tests: plain transformers in fp32 on the CPU, one sequence at a time.

A response depends on weights, prompt and seed only, and not on what else runs, in which order or in which batch. A
request without a seed derives one from its request_id. So an asynchronous run with a staleness of 0 can be compared,
number for number, with a sequential loop. A weight update waits for the request that is being decoded, so each response
has a single version.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import Config
from ..errors import EngineError, WeightsUnverified
from ..pushes import BroadcastRendezvous, BroadcastResult, Canary, Exposed
from ..types import Completion, EngineBounds, Finish, Sampling
from ..weights.node_copy import NodeCopy
from .busy import BusyMeter
from .codec import HfCodec, IncrementalDecoder, find_stop
from .progress import Progress
from .proof import ProofGate

if TYPE_CHECKING:
    import torch

    from ..weights.broadcast.receiver import Receiver
    from ..weights.ipc.importer import Importer


class TorchEngine:
    """Implements ports.RolloutEngine. Belongs to one event loop."""

    def __init__(self, model: Any, codec: HfCodec, *, cfg: Config | None = None) -> None:
        """Create an engine on a loaded model.

        Args:
            model: A transformers model, which is converted to fp32.
            codec: Its codec.
            cfg: The run's configuration; the default one if not given.
        """
        cfg = cfg or Config()
        self.model = model.float().eval()
        self.codec = codec
        self.version = 0
        eos = model.generation_config.eos_token_id
        self._eos = frozenset([eos] if isinstance(eos, int) else eos or ()) | {codec.tokenizer.eos_token_id}
        self._one_at_a_time = asyncio.Lock()
        self._running = asyncio.Event()
        self._running.set()
        self._paused = False
        self._asleep = False
        self._canaries = 0
        """Canaries that are being answered; while there are any, a user's pause is lifted."""
        self._busy = BusyMeter()
        self.proof = ProofGate()
        """Never waits here: a push ends with the answer of its canary, and nothing is decoded meanwhile."""
        self.broken: str | None = None
        """The reason why this engine cannot be used any more; None while it can."""
        self.bounds = EngineBounds(model.config.vocab_size, model.config.max_position_embeddings)
        self._unfinished = 0
        """Requests that wait or are decoded."""
        self._tokens = 0
        """Tokens sampled since the start."""
        self._given_up: dict[str, threading.Event] = {}
        self._sampled: dict[str, int] = {}
        """Request that waits or is decoded -> tokens sampled so far."""
        self._steps = 0
        """Forward passes since the start."""
        self._plain = cfg.rollout.plain
        self._node = NodeCopy(keep=cfg.vllm.pushes_changes)
        self._progress = Progress()
        self._one_push = asyncio.Lock()
        self._received = BroadcastResult()
        """The last broadcast that is not in use yet."""
        self._exposed_push: str | None = None
        """The push of which exposed buckets were loaded last."""
        self._new_weights: dict[str, Any] = {}
        """The weights of a broadcast, or of exposed buckets, that are not in use yet."""

    @classmethod
    async def start(cls, model: str, cfg: Config, *, index: int = 0) -> TorchEngine:
        """See RolloutEngine. The index is not used: sampling does not depend on which engine does it."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        return cls(AutoModelForCausalLM.from_pretrained(model), HfCodec(AutoTokenizer.from_pretrained(model)), cfg=cfg)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """See Engine."""
        self._unfinished += 1
        given_up = self._given_up[request_id] = threading.Event()
        self._sampled[request_id] = 0
        try:
            while True:
                await self._running.wait()
                async with self._one_at_a_time:
                    if self._running.is_set():  # it may have been paused while another request was decoded
                        return await self._decode(list(token_ids), sampling, request_id, given_up)
        finally:
            self._unfinished -= 1
            self._given_up.pop(request_id, None)
            self._sampled.pop(request_id, None)

    async def abort(self, request_id: str) -> None:
        """See RolloutEngine. A request that waits is decoded for one token when its turn comes."""
        if request_id in self._given_up:
            self._given_up[request_id].set()

    def progress(self) -> dict[str, int]:
        """See RolloutEngine."""
        return dict(self._sampled)

    async def _decode(
        self, prompt_ids: list[int], sampling: Sampling, request_id: str, given_up: threading.Event
    ) -> Completion:
        """Decode in a thread.

        If the caller is cancelled, decoding ends at the next token and only then this call returns. Otherwise two
        threads could use the model at once.
        """
        thread = asyncio.create_task(asyncio.to_thread(self._sample, prompt_ids, sampling, request_id, given_up))
        self._busy.enter()
        try:
            completion = await asyncio.shield(thread)
        except asyncio.CancelledError:
            given_up.set()
            await thread
            raise
        finally:
            self._busy.leave()
        self._tokens += len(completion.token_ids)
        return completion

    async def pause(self) -> None:
        """See RolloutEngine."""
        self._paused = True
        self._update_running()

    async def resume(self) -> None:
        """See RolloutEngine."""
        self._paused = False
        self._update_running()

    def _update_running(self) -> None:
        """Decode requests only while nobody wants the engine frozen."""
        if self._asleep or (self._paused and not self._canaries):
            self._running.clear()
        else:
            self._running.set()

    async def sleep(self) -> None:
        """Decode nothing until `wake`; no memory is freed. Waits for the request that is being decoded."""
        self._asleep = True
        self._update_running()
        async with self._one_at_a_time:
            return

    async def wake(self) -> None:
        """See RolloutEngine."""
        self._asleep = False
        self._update_running()

    async def update_weights(
        self, path: Path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        """See RolloutEngine."""
        from safetensors.torch import load_file

        proved = (
            self._node.full(path, version, digest) if link is None else self._node.delta(path, version, digest, link)
        )
        return await self._use(load_file(proved), str(path), version, canary)

    async def receive_weights(self, rendezvous: BroadcastRendezvous, first_rank: int, push_id: str) -> BroadcastResult:
        """See RolloutEngine. The weights are kept beside the model: requests go on, and a torn push leaves no trace."""
        async with self._one_push:
            weights: dict[str, torch.Tensor] = {}
            self._received = await asyncio.to_thread(
                self._receiver.receive, rendezvous, first_rank, push_id, weights.update, weights.clear
            )
            self._new_weights = weights
            return self._received

    async def apply_received(self, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        """See RolloutEngine."""
        async with self._one_push:
            received, self._received = self._received, BroadcastResult()
            if received.digest != digest:
                raise WeightsUnverified(
                    f"received weights of digest {str(received.digest)[:12]}, the learner announced {digest[:12]} for"
                    f" version {version}"
                )
            return await self._use(self._new_weights, f"broadcast {version}", version, canary)

    async def _use(
        self, weights: dict[str, torch.Tensor], what: str, version: int, canary: Canary | None
    ) -> list[Completion]:
        async with self._one_at_a_time:
            tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
            missing, unexpected = self.model.load_state_dict(weights, strict=False)
            if set(missing) - tied or unexpected:
                raise WeightsUnverified(
                    f"{what} does not hold this model: missing {sorted(set(missing) - tied)}, unexpected {unexpected}"
                )
            self.version = version
        await self.wake()
        return await self.sample_canary(*canary) if canary else []

    async def map_exposed(self, exposed: Exposed) -> str | None:
        """See RolloutEngine."""
        from ..weights.ipc.importer import CannotMap

        try:
            await asyncio.to_thread(self.importer.begin, exposed.buckets)
        except CannotMap as error:
            return str(error)
        return None

    async def load_exposed(self, exposed: Exposed, version: int, canary: Canary | None = None) -> list[Completion]:
        """See RolloutEngine. The weights are kept beside the model until the last bucket: requests go on."""
        from ..weights.ipc.importer import CannotMap

        async with self._one_push:
            if exposed.push != self._exposed_push:
                self._exposed_push = exposed.push
                self._new_weights = {}
            try:
                for bucket in exposed.buckets:
                    self._new_weights |= {name: tensor.clone() for name, tensor in self.importer.tensors(bucket)}
                self.importer.check(exposed.buckets)
            except CannotMap as error:
                raise WeightsUnverified(f"version {version} cannot be loaded: {error}") from error
            self.importer.acknowledge()
            if exposed.remaining:
                return []
            return await self._use(self._new_weights, f"push {exposed.push}", version, canary)

    @cached_property
    def _receiver(self) -> Receiver:
        from ..weights.broadcast.receiver import Receiver

        return Receiver()

    @cached_property
    def importer(self) -> Importer:
        """The learner's memory as it is mapped here."""
        import torch

        from ..weights.ipc.importer import Importer

        return Importer(torch.device("cpu"))

    async def confirm_weights(self, version: int) -> dict[str, float]:
        """Return nothing: no completion is withheld here, and nothing is measured."""
        return {}

    async def discard(self, reason: str) -> None:
        """Raise the reason as WeightsUnverified: this engine is for tests, which ask the publisher."""
        self.broken = reason
        raise WeightsUnverified(reason)

    async def alive(self) -> None:
        """See RolloutEngine. The model runs in a thread of this process, which could hang."""
        if not self.broken:
            try:
                self._progress.check(self._steps, busy=self._one_at_a_time.locked() and self._running.is_set())
            except EngineError as e:
                self.broken = str(e)
        if self.broken:
            raise EngineError(f"This engine is broken: {self.broken}. Start a new one.")

    async def sample_canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        """See RolloutEngine."""
        if self._asleep:
            raise EngineError("A canary on a sleeping engine would wait for ever. Wake it first.")
        self._canaries += 1
        self._update_running()
        try:
            return [
                await self.generate(p, Sampling(max_tokens, seed=seed + i), request_id=f"canary/{i}")
                for i, p in enumerate(prompt_ids)
            ]
        finally:
            self._canaries -= 1
            self._update_running()

    def stats(self) -> dict[str, float]:
        """See RolloutEngine."""
        running = float(self._one_at_a_time.locked())
        return {
            "running": running,
            "waiting": self._unfinished - running,
            "kv_usage": 0.0,
            "tokens_generated": self._tokens,
            "version": self.version,
            "paused": float(not self._running.is_set()),
        }

    async def openai_app(self, cfg: Config) -> None:
        """Return None: this engine has no OpenAI app."""

    def drain_busy_intervals(self) -> list[tuple[float, float]]:
        """See RolloutEngine."""
        return self._busy.drain()

    async def stop(self) -> None:
        """Remove the node's copy of the weights. The model ends with this process."""
        self._node.remove()

    def _sample(
        self, prompt_ids: list[int], sampling: Sampling, request_id: str, given_up: threading.Event
    ) -> Completion:
        """Decode one request, in a thread, until it ends or is given up."""
        decoder = IncrementalDecoder(self.codec, prompt_ids)
        seed = sampling.seed
        if seed is None:
            seed = int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=7).digest(), "big")
        token_ids: list[int] = []
        logprobs: list[float] = []
        text = ""
        finish: Finish = "length"
        reason: str | None = None
        for token, logprob in self._tokens_of(prompt_ids, sampling, seed):
            token_ids.append(token)
            logprobs.append(logprob)
            self._sampled[request_id] = len(token_ids)
            new = decoder.push(token)
            text += new
            stop = find_stop(text, len(text) - len(new), sampling.stop)
            if token in self._eos:
                finish = "stop"
            elif stop is not None:
                finish = "stop"
                reason, end = stop
                text = text[:end]
            if finish == "stop" or len(token_ids) == sampling.max_tokens:
                break
            if given_up.is_set():
                finish = "abort"
                break
        return Completion(
            np.asarray(token_ids, np.int32),
            np.asarray(logprobs, np.float32),
            np.full(len(token_ids), self.version, np.int32),
            text,
            finish,
            reason,
        )

    def _tokens_of(self, prompt_ids: list[int], sampling: Sampling, seed: int) -> Iterator[tuple[int, float]]:
        """Yield (token, its log-prob) without end.

        The log-prob is of the plain softmax or, in a run that samples from another distribution, of that one.
        """
        import torch

        generator = torch.Generator().manual_seed(seed)
        ids = torch.tensor([prompt_ids])
        cache = None
        while True:
            with torch.inference_mode():
                out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
            self._steps += 1
            logits_V = out.logits[0, -1].float()
            cache = out.past_key_values
            probs_V = _probs(logits_V, sampling)
            token = int(torch.multinomial(probs_V, 1, generator=generator))
            logprob = torch.log_softmax(logits_V, -1)[token] if self._plain else (probs_V[token] / probs_V.sum()).log()
            yield token, float(logprob)
            ids = torch.tensor([[token]])


def _probs(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the distribution to sample from, [V], not normalised."""
    import torch

    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits_V.argmax(), len(logits_V)).float()
    probs_V = torch.softmax(logits_V / sampling.temperature, -1)
    if sampling.min_p > 0:
        probs_V = torch.where(probs_V < sampling.min_p * probs_V.max(), 0.0, probs_V)
    if 0 < sampling.top_k < len(probs_V):
        probs_V = torch.where(probs_V < probs_V.topk(sampling.top_k).values[-1], 0.0, probs_V)
    if sampling.top_p < 1:
        probs_V = probs_V / probs_V.sum()
        sorted_V, order_V = probs_V.sort(descending=True)
        before_V = sorted_V.cumsum(0) - sorted_V  # probability of the likelier tokens: the one that crosses top_p stays
        probs_V = probs_V.clone()
        probs_V[order_V[before_V >= sampling.top_p]] = 0.0
    return probs_V
