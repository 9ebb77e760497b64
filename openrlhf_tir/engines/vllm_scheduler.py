"""vLLM's scheduler, sending the log-probs of sampled tokens as one array per step. See packed_logprobs.py.

This module runs in vLLM's EngineCore process, which imports it because the engine argument `scheduler_cls` names it.
What is scheduled, sampled and computed stays vLLM's: only the form of the log-probs in a step's outputs differs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request

from .packed_logprobs import is_packed


class ListedRows(NamedTuple):
    """Stands for the step's log-probs in vLLM's own loop, which slices them for each request that wants any."""

    lists: LogprobsLists
    rows: set[int]
    """Rows of the requests that go vLLM's own way."""

    def slice_request(self, row: int, count: int) -> LogprobsLists | None:
        """Return the log-probs of one request; None if they are packed."""
        return self.lists.slice_request(row, count) if row in self.rows else None


class PackingScheduler(Scheduler):
    """vLLM's scheduler with packed log-probs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._packed: set[str] = set()
        self._listed: set[str] = set()
        """Requests with log-probs that go vLLM's own way."""

    def add_request(self, request: Request) -> None:
        """Add a request, as vLLM does."""
        params = request.sampling_params
        if is_packed(params):
            self._packed.add(request.request_id)
        elif params is not None and params.num_logprobs is not None:
            self._listed.add(request.request_id)
        super().add_request(request)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Return the step's outputs by client, with the packed log-probs of each on one of them."""
        lists = model_runner_output.logprobs
        several_tokens = lists is not None and lists.cu_num_generated_tokens is not None
        if lists is None or several_tokens or not self._packed:
            return super().update_from_output(scheduler_output, model_runner_output)
        row_of = model_runner_output.req_id_to_index
        listed_rows = {row_of[request_id] for request_id in self._listed if request_id in row_of}
        model_runner_output.logprobs = ListedRows(lists, listed_rows) if listed_rows else None
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for of_client in outputs.values():
            self._pack(of_client.outputs, lists, row_of)
        self._forget_finished()
        return outputs

    def _pack(self, outputs: list[EngineCoreOutput], lists: LogprobsLists, row_of: dict[str, int]) -> None:
        packed = self._packed
        rows: list[int] = []
        ends = [0]
        carrier = None
        for output in outputs:
            if output.new_token_ids and output.request_id in packed:
                rows.append(row_of[output.request_id])
                carrier = carrier or output
            ends.append(len(rows))
        if carrier is not None:
            carrier.new_logprobs = LogprobsLists(
                lists.logprob_token_ids[rows, :1], lists.logprobs[rows, :1], lists.sampled_token_ranks[:0], ends
            )

    def _forget_finished(self) -> None:
        """Drop the ids of requests that vLLM has finished, once they are the greater part."""
        for ids in (self._packed, self._listed):
            if len(ids) > 2 * len(self.requests) + 64:
                ids.intersection_update(self.requests)


class PackingAsyncScheduler(PackingScheduler, AsyncScheduler):
    """vLLM's scheduler for async scheduling with packed log-probs."""


def packing_scheduler(vllm_config: Any, **kwargs: Any) -> PackingScheduler:
    """Return the scheduler that vLLM would have made, with packed log-probs."""
    chosen = PackingAsyncScheduler if vllm_config.scheduler_config.async_scheduling else PackingScheduler
    return chosen(vllm_config=vllm_config, **kwargs)
