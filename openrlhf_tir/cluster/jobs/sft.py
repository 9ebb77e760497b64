"""Fine-tune on the learner's ranks: start Ray and the ranks, run the loop (pipeline/fine_tuning.py), export the model.
No engine is started.

Ranks that die start again from the last checkpoint, at most MAX_RESTARTS times without a new one.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ...config import Config
from ...config.secrets import without_keys
from ...config.settings import to_toml
from ...errors import LearnerDied
from ...learner.schedule import lr_schedule
from ...observability.sinks import mirrors_of
from ...pipeline.checkpoints import disk, model_export
from ...pipeline.checkpoints.checkpoint import Checkpoints
from ...pipeline.checkpoints.ranks import resume_messages
from ...pipeline.fine_tuning import EVAL_LOSS, FineTuning
from ...pipeline.stop import StopRequest
from ...telemetry.metrics import MetricsLog, read
from ...telemetry.progress import bar
from ...waiting.restart_count import RestartCount
from ..learner_group import MAX_RESTARTS, LearnerGroup
from ..ray_session import ray_session
from ..say import say
from ..signals import stoppable
from . import exported
from .run_job import run_job
from .sft_inputs import SftInputs, checkpoints_of

SUMMARY = "sft.json"
"""Name of the summary in the run directory."""


def fine_tune(cfg: Config, inputs: SftInputs, resume: Path | None = None) -> dict[str, Any]:
    """Run the `sft` command after its checks. The caller holds the lock of the run directory.

    Args:
        cfg: The configuration.
        inputs: The rows.
        resume: The checkpoint to continue from; None for a new run.

    Returns:
        The summary, which is also in run_dir.
    """
    return run_job(_session(cfg, inputs, resume, Console()))


async def _session(cfg: Config, inputs: SftInputs, resume: Path | None, console: Console) -> dict[str, Any]:
    cfg.run_dir.mkdir(parents=True, exist_ok=True)
    async with stoppable(cfg) as signals:
        with ray_session(cfg, signals):
            with console.status("starting the learner"):
                ranks = await LearnerGroup.start(cfg)
            return await _run(cfg, inputs, resume, console, signals.stop, ranks)


async def _run(
    cfg: Config, inputs: SftInputs, resume: Path | None, console: Console, stop: StopRequest, ranks: LearnerGroup
) -> dict[str, Any]:
    started = time.monotonic()
    checkpoints = checkpoints_of(cfg, inputs.made_of)
    if resume is None:
        checkpoints.clear()
    else:
        with disk.faults_as_unavailable(checkpoints.directory):
            messages = [*resume_messages(checkpoints.state(resume), cfg), *checkpoints.accept(resume)]
        for message in messages:
            say(console, f"resume: {message}")
    public = without_keys(cfg)
    (cfg.run_dir / "config.toml").write_text(to_toml(public))
    losses: dict[str, float] = {}
    try:
        mirrors = mirrors_of(cfg.run_dir, cfg.logger, public.model_dump(mode="json"))
        with (
            MetricsLog(cfg.run_dir, cfg.logger, mirrors) as metrics,
            bar("fine-tuning", inputs.schedule.steps, console) as advance,
        ):
            display = _Display(cfg.run_dir, metrics, advance, losses)
            restarts = RestartCount(MAX_RESTARTS, checkpoints.latest_name)
            while True:
                display.continue_from(Checkpoints.state(resume)["step"] if resume else -1)
                try:
                    await _tuning(cfg, inputs, ranks, checkpoints, display, stop).run(resume)
                    break
                except LearnerDied as error:
                    stop.raise_if_asked(error)
                    if not restarts.take():
                        raise
                    say(console, f"{error} All ranks start again, {restarts}.", "yellow")
                await ranks.stop()
                ranks = await LearnerGroup.start_again(cfg)
                resume = await asyncio.to_thread(checkpoints.choose)
        model = cfg.run_dir / cfg.ckpt.output_dir
        await model_export.export(ranks, model)
    finally:
        await ranks.stop()
    summary = {
        "steps": inputs.schedule.steps,
        "rows": len(inputs.rows.rows),
        **losses,
        "seconds": round(time.monotonic() - started, 1),
        "model": str(model),
    }
    (cfg.run_dir / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    say(console, ", ".join(f"{name} {value:.4f}" for name, value in losses.items()))
    exported.say_where(console, cfg, model)
    return summary


def _tuning(
    cfg: Config, inputs: SftInputs, ranks: LearnerGroup, checkpoints: Checkpoints, display: _Display, stop: StopRequest
) -> FineTuning:
    settings = cfg.sft
    steps = inputs.schedule.steps
    warmup = math.ceil(steps * settings.lr_warmup_ratio)
    lr_at = lr_schedule(
        settings.lr_scheduler, peak=settings.learning_rate, total=steps, warmup=warmup, min_ratio=settings.min_lr_ratio
    )
    held_out = inputs.held_out.rows if inputs.held_out else []
    return FineTuning(cfg, inputs.schedule, inputs.rows.rows, held_out, ranks, checkpoints, lr_at, display, stop)


class _Display:
    """Records each update: in metrics.jsonl, on the bar, and its losses for the summary."""

    def __init__(
        self, run_dir: Path, metrics: MetricsLog, advance: Callable[..., None], losses: dict[str, float]
    ) -> None:
        self.run_dir = run_dir
        self.metrics = metrics
        self.advance = advance
        self.losses = losses
        self.step = 0

    def continue_from(self, step: int) -> None:
        """Forget the rows of updates after `step` (-1: all), because these are made again.

        The losses of the updates before count, whichever process measured them.
        """
        self.metrics.truncate_after(step)
        self.losses.clear()
        columns = read(self.run_dir)
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            if row["step"] <= step:
                self._note({name: value for name, value in row.items() if value is not None})
        self.advance(max(0, step) - self.step)
        self.step = max(0, step)

    def __call__(self, step: int, row: dict[str, float]) -> None:
        self.metrics.log(step, row)
        self._note(row)
        held_out = f", held out {self.losses['eval_loss']:.3f}" if "eval_loss" in self.losses else ""
        self.advance(step - self.step, note=f"loss {row['loss']:.3f}{held_out}" if "loss" in row else "")
        self.step = step

    def _note(self, row: Mapping[str, float]) -> None:
        if EVAL_LOSS in row:
            self.losses.setdefault("first_eval_loss", row[EVAL_LOSS])
            self.losses["eval_loss"] = row[EVAL_LOSS]
        if "loss" in row:
            self.losses["loss"] = row["loss"]
