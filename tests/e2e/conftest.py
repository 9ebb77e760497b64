"""What several files share, because it takes a minute or half of one: a vLLM engine on the tiny model, and an
undisturbed run of the toy job.

Files run in the order of their names; test_vllm_engine.py, which pushes other weights and breaks the engine at its end,
is the last."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from benchmarks.crash_trial import Job, kill_runs, undisturbed
from miniatures.toy.model import save_model
from miniatures.toy.task import write_data
from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import VllmEngine

from .support.tiny_model import save_tiny

# Tests build faults into the worker by functions, which vLLM takes by this alone. Set here, before any test of this
# process starts an engine: the first one makes vLLM remember its environment, and both ends must agree.
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"

ENGINE_FILES = {
    f"tests/e2e/{name}.py"
    for name in ("agents/test_openai_inputs", "agents/test_openai_sessions", "test_packed_logprobs", "test_vllm_engine")
}
"""Those with the fixture `engine`. (xdist 3.8's groups have no effect with pytest 9.2.)"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a file to one process of xdist, and the files of the engine to the same: it is started once."""
    from xdist.scheduler import LoadFileScheduling

    class OneEngine(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "engine" if file in ENGINE_FILES else file

    return OneEngine(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def no_run_outlives_its_test(tmp_path):
    """A test that fails or is ended by its time limit leaves no run that takes the cores from those after it."""
    yield
    kill_runs(tmp_path)


def tiny_config() -> Config:
    return Config(
        vllm={"sync_backend": "file", "kv_cache_mib": 64, "max_num_seqs": 64},
        ds={"param_dtype": "fp32"},
        data={"max_len": 384},
        rollout={"max_new_tokens": 256},
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(tmp_path_factory):
    model = save_tiny(tmp_path_factory.mktemp("model"), seed=0)
    # log-probs as sampled, which at temperature 1 and without truncation are those of the plain softmax
    config = tiny_config()
    engine = await VllmEngine.start(
        str(model),
        config.model_copy(update={"rollout": config.rollout.model_copy(update={"temperature": 0.6, "top_p": 0.9})}),
    )
    yield engine
    await engine.stop()


@dataclass(frozen=True)
class Undisturbed:
    """The toy job in full (Ray, two ZeRO-3 ranks, a sandbox server, the deterministic engine, S = 0), and what came of
    it when nobody interfered."""

    job: Job
    digest: str
    """Of its final weights: every run of the job must end with them."""
    step_s: float


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory) -> Undisturbed:
    work = tmp_path_factory.mktemp("toy_job")
    save_model(work / "init", seed=0)
    write_data(work, seed=0, n_train=200)
    job = Job(work, None, engine="torch", mode="sync", steps=5)
    digest, _, seconds = undisturbed(work / "undisturbed", job)
    return Undisturbed(job, digest, seconds / job.steps)
