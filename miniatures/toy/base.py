"""The quickstart's base model: its files, a cold start on the session's learner, and gates on its engines.

run_dir/data/{train,test}.jsonl      problems
run_dir/init                         random weights, tokenizer
run_dir/base                         the cold-started model; base/figures.json says that it passed its gates
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from miniatures.rows import write_jsonl
from miniatures.toy import guess, lessons, puzzles
from miniatures.toy.cold_start import Batch, check_gates, cold_start
from miniatures.toy.model import save_model
from miniatures.toy.task import write_data, write_splits
from miniatures.toy.traces import ColdStartTrace
from openrlhf_tir.cluster.jobs.evaluate import evaluate_held_out
from openrlhf_tir.cluster.jobs.inputs import Inputs
from openrlhf_tir.cluster.jobs.measured import EvalResult
from openrlhf_tir.cluster.nodes import has_gpus, only_here
from openrlhf_tir.cluster.say import say
from openrlhf_tir.cluster.services import Services
from openrlhf_tir.config import Config
from openrlhf_tir.machine.files import replace_text
from openrlhf_tir.telemetry.progress import bar
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.publisher import WeightPublisher
from openrlhf_tir.weights.push_files import push_directory
from openrlhf_tir.weights.transports import transport_of


class ToyBase:
    """The base model of a run and where it is kept. It is made once per seed: a second quickstart starts with RL."""

    def __init__(self, cfg: Config, lesson: str = lessons.QUICKSTART) -> None:
        """Create the object; nothing is written yet.

        Args:
            cfg: The run's configuration.
            lesson: What the model is taught: a name of miniatures/toy/lessons.

        Raises:
            ConfigError: There is no such lesson.
        """
        self.cfg = cfg
        self.seed = cfg.train.seed
        self.taught = lesson
        self.lesson = lessons.named(lesson)
        self.init = cfg.run_dir / "init"
        self.directory = cfg.run_dir / "base"
        self.data = cfg.run_dir / ("_".join(["data", *cfg.envs]) if cfg.envs else "data")

    @property
    def ready(self) -> bool:
        """Whether there is a base model of this seed and lesson that passed its gates."""
        done = self.directory / lessons.FIGURES
        return self.data.exists() and lessons.is_base(done, self.taught, self.seed)

    def prepare(self) -> None:
        """Write problems, tokenizer and random weights."""
        if self.taught == lessons.QUICKSTART:
            write_data(
                self.data,
                self.seed,
                env=self._serving("python_tir"),
                game=self._serving("guess"),
                puzzles=self._serving("puzzles"),
            )
        else:
            write_splits(self.data, self.seed, self.lesson.rows)
        if self.lesson.examples:
            write_jsonl(self.lesson.examples(lessons.EXAMPLES, self.seed), self.data / "sft.jsonl")
        save_model(self.init, self.seed)

    def _serving(self, server: str) -> str | None:
        """Return the environment with this server; None if there is none, or if the run has a single environment."""
        if not self.cfg.envs:
            return None
        return next((env.name for env in self.cfg.environments.values() if env.serves == server), None)

    def config(self, model: Path) -> Config:
        """Return the run's configuration with `model` as the policy, and the toy problems as data if none were
        named."""
        data = {} if self.cfg.data.prompt_dataset else {"prompt_dataset": str(self.data / "train.jsonl")}
        held_out = {} if self.cfg.eval.dataset else {"dataset": str(self.data / "test.jsonl")}
        return self.cfg.model_copy(
            update={
                "actor": self.cfg.actor.model_copy(update={"model_name_or_path": str(model)}),
                "data": self.cfg.data.model_copy(update=data),
                "eval": self.cfg.eval.model_copy(update=held_out),
            }
        )


async def make_base(services: Services, base: ToyBase, inputs: Inputs) -> tuple[EvalResult, EvalResult]:
    """Fine-tune the session's learner, prove the weights on its engines, and export the model.

    Returns:
        The (sampled, greedy) figures of the base model on the problems, without the games.

    Raises:
        ColdStartError: The gates are still missed after the repairs of the schedule.
    """
    cfg = base.config(base.init)
    directory = push_directory(cfg.run_dir, 0, one_node=only_here())
    publisher = WeightPublisher(
        services.learner,
        services.pool.members,
        directory,
        inputs.canary,
        tolerance=cfg.fixed_canary_tolerance,
        seed=base.seed,
        deadline=Deadline.of(cfg, "timeouts.push_s"),
        # A cold start pushes whole files: its weights change without a version for deltas to continue.
        transport=None
        if cfg.push_backend == "file"
        else transport_of(cfg, services.learner, directory, gpus=has_gpus()),
    )
    services.pool.attach_prover(publisher.join)
    measured: list[tuple[EvalResult, EvalResult]] = []
    lesson = base.lesson
    schedule, gates = lesson.schedule, lesson.gates

    async def sft_step(rows: list[ColdStartTrace], lr: float) -> Mapping[str, float]:
        async with services.learning(), publisher.fine_tuning():
            return await services.learner.sft_step(rows, lr)

    with ExitStack() as shown:  # Only one bar at a time: that of the fine-tuning ends before the evaluation's starts.
        advance = shown.enter_context(bar("cold start: supervised fine-tuning", schedule.steps, services.console))

        async def judge() -> EvalResult:
            shown.close()
            await services.publishing(publisher).publish(0)
            if measured:
                missed = "; ".join(check_gates(measured[-1][0], gates))
                say(services.console, f"not as wanted yet: {missed}. The fine-tuning goes on.")
            measured.append(
                await evaluate_held_out(
                    services,
                    cfg,
                    [task for task in inputs.held_out if task.meta.get("kind") not in (guess.KIND, puzzles.KIND)],
                    "the base model",
                )
            )
            return measured[-1][0]

        def on_step(batch: Batch, metrics: Mapping[str, float]) -> None:
            if not measured:
                advance(note=f"loss {metrics['loss']:.3f}")

        await cold_start(
            sft_step,
            judge,
            seed=base.seed,
            schedule=schedule,
            draw=lesson.draw,
            gates=gates,
            steered=lesson.steered,
            on_step=on_step,
        )
    await services.learner.export(base.directory)
    # Engines that start from now on load the weights that the others hold.
    services.pool.detach_prover(publisher.join)
    services.pool.cfg = base.config(base.directory)
    await publisher.close()
    sampled, greedy = measured[-1]
    record = lessons.record(base.taught, base.seed) | {"sampled": asdict(sampled), "greedy": asdict(greedy)}
    replace_text(base.directory / lessons.FIGURES, json.dumps(record, indent=2))
    return sampled, greedy
