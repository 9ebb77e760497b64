"""Entry points of the commands that need a cluster. Each opens a session, does the work and returns its figures.

They are called after the preflight checks. The caller of `train` holds the lock of the run directory
(run_lock.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from ...config import Config
from ...config.own_files import freeze
from ...errors import Stopped
from ...evaluation.plan import Plan
from ...evaluation.settings import SWEPT
from ...evaluation.table import as_json, env_lines, table
from ...observability.report.summary import Summary
from ...pipeline.checkpoints.lineage import checkpoints_of, resumable
from ...telemetry import heartbeat
from ...telemetry.jsonl import finite
from ..say import say
from ..services import running_services
from .chat_tools import with_tools
from .evaluate import evaluate_held_out
from .evaluate_suites import Evaluated, evaluate_plan, tasks_of
from .inputs import load_inputs
from .measured import EvalResult
from .play import pick_task
from .play import play as _play
from .reading import reading
from .run_job import run_job
from .train import run_training

PIPE_WIDTH = 240
"""Columns of a table that is written to a pipe or a file."""


def train(cfg: Config, setup_s: float = 0.0) -> Summary:
    """Run the `train` command, or the quickstart of a real model, whose set-up took `setup_s` seconds."""
    cfg = with_tools(freeze(cfg))

    async def go() -> Summary:
        async with reading(cfg) as inputs:
            if cfg.train.resume:  # Checked before anything is loaded; run_training prints the result.
                with heartbeat.doing("reading the prompts"):
                    resumable(cfg, checkpoints_of(cfg), (await inputs).prompts.tasks)
            async with running_services(cfg, beside=inputs) as services:
                with heartbeat.doing("reading the prompts"):
                    known = await inputs
                return await run_training(services, cfg, known, setup_s=setup_s)

    with heartbeat.beating(Console(), cfg.run_dir):
        return run_job(go())


def evaluate(cfg: Config, out: Path | None = None) -> tuple[EvalResult, EvalResult]:
    """Run the `eval` command: print the figures, and write them as JSON to `out`."""
    cfg = with_tools(freeze(cfg))

    async def go() -> tuple[EvalResult, EvalResult]:
        tasks = load_inputs(cfg, training=False).held_out
        async with running_services(cfg, learner=False) as services:
            return await evaluate_held_out(services, cfg, tasks, cfg.actor.model_name_or_path)

    with _progress():
        sampled, greedy = run_job(go())
    text = json.dumps({"sampled": _as_json(sampled), "greedy": _as_json(greedy)}, indent=2, allow_nan=False)
    if out:
        out.write_text(text + "\n")
    print(text)
    return sampled, greedy


def _progress() -> AbstractContextManager[Any]:
    """Return a context in which all that is printed is progress: in a pipe or a file it goes to standard error, so
    that standard output has the result alone."""
    return nullcontext() if sys.stdout.isatty() else redirect_stdout(sys.stderr)


def _as_json(result: EvalResult) -> dict[str, Any]:
    """Return a result as JSON can hold it: None for what the reward does not report."""
    return {name: finite(value) if isinstance(value, float) else value for name, value in asdict(result).items()}


def evaluate_suites(plan: Plan, out: Path | None = None) -> list[Evaluated]:
    """Run the `eval` command with suites, rows with items, or a sweep.

    Prints a table, writes items, figures and plots, and writes all figures to `out`.
    """
    cfg = with_tools(freeze(plan.cfg))
    plan = replace(plan, cfg=cfg)

    async def go() -> list[Evaluated]:
        tasks = tasks_of(plan)
        async with running_services(cfg, learner=False) as services:
            return await evaluate_plan(services, plan, tasks)

    console = Console()
    if not console.is_terminal:  # A pipe has no width, so no column may be left out.
        console.width = PIPE_WIDTH
    for line in dict.fromkeys(fact for evaluated_set in plan.sets for fact in evaluated_set.facts):
        say(console, line)
    with _progress():
        results = run_job(go())
    if out:
        out.write_text(json.dumps(as_json(plan, results), indent=2) + "\n")
    console.print(table(plan, results))
    for line in env_lines(results):
        say(console, line)
    for name in dict.fromkeys(result.name for result in results) if plan.swept else ():
        # matplotlib takes half a second, which no other command should wait for.
        from ...observability.report.sweep import sweep_png

        set_results = [result for result in results if result.name == name]
        path = set_results[0].directory.parent / f"sweep_{SWEPT[plan.swept]}.png"
        path.write_bytes(
            sweep_png(
                name,
                plan.swept,
                [(result.setting, result.figures) for result in set_results if result.setting is not None],
            )
        )
        say(console, f"plot: {path}")
    return results


def play(cfg: Config, question: str | None = None, row: int = 0) -> None:
    """Run the `play` command.

    It uses a temporary run directory: the recipe's may belong to a running run, whose logs this engine would overwrite.
    """
    # All nodes of a cluster must see the directory, so it is made beside the run's.
    parent = cfg.run_dir.absolute().parent if os.environ.get("RAY_ADDRESS") else None
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="openrlhf_tir_play_", dir=parent, ignore_cleanup_errors=True) as directory:
        logger = cfg.logger.model_copy(update={"trajectories": 0.0})
        scratch_cfg = with_tools(freeze(cfg.model_copy(update={"run_dir": Path(directory), "logger": logger})))

        async def go() -> None:
            task = pick_task(scratch_cfg, question, row)
            async with running_services(scratch_cfg, learner=False) as services:
                await _play(services, scratch_cfg, task)

        run_job(go())


def serve(cfg: Config) -> None:
    """Run the `serve` command: keep the endpoints of the rollout actors until a signal or train.save_before_s."""
    cfg = with_tools(freeze(cfg))

    async def go() -> None:
        async with running_services(cfg, learner=False) as services:
            for member in services.pool.members:
                say(services.console, f"{member.url}/v1")
            say(services.console, "serving the model as 'policy', or by its path; Ctrl-C ends it")
            await asyncio.get_running_loop().create_future()

    with suppress(Stopped):  # the normal end
        run_job(go())
