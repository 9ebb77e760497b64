"""Fine-tuning on the learner's ranks: inputs -> Ray, ranks, the loop (pipeline/fine_tuning.py) -> an exported model. No
engine is started.

Learner ranks that die start again from the last checkpoint, at most train.max_learner_restarts times.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from ...config import Config
from ...config.sections.output import OF_AVERAGE
from ...config.settings import to_toml
from ...errors import LearnerDied, Stopped, TirError
from ...learner.schedule import lr_schedule
from ...logs.metrics import MetricsLog, read
from ...logs.progress import bar
from ...pipeline.checkpoints import disk
from ...pipeline.checkpoints.checkpoint import Checkpoints
from ...pipeline.checkpoints.ranks import resume_messages
from ...pipeline.fine_tuning import EVAL_LOSS, FineTuning
from ...pipeline.stop import StopRequest
from ..learner_group import LearnerGroup
from ..ray_session import ray_session
from ..signals import stoppable
from .sft_inputs import SftInputs, checkpoints_of

SUMMARY = "sft.json"


def fine_tune(
    cfg: Config, inputs: SftInputs, resume: Path | None = None, console: Console | None = None
) -> dict[str, Any]:
    """The `sft` command, after its checks; whoever calls holds the lock of the run directory. Returns the summary,
    which is also in run_dir."""
    try:
        return asyncio.run(_session(cfg, inputs, resume, console or Console()))
    except TirError as e:  # what a rank raised carries its whole traceback as text: the error itself says what is wrong
        raise (getattr(e, "cause", None) or e) from None


async def _session(cfg: Config, inputs: SftInputs, resume: Path | None, console: Console) -> dict[str, Any]:
    cfg.run_dir.mkdir(parents=True, exist_ok=True)
    async with stoppable(cfg) as signals:
        with ray_session(cfg, signals):
            signals.install()
            directory = ray._private.worker.global_worker.node.get_session_dir_path()
            signals.marker = None if os.environ.get("RAY_ADDRESS") else directory
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
            said = [*resume_messages(checkpoints.state(resume), cfg), *checkpoints.accept(resume)]
        for sentence in said:
            console.print(f"resume: {sentence}", soft_wrap=True, highlight=False, markup=False)
    public = cfg.model_copy(
        update={"logger": cfg.logger.model_copy(update={"wandb": cfg.logger.wandb.model_copy(update={"key": None})})}
    )
    (cfg.run_dir / "config.toml").write_text(to_toml(public))
    losses: dict[str, float] = {}
    try:
        with (
            MetricsLog(cfg.run_dir, cfg.logger, public.model_dump(mode="json")) as metrics,
            bar("fine-tuning", inputs.schedule.steps, console) as advance,
        ):
            shown = _Shown(cfg.run_dir, metrics, advance, losses)
            for left in reversed(range(cfg.train.max_learner_restarts + 1)):
                shown.goes_on_from(Checkpoints.state(resume)["step"] if resume else -1)
                try:
                    await _tuning(cfg, inputs, ranks, checkpoints, shown, stop).run(resume)
                    break
                except LearnerDied as e:
                    if not left:
                        raise
                    # signals reach the learner's processes too, if whoever sends them means all of a job
                    if stop.reason:
                        raise Stopped(
                            f"The run was stopped: {stop.reason}, and a learner rank died meanwhile."
                            " The checkpoint before counts."
                        ) from e
                    restart = f"restart {cfg.train.max_learner_restarts - left + 1} of {cfg.train.max_learner_restarts}"
                    console.print(f"[yellow]{e} All ranks start again, {restart}.", soft_wrap=True, highlight=False)
                await ranks.stop()
                ranks = await LearnerGroup.start_again(cfg)
                resume = await asyncio.to_thread(checkpoints.choose)
        model = cfg.run_dir / cfg.ckpt.output_dir
        await ranks.export(model)
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
    console.print(", ".join(f"{name} {value:.4f}" for name, value in losses.items()), soft_wrap=True, highlight=False)
    console.print(f"model:  {model}", soft_wrap=True, highlight=False)
    if cfg.train.enable_ema:
        console.print(f"average: {model}{OF_AVERAGE}", soft_wrap=True, highlight=False)
    return summary


def _tuning(
    cfg: Config, inputs: SftInputs, ranks: LearnerGroup, checkpoints: Checkpoints, shown: _Shown, stop: StopRequest
) -> FineTuning:
    s, steps = cfg.sft, inputs.schedule.steps
    warmup = math.ceil(steps * s.lr_warmup_ratio)
    lr_at = lr_schedule(s.lr_scheduler, peak=s.learning_rate, total=steps, warmup=warmup, min_ratio=s.min_lr_ratio)
    held_out = inputs.held_out.rows if inputs.held_out else []
    return FineTuning(cfg, inputs.schedule, inputs.rows.rows, held_out, ranks, checkpoints, lr_at, shown, stop)


class _Shown:
    """metrics.jsonl, the bar, and the losses for the summary."""

    def __init__(
        self, run_dir: Path, metrics: MetricsLog, advance: Callable[..., None], losses: dict[str, float]
    ) -> None:
        self.run_dir, self.metrics, self.advance, self.losses, self.step = run_dir, metrics, advance, losses, 0

    def goes_on_from(self, step: int) -> None:
        """Rows of later updates are forgotten: they are made again. -1: all of them. The losses before count on,
        whoever measured them."""
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
