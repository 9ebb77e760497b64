"""Faults built into real vLLM workers, in bf16 and fp32, alone and as one rank of two: no push with a fault is proved.

test_vllm_engine.py has the same faults in fp32 on one worker, in the ordinary suite. Here is what takes minutes: bf16,
where a threshold follows the pushes, and tensor parallelism, where one rank alone is at fault. `python -m
benchmarks.canary` does it with a real language model.
"""

from __future__ import annotations

import pytest
import pytest_asyncio

from benchmarks.canary.faults import MODEL_KINDS, Fault, all_faults, applicable_faults, install, packs_head
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.weights.publisher import WeightPublisher

from ...contract.called_in_process import CalledInProcess
from ..conftest import tiny_config
from ..support.tiny_model import HfLearner, make_model, make_tokenizer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
LAYERS = 3
SHAPES = [("bf16", 1), ("fp32", 2), ("bf16", 2)]
SMALLEST_UPDATE = {"fp32": 1e-6, "bf16": 2e-3}
"""What an update adds to every tenth weight. In bf16 that is one or two units in the last place of most weights."""
UNSEEN = {"bf16": "norm_epsilon", "fp32": ""}
"""What this model's log-probs do not show: see docs/weights.md."""


class Learner(HfLearner):
    """An HfLearner with weights in fp32 or bf16."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.dtype = dtype
        super().__init__(seed)

    def reset(self, seed: int) -> None:
        model = make_model(seed, scale=self.scale)
        self.model = model.bfloat16() if self.dtype == "bf16" else model


class Target(CalledInProcess):
    """An engine as a push target that survives being discarded, because the next test needs it."""

    name = "rollout-0"

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.update_weights = engine.update_weights
        self.sample_canary = engine.sample_canary
        self.confirm_weights = engine.confirm_weights

    async def discard(self, reason: str) -> None:
        self.engine.proof.proved(self.engine.version)


class Run:
    """An engine, the learner and the publisher between them, whose reference follows the right pushes of all tests."""

    def __init__(self, engine: VllmEngine, learner: Learner, publisher: WeightPublisher, dtype: str) -> None:
        self.engine = engine
        self.learner = learner
        self.publisher = publisher
        self.dtype = dtype
        self.version = 0

    async def push(self, **kwargs):
        self.version += 1
        self.learner.version = self.version
        return await self.publisher.publish(self.version, **kwargs)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]}-tp{shape[1]}"
)
async def run(request, tmp_path_factory):
    dtype, ranks = request.param
    config = tiny_config()
    config.ds.param_dtype = dtype
    config.vllm.tensor_parallel_size = ranks
    directory = tmp_path_factory.mktemp("model")
    learner = Learner(0, dtype)
    learner.model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    texts = [make_tokenizer().encode(f"User: What is {n}*{n + 3}?\nAssistant:") for n in range(11, 27)]
    engine = await VllmEngine.start(str(directory), config)
    publisher = WeightPublisher(
        learner, [Target(engine)], tmp_path_factory.mktemp("push"), texts, tolerance=1e-4 if dtype == "fp32" else None
    )
    if dtype == "bf16":
        await publisher.calibrate()
    yield Run(engine, learner, publisher, dtype)
    await engine.stop()


def on_rank(worker, rank: int, kind: str, layer: int, before: str, other: str) -> None:
    """Build a fault into the worker of one rank, the others stay right; `rank` -1: into all."""
    if rank in (-1, worker.rank):
        install(worker, kind, layer, LAYERS, before, other)


async def refused_then_proved(run: Run, fault: Fault, rank: int, tmp_path) -> None:
    """Push a smallest update to a worker with a fault, then again without the fault."""
    if not applicable_faults([fault], await run.engine._llm.collective_rpc(packs_head)):
        pytest.skip("the kernels of this CPU pack no head in this precision")
    assert (await run.push()).refused == 0
    before, other = tmp_path / "before.safetensors", tmp_path / "other.safetensors"
    await run.learner.publish(before)
    await Learner(77, run.dtype).publish(other)
    run.learner.nudge([""], by=SMALLEST_UPDATE[run.dtype])
    faults = run.engine._llm.collective_rpc
    await faults(on_rank, args=(rank, fault.kind, fault.layer, str(before), str(other)))
    try:
        assert (await run.push()).refused == 1
    finally:
        await faults(on_rank, args=(-1, "none", -1, str(before), str(other)))
    report = await run.push()
    assert report.refused == 0 and report.canary_excess < 1


@pytest.mark.parametrize("fault", all_faults(LAYERS), ids=lambda fault: fault.name)
async def test_no_push_with_a_fault_on_every_rank_is_proved(run, fault, tmp_path):
    if fault.kind == UNSEEN[run.dtype]:
        pytest.skip("smaller than the numerics of this model")
    await refused_then_proved(run, fault, -1, tmp_path)


@pytest.mark.parametrize("fault", all_faults(LAYERS), ids=lambda fault: fault.name)
async def test_no_push_with_a_fault_on_one_rank_of_two_is_proved(run, fault, tmp_path):
    """`nothing_loaded` here is the rank that keeps the version before."""
    if run.engine._llm.vllm_config.parallel_config.tensor_parallel_size == 1:
        pytest.skip("one rank")
    if fault.kind not in MODEL_KINDS and fault.layer < 0:
        pytest.skip("computing wrongly on one rank is half of computing wrongly on both")
    await refused_then_proved(run, fault, 1, tmp_path)
