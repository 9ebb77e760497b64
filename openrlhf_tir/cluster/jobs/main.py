"""Entry points of the commands that need a cluster: Config -> a session -> the work -> figures. Called after the
preflight checks; whoever calls `train`, `quickstart` or `toy_model` holds the run directory's lock (run_lock.py)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from ...config import Config
from ...config.own_files import freeze
from ...errors import ConfigError, Stopped, TirError
from ...evaluation.plan import Plan
from ...evaluation.settings import SWEPT
from ...evaluation.table import as_json, env_lines, table
from ...logs import heartbeat
from ...logs.jsonl import finite
from ...pipeline.checkpoints.lineage import checkpoints_of, resumable
from ...report.summary import Summary
from ...report.sweep import sweep_png
from ...toy.lessons import QUICKSTART
from ..services import running_services
from .chat_tools import with_tools
from .evaluate import evaluate_held_out
from .evaluate_suites import Evaluated, evaluate_plan, tasks_of
from .inputs import load_inputs
from .measured import EvalResult, HeldOut
from .play import pick_task
from .play import play as _play
from .toy import ToyBase, make_base
from .train import run_training

PIPE_WIDTH = 240
"""Columns of a table that is written to a pipe or a file."""


def train(cfg: Config, setup_s: float = 0.0) -> Summary:
    """The `train` command, and the quickstart of a real model, whose set-up took `setup_s` seconds."""
    cfg = with_tools(freeze(cfg))

    async def go() -> Summary:
        with heartbeat.doing("reading the prompts"):
            inputs = load_inputs(cfg)
        if cfg.train.resume:  # before anything is loaded; run_training says what it finds
            resumable(cfg, checkpoints_of(cfg), inputs.prompts.tasks)
        async with running_services(cfg, model=cfg.actor.model_name_or_path) as services:
            return await run_training(services, cfg, inputs, setup_s=setup_s)

    with heartbeat.beating(Console(), cfg.run_dir):
        return _run(go())


def evaluate(cfg: Config, out: Path | None = None) -> tuple[EvalResult, EvalResult]:
    """The `eval` command: prints figures, writes them as JSON to `out`."""
    if not cfg.eval.dataset:
        raise ConfigError("eval.dataset is not set. Give the held-out problems, e.g. --eval.dataset data/test.jsonl.")
    cfg = with_tools(freeze(cfg))

    async def go() -> tuple[EvalResult, EvalResult]:
        tasks = load_inputs(cfg, training=False).held_out
        async with running_services(cfg, model=cfg.actor.model_name_or_path, learner=False) as services:
            return await evaluate_held_out(services, cfg, tasks, cfg.actor.model_name_or_path)

    sampled, greedy = _run(go())
    text = json.dumps({"sampled": _plain(sampled), "greedy": _plain(greedy)}, indent=2, allow_nan=False)
    if out:
        out.write_text(text + "\n")
    print(text)
    return sampled, greedy


def _plain(result: EvalResult) -> dict[str, Any]:
    """As JSON can hold it: None for what the reward says nothing of."""
    return {name: finite(value) if isinstance(value, float) else value for name, value in asdict(result).items()}


def evaluate_suites(plan: Plan, out: Path | None = None) -> list[Evaluated]:
    """The `eval` command with suites, own rows with items, or a sweep: prints a table, writes items, figures and plots,
    and all figures to `out`."""
    cfg = with_tools(freeze(plan.cfg))
    plan = replace(plan, cfg=cfg)

    async def go() -> list[Evaluated]:
        tasks = tasks_of(plan)
        async with running_services(cfg, model=cfg.actor.model_name_or_path, learner=False) as services:
            return await evaluate_plan(services, plan, tasks)

    console = Console()
    if not console.is_terminal:  # a pipe has no width: no column is left out for it
        console.width = PIPE_WIDTH
    for line in dict.fromkeys(fact for asked in plan.asked for fact in asked.facts):
        console.print(line, soft_wrap=True, highlight=False)
    results = _run(go())
    if out:
        out.write_text(json.dumps(as_json(plan, results), indent=2) + "\n")
    console.print(table(plan, results))
    for line in env_lines(results):
        console.print(line, soft_wrap=True, highlight=False)
    for name in dict.fromkeys(r.name for r in results) if plan.swept else ():
        of_set = [r for r in results if r.name == name]
        path = of_set[0].directory.parent / f"sweep_{SWEPT[plan.swept]}.png"
        path.write_bytes(sweep_png(name, plan.swept, [(r.setting, r.figures) for r in of_set if r.setting is not None]))
        console.print(f"plot: {path}", soft_wrap=True, highlight=False)
    return results


def play(cfg: Config, question: str | None = None, row: int = 0) -> None:
    """The `play` command. It has a directory of its own, which is gone afterwards: the recipe's run directory may be
    that of a run that is running, whose logs an engine of ours would write over."""
    # A cluster's nodes must all see the directory; a machine by itself needs nothing beside the run's.
    parent = cfg.run_dir.absolute().parent if os.environ.get("RAY_ADDRESS") else None
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="openrlhf_tir_play_", dir=parent, ignore_cleanup_errors=True) as directory:
        logger = cfg.logger.model_copy(update={"trajectories": 0.0, "dropped": 0})
        own = with_tools(freeze(cfg.model_copy(update={"run_dir": Path(directory), "logger": logger})))

        async def go() -> None:
            task = pick_task(own, question, row)
            async with running_services(own, model=own.actor.model_name_or_path, learner=False) as services:
                await _play(services, own, task)

        _run(go())


def serve(cfg: Config) -> None:
    """The `serve` command: the endpoints of the rollout actors, until a signal or train.save_before_s ends it."""
    cfg = with_tools(freeze(cfg))

    async def go() -> None:
        async with running_services(cfg, model=cfg.actor.model_name_or_path, learner=False) as services:
            for member in services.pool.members:
                services.console.print(f"{member.url}/v1", soft_wrap=True, highlight=False)
            services.console.print("serving the model as 'policy', or by its path; Ctrl-C ends it", highlight=False)
            await asyncio.get_running_loop().create_future()

    with suppress(Stopped):  # which is how it ends
        _run(go())


def toy_model(cfg: Config, lesson: str = QUICKSTART) -> Path:
    """The `toy-model` command: problems, tokenizer, a cold-started base that passed its gates; its directory."""

    async def go() -> Path:
        base = ToyBase(cfg, lesson)
        base.prepare()
        cold = base.config(base.init)
        inputs = load_inputs(cold)
        async with running_services(cold, model=str(base.init)) as services:
            await make_base(services, base, inputs)
            services.console.print(f"base model: {base.directory}", soft_wrap=True)
        return base.directory

    return _run(go())


def quickstart(cfg: Config, setup_s: float = 0.0) -> Summary:
    """The `quickstart` command: the toy base model (made once per seed), then RL on it, in one session."""

    async def go() -> Summary:
        base = ToyBase(cfg)
        rl = base.config(base.directory)
        if base.ready:
            inputs = load_inputs(rl)
            async with running_services(rl, model=str(base.directory)) as services:
                return await run_training(services, rl, inputs, setup_s=setup_s)
        started = time.monotonic()
        with heartbeat.doing("making problems and a model of random weights"):
            base.prepare()
        cold = base.config(base.init)
        inputs = load_inputs(cold)
        async with running_services(cold, model=str(base.init)) as services:
            figures = HeldOut.of(*await make_base(services, base, inputs))
            async with services.learning():
                await services.learner.reload(rl)
            # of the problems only: with games, the base is measured on all
            known = figures if len(cfg.environments) == 1 else None
            return await run_training(
                services, rl, inputs, base=known, setup_s=setup_s, cold_start_s=time.monotonic() - started
            )

    with heartbeat.beating(Console(), cfg.run_dir):
        return _run(go())


def _run(coroutine):
    """asyncio.run, with our own errors taken out of the groups that task groups wrap them in."""
    try:
        return asyncio.run(coroutine)
    except BaseExceptionGroup as group:
        known = group.subgroup(TirError)
        if known is None:
            raise
        error: BaseException = known
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        Console(stderr=True).print_exception() if group.split(TirError)[1] else None
        # What a rank or an actor raised carries its whole traceback as text: the error itself says what is wrong.
        raise (getattr(error, "cause", None) or error) from None
