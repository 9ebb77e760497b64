"""Play one episode of a problem on the terminal. What the model wrote, and training would learn from, is green."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ...config import Config
from ...data.templates import columns_of, render, resolve
from ...errors import ConfigError
from ...rollout.group_runner import EvalMode
from ...telemetry.printable import printable
from ...types import GroupKey, Task, Trajectory
from ..say import say
from ..services import Services
from .evaluate import EVAL_EPOCH
from .inputs import prompts_of


def pick_task(cfg: Config, question: str | None, row: int) -> Task:
    """Return the question in the template of the first environment, or a row of eval.dataset (else of the training
    data).

    Raises:
        ConfigError: There is no such row, or the template takes more than the question from one.
    """
    if question is not None:
        first = next(iter(cfg.environments.values()))
        template = resolve(first.input_template)
        if columns := columns_of(template):
            raise ConfigError(
                f"--question {question!r} has no {', '.join(columns)}, which the input_template of {first.name} takes"
                " from a row. Play a row: --row."
            )
        return Task(render(template, question), label="", env=first.name)
    data = cfg.held_out.model_copy(update={"max_samples": cfg.data.max_samples}) if cfg.eval.dataset else cfg.data
    prompts = prompts_of(cfg, data, None)
    if not 0 <= row < len(prompts):
        raise ConfigError(f"--row {row}: {data.prompt_dataset} has the rows 0 to {len(prompts) - 1}.")
    return prompts[row]


async def play(services: Services, cfg: Config, task: Task) -> Trajectory:
    """Sample one response at eval.temperature and print it."""
    _, payload = await services.pool.run_group(
        GroupKey(EVAL_EPOCH, 0), task, EvalMode(1, cfg.eval.temperature, cfg.eval.top_p)
    )
    (group,) = await services.pool.fetch([payload])
    show(services.console, task, group.trajectories[0])
    return group.trajectories[0]


def show(console: Console, task: Task, trajectory: Trajectory) -> None:
    """Print an episode, coloured by who produced each token, and facts about it."""
    text = Text(printable(task.prompt), style="dim")
    for segment in trajectory.segments:
        text.append(printable(segment.text), style="green" if segment.source == "model" else "yellow")
    console.print(text, soft_wrap=True)
    console.rule(style="dim")
    trained = int(trajectory.is_model.sum())
    facts = (
        f"{trained} tokens by the model (green, trained), {trajectory.response_tokens - trained} by the environment"
        f" (yellow, masked), {len(trajectory.calls)} calls, ended by"
        f" {trajectory.stop_reason or trajectory.finish_reason!r}"
    )
    say(console, facts)
    if trajectory.failed:
        say(console, printable(f"failed: {trajectory.failed}; such a response is never trained"), "red")
    elif task.label:
        say(console, f"label {task.label!r}, reward {trajectory.reward}")
