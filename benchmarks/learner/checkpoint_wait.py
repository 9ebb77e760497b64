"""Checkpoint wait: for how long does training stand still, and how long would it if it waited for the disk as well?

One learner rank (ZeRO-3, fp32, CPU) with a model of `--million` million parameters takes policy steps on `--tokens`
random tokens. Between the steps it saves: `save` copies the shards to host memory, a thread writes them. Side by side,
in turns:

    wait        `save` alone: what training waits for
    blocking    `save` and the disk: what it would wait for without the thread
    step        a learner step while nothing is written; `step_writing`: one while a checkpoint is being written

    python -m benchmarks.learner.checkpoint_wait
    python -m benchmarks.learner.checkpoint_wait --quick

The last line is one JSON object; times are medians in seconds. A real step also rolls and pushes, so its share of
waiting is smaller still."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.command import command_parser
from openrlhf_tir.config import Config


def save_model(directory: Path, million: float) -> int:
    """Random Qwen2 weights of about that size; returns the number of parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    width = max(64, int((million * 1e6 / 100) ** 0.5) // 64 * 64)  # 8 layers of 12.5 width^2
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=8,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(directory)
    return model.num_parameters()


def timed(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(model: Path, tokens: int, rounds: int, work: Path) -> dict[str, float]:
    from openrlhf_tir.learner.zero3 import Zero3Rank
    from openrlhf_tir.weights.rendezvous import served_store
    from tests.e2e.support.learner_batch import make_batch, random_groups

    cfg = Config(
        actor={"model_name_or_path": str(model), "num_gpus_per_node": 1},
        ds={"param_dtype": "fp32", "attn_implementation": "sdpa"},
        rollout={"batch_size": 4, "n_samples_per_prompt": 4},
    )
    store = served_store("127.0.0.1")
    learner = Zero3Rank(cfg, 0, 1, "127.0.0.1", store.port)
    groups = random_groups(max(1, tokens // 128), 4, 0)  # some 32 tokens each
    batch = make_batch(groups, 1)
    learner.step(batch, groups)  # the first of each allocates
    learner.save(work / "first")
    learner.written()

    def saved_to_disk(directory: Path) -> None:
        learner.save(directory)
        learner.written()

    found: dict[str, list[float]] = {"wait_s": [], "blocking_s": [], "step_s": [], "step_writing_s": []}
    for i in range(rounds):
        found["step_s"].append(timed(lambda: learner.step(batch, groups)))
        saved = timed(lambda i=i: learner.save(work / f"a{i}"))
        found["wait_s"].append(saved)
        found["step_writing_s"].append(timed(lambda: learner.step(batch, groups)))
        learner.written()
        found["blocking_s"].append(timed(lambda i=i: saved_to_disk(work / f"b{i}")))
        shutil.rmtree(work / f"a{i}")
        size = sum(f.stat().st_size for f in (work / f"b{i}").rglob("*") if f.is_file())
        shutil.rmtree(work / f"b{i}")
    learner.close()
    return {name: round(median(values), 4) for name, values in found.items()} | {
        "checkpoint_mib": round(size / 2**20, 1)
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--million", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1 million parameters, one round")
    args = parser.parse_args()
    million, tokens, rounds = (1.0, 1024, 1) if args.quick else (args.million, args.tokens, args.rounds)
    with tempfile.TemporaryDirectory(prefix="checkpoint_wait_") as work:
        parameters = save_model(Path(work) / "model", million)
        found = measure(Path(work) / "model", tokens, rounds, Path(work))
    shares = {
        "wait_share_of_step": round(found["wait_s"] / found["step_s"], 4),
        "blocking_share_of_step": round(found["blocking_s"] / found["step_s"], 4),
    }
    print(json.dumps({"parameters": parameters, "tokens": tokens, **found, **shares}))


if __name__ == "__main__":
    main()
