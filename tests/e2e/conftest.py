"""One vLLM engine on the tiny model for all tests of engine and endpoints: it takes half a minute to start.

Files run in the order of their names; test_vllm_engine.py, which pushes other weights and breaks the engine at its end, is the last.
"""

from __future__ import annotations

import pytest_asyncio

from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import VllmEngine

from .tiny_model import save_tiny


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
    config = tiny_config()  # log-probs as sampled, which at temperature 1 and without truncation are those of the plain softmax
    engine = await VllmEngine.start(str(model), config.model_copy(update={"rollout": config.rollout.model_copy(update={"temperature": 0.6, "top_p": 0.9})}))
    yield engine
    await engine.stop()
