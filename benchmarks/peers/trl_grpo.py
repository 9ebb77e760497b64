"""trl: TRL's GRPOTrainer on the same problems, in its own venv. Its generation is Hugging Face's; its engine of choice,
vLLM, it can use on GPUs only.

    trl         without tools, as GRPOTrainer does by itself: the model answers in its head
    trl_tools   with the sandbox, by its `rollout_func`: benchmarks/peers/rollout.py, or chat_rollout.py, writes the
                turns, TRL masks what the model did not write (`env_mask`)

Its own `tools` and `environment_factory` do not fit: they read calls from messages, by the tokenizer's response
template, in JSON. Code in fences is none.

The toy is trained in float32; a language model as TRL does by `bf16 = True`: float32 weights with bf16 autocast, around
the rollout too.

Settings are the recipe's where TRL has them: `scale_rewards="batch"` with group means is nearest to
REINFORCE++-baseline, `loss_type="dapo"` is a token mean.

python -m benchmarks.peers.trl_grpo WORK.json
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, StoppingCriteriaList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from .reward import correct
from .rollout import Stops, has_ended, until_padding
from .sandbox import Client, sandbox
from .tasks import PeersTask, task_of
from .work import TOY, Recorder, Work, mean, with_variance


class Timed(GRPOTrainer):
    """GRPOTrainer that tells the recorder how long it generates. A rollout function tells that itself."""

    recorder: Recorder

    def _generate_single_turn(self, *given: Any, **more: Any) -> Any:
        """Its own, less the padding behind a stop string: it looks for the end-of-sequence token alone."""
        since = time.monotonic()
        completion_ids, logprobs = super()._generate_single_turn(*given, **more)
        self.recorder.spent("generate", since)
        return [until_padding(ids) for ids in completion_ids], logprobs


class Task:
    """What TRL calls during training: rollout function and reward function, and the counts of the update under way.
    TRL hands prompts on as text, so rows are found by it: no question is asked twice."""

    recorder: Recorder
    """Made when training begins: its clock runs from then."""

    def __init__(self, work: Work, peers_task: PeersTask, tools: Client | None) -> None:
        self.work = work
        self.peers_task = peers_task
        self.tools = tools
        self.rows = {peers_task.prompt(row): row for row in work.rows("train")}
        self.sampled, self.rewards = 0, [0.0]

    def rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        assert self.tools is not None
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        made = self.peers_task.roll(model, [self.rows[p] for p in prompts], self.tools, self.recorder.spent)
        model.train()
        return {
            "prompt_ids": [s.prompt_ids for s in made],
            "completion_ids": [s.ids for s in made],
            "logprobs": None,
            "env_mask": [s.mine for s in made],
            "written": [sum(s.mine) for s in made],
            "scored": [s.reward for s in made],
        }

    def reward(
        self, completions: list[str], completion_ids: list[list[int]], label: list[str], **more: Any
    ) -> list[float]:
        """Return the rewards of the rollout; without tools, those of what TRL has sampled."""
        self.sampled += sum(more.get("written", map(len, completion_ids)))
        self.rewards = more.get("scored") or [
            correct(text, has_ended(ids, text), gold)
            for text, ids, gold in zip(completions, completion_ids, label, strict=True)
        ]
        return self.rewards


class Steps(TrainerCallback):
    def __init__(self, task: Task) -> None:
        self.task = task

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        task = self.task
        varied = with_variance(task.rewards, task.work.samples)
        task.recorder.done(state.global_step, task.sampled, task.sampled, mean(task.rewards), len(task.rewards), varied)
        task.sampled = 0
        print(f"step {state.global_step}: reward {mean(task.rewards):.3f}", flush=True)
        if directory := task.work.due(state.global_step):
            task.peers_task.save(kwargs["model"], directory)


def stopping(generate: Any) -> Any:
    """`generate` with the recipe's stop strings, without which this base model writes on to the end of its budget. TRL
    hands on `stop_strings`, but not the tokenizer that transformers wants for them."""

    def stopped(*given: Any, input_ids: torch.Tensor, **more: Any) -> Any:
        none = torch.zeros(len(input_ids), dtype=torch.bool)
        return generate(
            *given, input_ids=input_ids, stopping_criteria=StoppingCriteriaList([Stops(none, none)]), **more
        )

    return stopped


def config(work: Work) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(Path(work.out) / "trl"),
        use_cpu=True,
        bf16=work.model != TOY,
        gradient_checkpointing=False,
        max_steps=work.steps,
        per_device_train_batch_size=work.micro_batch,
        gradient_accumulation_steps=work.prompts * work.samples // work.micro_batch,
        num_generations=work.samples,
        max_completion_length=work.max_new_tokens,
        temperature=work.temperature,
        beta=0.0,
        epsilon=work.clip[0],
        epsilon_high=work.clip[1],
        scale_rewards="batch",
        loss_type="dapo",
        max_grad_norm=work.max_norm,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        seed=work.seed,
    )


def train(work: Work) -> None:
    torch.set_num_threads(work.threads)
    peers_task = task_of(work)
    model = peers_task.load(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.lr, betas=work.betas, weight_decay=0.0)
    rows = [{"prompt": peers_task.prompt(row), "label": row["label"]} for row in work.rows("train")]

    def run(tools: Client | None) -> None:
        task = Task(work, peers_task, tools)
        trainer = Timed(
            model=model,
            reward_funcs=task.reward,
            args=config(work),
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(work.base),
            callbacks=[Steps(task)],
            optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, work.lr_factor)),
            rollout_func=task.rollout if tools else None,
        )
        trainer.recorder = task.recorder = Recorder(Path(work.out))
        trainer.train()

    if work.calls:
        with sandbox(work.env_python, Path(work.out), work.env_workers) as tools:
            run(tools)
    else:
        model.generate = stopping(model.generate)
        run(None)


if __name__ == "__main__":
    train(Work.read(sys.argv[1]))
