"""Torch engine: the Engine protocol on plain transformers, fp32, CPU, one sequence at a time. For tests.

Deterministic: a response depends on weights, prompt and seed only, never on what else runs, in which order or in which
batch. A request without a seed takes one from its request_id. That is what lets an asynchronous run with staleness 0 be
compared, number for number, with a sequential loop. A weight update waits for the request that is being decoded, so a
response has one version."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import Config
from ..deadlines import Deadline
from ..errors import EngineError, WeightsUnverified
from ..types import BroadcastRendezvous, BroadcastResult, Canary, Completion, EngineBounds, Finish, Sampling
from ..weights.node_copy import NodeCopy
from .busy import BusyMeter
from .codec import HfCodec, IncrementalDecoder
from .progress import Progress
from .proof import ProofGate

if TYPE_CHECKING:
    import torch

    from ..weights.broadcast.receiver import Receiver


class TorchEngine:
    """Same methods and meanings as VllmEngine."""

    def __init__(self, model: Any, codec: HfCodec, *, version: int = 0, cfg: Config | None = None) -> None:
        self.model, self.codec, self.version = model.float().eval(), codec, version
        eos = model.generation_config.eos_token_id
        self._eos = frozenset([eos] if isinstance(eos, int) else eos or ()) | {codec.tokenizer.eos_token_id}
        self._one_at_a_time = asyncio.Lock()
        self._running = asyncio.Event()
        self._running.set()
        self._paused = self._asleep = False
        self._canaries = 0
        """Canaries that wait for their answers, for which a user's pause is lifted."""
        self._busy = BusyMeter()
        self.proof = ProofGate()
        """Never waits: a push is over only when its canary was answered, and nothing is decoded meanwhile."""
        self.broken: str | None = None
        """Why this engine cannot be used any more; None while it can."""
        self.bounds = EngineBounds(model.config.vocab_size, model.config.max_position_embeddings)
        self._unfinished, self._tokens = 0, 0
        self._given_up: dict[str, threading.Event] = {}
        self._sampled: dict[str, int] = {}
        """Request -> tokens so far, of those that wait or are decoded."""
        self._steps = 0
        """Forward passes, counted as they are made."""
        self._plain = (cfg or Config()).rollout.plain
        self._node = NodeCopy(keep=(cfg or Config()).vllm.sync_delta)
        self._progress = Progress(Deadline.of(cfg or Config(), "timeouts.progress_s"))
        self._one_push = asyncio.Lock()
        self._receiver: Receiver | None = None
        self._received, self._new = BroadcastResult(), dict[str, Any]()

    @classmethod
    async def start(cls, model: str, cfg: Config, *, version: int = 0, index: int = 0) -> TorchEngine:
        """`index` is not needed: sampling does not depend on which engine does it."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        return cls(
            AutoModelForCausalLM.from_pretrained(model),
            HfCodec(AutoTokenizer.from_pretrained(model)),
            version=version,
            cfg=cfg,
        )

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """See Engine."""
        self._unfinished += 1
        given_up = self._given_up[request_id] = threading.Event()
        self._sampled[request_id] = 0
        try:
            while True:
                await self._running.wait()
                async with self._one_at_a_time:
                    if self._running.is_set():  # else paused while others were decoded
                        return await self._decode(list(token_ids), sampling, request_id, given_up)
        finally:
            self._unfinished -= 1
            self._given_up.pop(request_id, None)
            self._sampled.pop(request_id, None)

    async def abort(self, request_id: str) -> None:
        """See engines/handover.py. One that waits for its turn has one token when it gets it."""
        if request_id in self._given_up:
            self._given_up[request_id].set()

    def progress(self) -> dict[str, int]:
        return dict(self._sampled)

    async def _decode(
        self, prompt_ids: list[int], sampling: Sampling, request_id: str, given_up: threading.Event
    ) -> Completion:
        """In a thread. A cancelled caller stops it at the next token and leaves then: one at a time uses the model."""
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
        self._paused = True
        self._follow()

    async def resume(self) -> None:
        self._paused = False
        self._follow()

    def _follow(self) -> None:
        """Decode while nobody wants it frozen."""
        if self._asleep or (self._paused and not self._canaries):
            self._running.clear()
        else:
            self._running.set()

    async def sleep(self) -> None:
        """A stand-in for tests: nothing is decoded while it sleeps, and no memory is freed. Waits for the request that
        is being decoded."""
        self._asleep = True
        self._follow()
        async with self._one_at_a_time:
            return

    async def wake(self) -> None:
        self._asleep = False
        self._follow()

    async def update_weights(
        self, path: Path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        from safetensors.torch import load_file

        proved = (
            self._node.full(path, version, digest) if link is None else self._node.delta(path, version, digest, link)
        )
        return await self._use(load_file(proved), str(path), version, canary)

    async def receive_weights(self, rendezvous: BroadcastRendezvous, first_rank: int, push_id: str) -> BroadcastResult:
        """Beside the model: requests go on meanwhile, and a torn push leaves no trace."""
        from ..weights.broadcast.receiver import Receiver

        async with self._one_push:
            receiver = self._receiver = self._receiver or Receiver()
            weights: dict[str, torch.Tensor] = {}
            self._received = await asyncio.to_thread(
                receiver.receive, rendezvous, first_rank, push_id, weights.update, weights.clear
            )
            self._new = weights
            return self._received

    async def apply_received(self, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        async with self._one_push:
            received, self._received = self._received, BroadcastResult()
            if received.digest != digest:
                raise WeightsUnverified(
                    f"received weights of digest {str(received.digest)[:12]}, the learner announced {digest[:12]} for"
                    f" version {version}"
                )
            return await self._use(self._new, f"broadcast {version}", version, canary)

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

    async def confirm_weights(self, version: int) -> None:
        """Does nothing, as no answer is held back here: this engine is for tests, which ask the publisher."""

    async def discard(self, reason: str) -> None:
        """Raise the reason: this engine is for tests, which ask the publisher."""
        self.broken = reason
        raise WeightsUnverified(reason)

    async def alive(self) -> None:
        """See RolloutEngine. The model runs in this process: what could hang is its thread."""
        if not self.broken:
            try:
                self._progress.check(self._steps, busy=self._one_at_a_time.locked() and self._running.is_set())
            except EngineError as e:
                self.broken = str(e)
        if self.broken:
            raise EngineError(f"This engine is broken: {self.broken}. Start a new one.")

    async def sample_canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        if self._asleep:
            raise EngineError("A canary on a sleeping engine would wait for ever. Wake it first.")
        self._canaries += 1
        self._follow()
        try:
            return [
                await self.generate(p, Sampling(max_tokens, seed=seed + i), request_id=f"canary/{i}")
                for i, p in enumerate(prompt_ids)
            ]
        finally:
            self._canaries -= 1
            self._follow()

    def stats(self) -> dict[str, float]:
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
        """Returns None: this engine has no OpenAI app."""

    def drain_busy_intervals(self) -> list[tuple[float, float]]:
        return self._busy.drain()

    async def stop(self) -> None:
        """The model lives in this process, and ends with it."""
        self._node.remove()

    def _sample(
        self, prompt_ids: list[int], sampling: Sampling, request_id: str, given_up: threading.Event
    ) -> Completion:
        decoder = IncrementalDecoder(self.codec, prompt_ids)
        seed = (
            sampling.seed
            if sampling.seed is not None
            else int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=7).digest(), "big")
        )
        token_ids, logprobs, text = [], [], ""
        finish: Finish = "length"
        reason: str | None = None
        for token, logprob in self._tokens_of(prompt_ids, sampling, seed):
            token_ids.append(token)
            logprobs.append(logprob)
            self._sampled[request_id] = len(token_ids)
            new = decoder.push(token)
            text += new
            if token in self._eos:
                finish = "stop"
            elif stop := _matched_stop(text, len(new), sampling.stop):
                finish, (reason, text) = "stop", stop
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
        """Endless (token, its log-prob: of the plain softmax, or in a run that samples from another distribution of
        what it is drawn from)."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        ids, cache = torch.tensor([prompt_ids]), None
        while True:
            with torch.inference_mode():
                out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
            self._steps += 1
            logits_V, cache = out.logits[0, -1].float(), out.past_key_values
            probs_V = _probs(logits_V, sampling)
            token = int(torch.multinomial(probs_V, 1, generator=generator))
            yield (
                token,
                float(
                    torch.log_softmax(logits_V, -1)[token] if self._plain else (probs_V[token] / probs_V.sum()).log()
                ),
            )
            ids = torch.tensor([[token]])


def _probs(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """What is drawn from, up to a factor. [V]"""
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
        before_V = sorted_V.cumsum(0) - sorted_V  # the token that crosses top_p is kept
        probs_V = probs_V.clone()
        probs_V[order_V[before_V >= sampling.top_p]] = 0.0
    return probs_V


def _matched_stop(text: str, num_new: int, stops: Sequence[str]) -> tuple[str, str] | None:
    """-> (stop string, text cut right after it), the first of `stops` that ends in the last `num_new` characters."""
    for stop in stops:
        at = text.find(stop, max(0, len(text) - num_new - len(stop) + 1))
        if at >= 0:
            return stop, text[: at + len(stop)]
    return None
