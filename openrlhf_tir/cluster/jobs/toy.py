"""The quickstart's base model: files, cold start on the services' learner, gates on its engines.

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

from ...config import Config
from ...logs.progress import bar
from ...toy import guess, lessons, puzzles
from ...toy.cold_start import Batch, check_gates, cold_start
from ...toy.model import save_model
from ...toy.task import write_data, write_jsonl, write_splits
from ...toy.traces import ColdStartTrace
from ...waiting.deadlines import Deadline
from ...weights.broadcast.transport import transport_of
from ...weights.publisher import WeightPublisher
from ...weights.push_files import push_directory
from ..nodes import only_here
from ..services import Services
from .evaluate import evaluate_held_out
from .inputs import Inputs
from .measured import EvalResult


class ToyBase:
    """Where the base model of a run lives. Made once per seed: a second quickstart goes straight to RL."""

    def __init__(self, cfg: Config, lesson: str = lessons.QUICKSTART) -> None:
        """`lesson`: what it is taught, a name of toy/lessons. Raises ConfigError for one that is not known."""
        self.cfg, self.seed = cfg, cfg.train.seed
        self.taught, self.lesson = lesson, lessons.named(lesson)
        self.init, self.directory = cfg.run_dir / "init", cfg.run_dir / "base"
        self.data = cfg.run_dir / ("_".join(["data", *cfg.envs]) if cfg.envs else "data")

    @property
    def ready(self) -> bool:
        """Whether a base model of this seed and lesson is there and passed its gates."""
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

    def _serving(self, what: str) -> str | None:
        """The environment, of several, that the toy's rows of this kind are for."""
        return (
            next((e.name for e in self.cfg.environments.values() if e.serves == what), None) if self.cfg.envs else None
        )

    def config(self, model: Path) -> Config:
        """The run's configuration with `model` as the policy and the toy problems as data, where none was named."""
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
    """Fine-tune the services' learner, prove it on the services' engines, export. Returns (sampled, greedy) figures of
    the base on the problems, without the games.

    Raises ColdStartError when the gates are still missed after the schedule's repairs.
    """
    cfg = base.config(base.init)
    publisher = WeightPublisher(
        services.learner,
        services.pool.members,
        push_directory(cfg.run_dir, 0, one_node=only_here()),
        inputs.canary,
        tolerance=cfg.canary_tolerance,
        seed=base.seed,
        deadline=Deadline.of(cfg, "timeouts.push_s"),
        transport=transport_of(cfg, services.learner),
    )
    services.pool.attach_prover(publisher.join)
    measured: list[tuple[EvalResult, EvalResult]] = []
    lesson = base.lesson
    schedule, gates = lesson.schedule, lesson.gates

    async def sft_step(rows: list[ColdStartTrace], lr: float) -> Mapping[str, float]:
        async with services.learning(), publisher.fine_tuning():
            return await services.learner.sft_step(rows, lr)

    with ExitStack() as shown:  # one display at a time: the bar of the fine-tuning ends before the evaluation's begins
        advance = shown.enter_context(bar("cold start: supervised fine-tuning", schedule.steps, services.console))

        async def judge() -> EvalResult:
            shown.close()
            await services.publishing(publisher).publish(0)
            if measured:
                missed = "; ".join(check_gates(measured[-1][0], gates))
                services.console.print(
                    f"outside the gates: {missed}. Trained some more.", soft_wrap=True, highlight=False
                )
            measured.append(
                await evaluate_held_out(
                    services,
                    cfg,
                    [t for t in inputs.held_out if t.meta.get("kind") not in (guess.KIND, puzzles.KIND)],
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
    # Engines that start from here on load the weights that the others hold.
    services.pool.detach_prover(publisher.join)
    services.pool.model = str(base.directory)
    await publisher.close()
    sampled, greedy = measured[-1]
    found = lessons.record(base.taught, base.seed) | {"sampled": asdict(sampled), "greedy": asdict(greedy)}
    (base.directory / lessons.FIGURES).write_text(json.dumps(found, indent=2))
    return sampled, greedy
