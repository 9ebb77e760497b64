"""python -m benchmarks.routing_replay: log-probs of engine and learner on a tiny mixture of experts in bf16, with the
learner's own experts and with those that the engine returned (rollout.routing_replay).

The engine is vLLM on a CPU, the learner's side transformers with the same weights in the same process. The last line is
JSON: tokens, the share of (token, layer) whose experts differ, and the differences in nats. `level` is the canary's
statistic (docs/weights.md), the mean of |difference| / (1 - p) over tokens with p up to 95 %, and `spread` the standard
deviation of that quotient over its mean, of which the canary's thresholds assume .9.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.command import command_parser
from miniatures.toy.model import build_mixture, save_model
from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.types import Completion, Sampling

PROMPT = "User: What is 17*23?\nAssistant:"
CERTAIN = 0.95
"""Probability of tokens that the canary leaves out, because they do not differ whatever the weights."""


async def sample(directory: Path, prompt: list[int], responses: int, tokens: int) -> list[Completion]:
    """Return responses of the engine, with the experts of their tokens."""
    cfg = Config(
        vllm={"sync_backend": "file", "kv_cache_mib": 64, "max_num_seqs": 64},
        ds={"param_dtype": "bf16"},
        data={"max_len": 384},
        rollout={"max_new_tokens": 256, "routing_replay": True},
    )
    engine = await VllmEngine.start(str(directory), cfg)
    try:
        return await asyncio.gather(
            *(engine.generate(prompt, Sampling(tokens, seed=i), request_id=f"r{i}") for i in range(responses))
        )
    finally:
        await engine.stop()


def measure(prompt: list[int], completions: list[Completion], seed: int) -> dict[str, float]:
    """Compare the engine's log-probs with the learner's, without and with the engine's experts."""
    import torch

    from openrlhf_tir.learner.routing_replay import RoutingReplay, find_routers

    model = build_mixture(seed).bfloat16().eval()
    replay = RoutingReplay(model)
    chosen: dict[int, torch.Tensor] = {}
    for layer, router in find_routers(model).items():
        router.register_forward_hook(lambda module, args, output, layer=layer: chosen.update({layer: output[2]}))
    differences: dict[str, list[np.ndarray]] = {"own": [], "replayed": []}
    quotients: dict[str, list[np.ndarray]] = {"own": [], "replayed": []}
    other_experts: list[np.ndarray] = []
    for completion in completions:
        ids = torch.tensor([[*prompt, *completion.token_ids.tolist()]])
        experts = completion.experts
        assert experts is not None, "the engine was started with routing_replay"
        given = torch.full((ids.shape[1], *experts.shape[1:]), -1, dtype=torch.int16)
        given[: len(experts)] = torch.from_numpy(experts.astype(np.int16))
        for name, use in (("own", None), ("replayed", given)):
            replay.use(use)
            with torch.no_grad():
                logits = model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            scored = logits.gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy()
            differences[name].append(np.abs(scored - completion.logprobs))
            uncertain = np.exp(scored) <= CERTAIN
            quotients[name].append((differences[name][-1] / -np.expm1(scored))[uncertain])
            if use is None:
                own = np.stack([chosen[layer].numpy() for layer in sorted(chosen)], axis=1)[:-1]
                other_experts.append((np.sort(own, -1) != np.sort(experts, -1)).any(-1).ravel())
    result = {"tokens": sum(map(len, differences["own"])), "other_experts": float(np.concatenate(other_experts).mean())}
    for name, values in differences.items():
        joined = np.concatenate(values)
        result |= {f"{name}_mean": float(joined.mean()), f"{name}_max": float(joined.max())}
        result[f"{name}_p99"] = float(np.quantile(joined, 0.99))
        quotient = np.concatenate(quotients[name])
        result[f"{name}_level"] = float(quotient.mean())
        result[f"{name}_spread"] = float(quotient.std() / quotient.mean())
    return result


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="routing-") as directory:
        save_model(Path(directory), args.seed, mixture=True)
        from transformers import AutoTokenizer

        prompt = AutoTokenizer.from_pretrained(directory).encode(PROMPT)
        completions = asyncio.run(sample(Path(directory), prompt, args.responses, args.tokens))
        print(json.dumps(measure(prompt, completions, args.seed)))


if __name__ == "__main__":
    main()
