"""vLLM's scheduler, handing over what it sampled in batches. See packed_logprobs.py.

This module runs in vLLM's EngineCore process, which imports it because the engine argument `scheduler_cls` names it.
What is scheduled, sampled and computed stays vLLM's: only the form of a step's outputs, and when they leave, differs.
The scheduler also tells how long each step took that computed tokens of prompts.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import SchedulerIterationDetails
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.utils import compute_iteration_details

from .packed_logprobs import HOLD_S, HeldTokens, TokenTexts, is_packed


class ListedRows(NamedTuple):
    """Stands for the step's log-probs in vLLM's own loop, which slices them for each request that wants any."""

    lists: LogprobsLists
    rows: set[int]
    """Rows of the requests that go vLLM's own way."""

    def slice_request(self, row: int, count: int) -> LogprobsLists | None:
        """Return the log-probs of one request; None if they are packed."""
        return self.lists.slice_request(row, count) if row in self.rows else None


class Ended(NamedTuple):
    """A packed request that was aborted. Its held tokens leave with the next step's outputs."""

    client_index: int
    request_id: str
    finish_reason: FinishReason | None


class PackingScheduler(Scheduler):
    """vLLM's scheduler with packed log-probs and held tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._packed: dict[str, HeldTokens] = {}
        """The packed requests and what they sampled since their last output left."""
        self._listed: set[str] = set()
        """Requests with log-probs that go vLLM's own way."""
        self._ended: list[Ended] = []
        self._texts = TokenTexts(getattr(self.structured_output_manager, "tokenizer", None))
        self._handed_over_at = time.monotonic()
        self._steps_under_way = 0
        self._step_began_at = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Choose what the next step computes, as vLLM does."""
        if not self._steps_under_way:
            self._step_began_at = time.monotonic()
        self._steps_under_way += 1
        return super().schedule(*args, **kwargs)

    def add_request(self, request: Request) -> None:
        """Add a request, as vLLM does."""
        params = request.sampling_params
        if is_packed(params):
            self._packed[request.request_id] = HeldTokens(
                request.client_index, self._texts.last_characters(params.stop)
            )
        elif params is not None and params.num_logprobs is not None:
            self._listed.add(request.request_id)
        super().add_request(request)

    def finish_requests(self, request_ids: Any, finished_status: RequestStatus) -> list[Request]:
        """End requests, as vLLM does. The tokens that a packed one holds leave with its end, in the next step."""
        ended = super().finish_requests(request_ids, finished_status)
        self._ended += [
            Ended(request.client_index, request.request_id, request.get_finished_reason())
            for request in ended
            if request.request_id in self._packed
        ]
        return ended

    def has_requests(self) -> bool:
        """Return True if a step is needed: vLLM's own reasons, or tokens that must leave before a pause is complete."""
        return super().has_requests() or bool(self._ended) or (self._pausing and self._holds_any)

    @property
    def _pausing(self) -> bool:
        return self.pause_state != PauseState.UNPAUSED

    @property
    def _holds_any(self) -> bool:
        return any(held.token_ids for held in self._packed.values())

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Return the outputs that leave now, by client, with the packed log-probs of each client's on one of them."""
        lists = model_runner_output.logprobs
        if lists is not None and (lists.cu_num_generated_tokens is not None or not self._packed):
            lists = None  # several tokens for a request, or nobody's: vLLM's own way
        row_of = model_runner_output.req_id_to_index
        if lists is not None:
            listed_rows = {row_of[request_id] for request_id in self._listed if request_id in row_of}
            model_runner_output.logprobs = ListedRows(lists, listed_rows) if listed_rows else None
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._note_prefill(scheduler_output, outputs)
        if lists is not None:
            self._keep(outputs, lists, row_of)
        if self._packed:
            self._hand_over(outputs, everything=self._pausing or time.monotonic() - self._handed_over_at >= HOLD_S)
        self._forget_finished()
        return outputs

    def _note_prefill(self, step: SchedulerOutput, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Put the seconds of a step that computed tokens of prompts on its statistics.

        Such a step computes a new request, or several tokens of one: the next part of a long prompt, or what a request
        had computed before a push or another request took its KV cache. vLLM's own measurement of a step
        (enable_logging_iteration_details) leaves out the model's forward pass where that is made in this process.
        """
        began, self._step_began_at = self._step_began_at, time.monotonic()
        self._steps_under_way -= 1
        if not step.scheduled_new_reqs and step.total_num_scheduled_tokens <= len(step.num_scheduled_tokens):
            return
        stats = next((of_client.scheduler_stats for of_client in outputs.values() if of_client.scheduler_stats), None)
        if stats is None:
            return
        counts = compute_iteration_details(step)
        stats.iteration_details = SchedulerIterationDetails(
            iteration_index=0,
            num_ctx_requests=counts.num_ctx_requests,
            num_ctx_tokens=counts.num_ctx_tokens,
            num_generation_requests=counts.num_generation_requests,
            num_generation_tokens=counts.num_generation_tokens,
            elapsed_ms=(self._step_began_at - began) * 1e3,
        )

    def _keep(self, outputs: dict[int, EngineCoreOutputs], lists: LogprobsLists, row_of: dict[str, int]) -> None:
        """Hold the step's packed tokens, and leave only those outputs that must leave now."""
        token_ids = lists.logprob_token_ids[:, 0].tolist()
        logprobs = lists.logprobs[:, 0].tolist()
        for of_client in outputs.values():
            leaving = []
            for output in of_client.outputs:
                held = self._packed.get(output.request_id)
                if held is not None and output.new_token_ids:
                    row = row_of[output.request_id]
                    held.add(output.new_token_ids, token_ids[row], logprobs[row])
                    if _may_wait(output) and not self._texts.may_end(output.new_token_ids, held.last_characters):
                        continue
                leaving.append(output)
            of_client.outputs = leaving

    def _hand_over(self, outputs: dict[int, EngineCoreOutputs], *, everything: bool) -> None:
        """Put held tokens and their log-probs on the outputs that leave.

        Args:
            outputs: Those that leave, by client. An output is added for each request that has held tokens and none.
            everything: Hand over all that is held, and not only what belongs to an output that leaves.
        """
        for ended in self._ended:
            of_client = outputs.setdefault(ended.client_index, EngineCoreOutputs())
            of_client.outputs.append(EngineCoreOutput(ended.request_id, [], finish_reason=ended.finish_reason))
        self._ended.clear()
        if everything:
            self._handed_over_at = time.monotonic()
            leaving = {output.request_id for of_client in outputs.values() for output in of_client.outputs}
            for request_id, held in self._packed.items():
                if held.token_ids and request_id not in leaving:
                    of_client = outputs.setdefault(held.client_index, EngineCoreOutputs())
                    of_client.outputs.append(EngineCoreOutput(request_id, []))
        for of_client in outputs.values():
            self._pack(of_client.outputs)

    def _pack(self, outputs: list[EngineCoreOutput]) -> None:
        token_ids: list[int] = []
        logprobs: list[float] = []
        ends = [0]
        carrier = None
        for output in outputs:
            held = self._packed.get(output.request_id)
            if held is not None and held.token_ids:
                output.new_token_ids = held.token_ids
                token_ids += held.row_token_ids
                logprobs += held.logprobs
                held.clear()
                carrier = carrier or output
            ends.append(len(token_ids))
        if carrier is not None:
            carrier.new_logprobs = packed_rows(token_ids, logprobs, ends)

    def _forget_finished(self) -> None:
        """Drop what is kept of requests that vLLM has finished, once they are the greater part."""
        if len(self._packed) > 2 * len(self.requests) + 64:
            self._packed = {
                request_id: held for request_id, held in self._packed.items() if request_id in self.requests
            }
        if len(self._listed) > 2 * len(self.requests) + 64:
            self._listed.intersection_update(self.requests)


class PackingAsyncScheduler(PackingScheduler, AsyncScheduler):
    """vLLM's scheduler for async scheduling with packed log-probs and held tokens."""


def packing_scheduler(vllm_config: Any, **kwargs: Any) -> PackingScheduler:
    """Return the scheduler that vLLM would have made, handing over what it sampled in batches."""
    chosen = PackingAsyncScheduler if vllm_config.scheduler_config.async_scheduling else PackingScheduler
    return chosen(vllm_config=vllm_config, **kwargs)


def packed_rows(token_ids: list[int], logprobs: list[float], ends: list[int]) -> LogprobsLists:
    """Return the rows of a step's outputs as packed_logprobs.py describes them."""
    return LogprobsLists(
        np.asarray(token_ids, np.int32)[:, None],
        np.asarray(logprobs, np.float32)[:, None],
        np.zeros(0, np.int32),
        ends,
    )


def _may_wait(output: EngineCoreOutput) -> bool:
    """Return True if an output says nothing but that its request sampled tokens."""
    return (
        output.finish_reason is None
        and output.events is None
        and output.prefill_stats is None
        and output.new_prompt_logprobs_tensors is None
        and output.routed_experts is None
        and output.new_sampling_mask is None
        and output.num_nans_in_logits == 0
    )
