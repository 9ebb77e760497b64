"""What `openrlhf-tir quickstart` and `toy-model` do with the toy, after the checks; the caller holds the run's lock."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from openrlhf_tir.cluster.jobs.inputs import load_inputs
from openrlhf_tir.cluster.jobs.measured import HeldOut
from openrlhf_tir.cluster.jobs.run_job import run_job
from openrlhf_tir.cluster.jobs.train import run_training
from openrlhf_tir.cluster.say import say
from openrlhf_tir.cluster.services import running_services
from openrlhf_tir.config import Config
from openrlhf_tir.observability.report.summary import Summary
from openrlhf_tir.telemetry import heartbeat

from .base import ToyBase, make_base
from .lessons import QUICKSTART


def toy_model(cfg: Config, lesson: str = QUICKSTART) -> Path:
    """Run the `toy-model` command: make problems, a tokenizer and a cold-started base model that passed its gates.

    Returns:
        The directory of the base model.
    """

    async def go() -> Path:
        base = ToyBase(cfg, lesson)
        base.prepare()
        cold = base.config(base.init)
        inputs = load_inputs(cold)
        async with running_services(cold) as services:
            await make_base(services, base, inputs)
            say(services.console, f"base model: {base.directory}")
        return base.directory

    return run_job(go())


def quickstart(cfg: Config, setup_s: float = 0.0) -> Summary:
    """Run the `quickstart` command: make the toy base model (once per seed), then train it, in one session."""

    async def go() -> Summary:
        base = ToyBase(cfg)
        rl = base.config(base.directory)
        if base.ready:
            inputs = load_inputs(rl)
            async with running_services(rl) as services:
                return await run_training(services, rl, inputs, setup_s=setup_s)
        started = time.monotonic()
        with heartbeat.doing("making problems and a model of random weights"):
            base.prepare()
        cold = base.config(base.init)
        inputs = load_inputs(cold)
        async with running_services(cold) as services:
            figures = HeldOut.of(*await make_base(services, base, inputs))
            async with services.learning():
                await services.learner.reload(rl)
            # These figures are of the problems only. With games, the base model is measured again, on everything.
            known = figures if len(cfg.environments) == 1 else None
            return await run_training(
                services, rl, inputs, base=known, setup_s=setup_s, cold_start_s=time.monotonic() - started
            )

    with heartbeat.beating(Console(), cfg.run_dir):
        return run_job(go())
