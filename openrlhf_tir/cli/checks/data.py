"""Checks of every row of both data sets, by environment, without the tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ... import rewards
from ...config import Config, Data
from ...config.environments import Environment, entry_of, in_section, unlabelled
from ...config.integrations.reward_signatures import convention_of
from ...config.paths import shorten
from ...data import extra_columns, templates
from ...data.bad_rows import BadRows
from ...data.chat_template import special_texts_of
from ...data.prompts import distinct_problems, env_of, no_label, render_text
from ...data.rows import SETTING
from ...errors import ConfigError, DataError
from ...inert import marked_in
from .chat import ChatPrompts
from .envs import environments_of
from .rows import check_row


def check_data(cfg: Config, *, training: bool) -> list[str]:
    """Check that every row has input, label and an environment of this run, and that there are enough rows.

    Args:
        cfg: The configuration.
        training: Whether the run trains; otherwise it only evaluates.

    Returns:
        Facts to print.

    Raises:
        ConfigError: A data set is missing or too small.
        DataError: A row cannot be used.
    """
    facts = []
    if training or not cfg.eval.dataset:
        if not cfg.data.datasets:
            raise ConfigError(
                "data.prompt_dataset is not set. Give a JSONL or parquet file,"
                " a directory of them, or a name on the hub."
            )
        problems, bad = _scan(cfg, cfg.data)
        rows = problems.total()
        names = ", ".join(cfg.data.datasets)
        facts += [
            f"{rows} problems in {names}{_by_env(problems)}",
            *_repeated(problems),
            *_without_label(cfg, problems, names),
            *_specials(problems),
            *bad.facts(),
            *_columns(problems, cfg.data.label_key),
        ]
        if training:
            facts += _check_enough(cfg, problems, rows, names)
    if training and cfg.eval.steps > 0 and not cfg.eval.dataset:
        raise ConfigError(
            "eval.steps is set, but eval.dataset is not. Give the held-out problems, or leave eval.steps unset."
        )
    if cfg.eval.dataset:
        try:
            problems, bad = _scan(cfg, cfg.held_out)
        except ConfigError as error:
            raise error.reworded(lambda text: text.replace(SETTING, "eval.dataset")) from None
        facts += [
            f"{problems.total()} problems for evaluation in {cfg.eval.dataset}{_by_env(problems)}",
            *_specials(problems),
            *bad.facts(),
        ]
    return facts


def _check_enough(cfg: Config, problems: Counter[str], rows: int, names: str) -> list[str]:
    """Check that a batch can be filled, and that every environment with a share has problems. Return facts."""
    batch_groups = cfg.rollout.batch_size
    if rows < batch_groups:
        raise ConfigError(
            f"{names} has {rows} problems, a batch needs rollout.batch_size = {batch_groups}."
            " Add problems or lower rollout.batch_size."
        )
    shares = {e.name: e.share for e in environments_of(cfg)}
    if without := [name for name, share in shares.items() if share and not problems[name]]:
        raise DataError(
            f"envs.{without[0]}.share = {shares[without[0]]:g}, but no row of {names} is of env {without[0]!r}. Give"
            " rows with that name, or a share of 0."
        )
    facts = [
        f"{problems[name]} problems of env {name!r} are not trained: envs.{name}.share = 0"
        for name, share in shares.items()
        if share == 0 and problems[name]
    ]
    steps = rows * cfg.train.num_episodes // batch_groups * cfg.updates_per_batch
    if steps < cfg.train.max_steps and not cfg.data.prompt_probs and not any(shares.values()):
        scheduled = cfg.actor.lr_warmup_ratio or cfg.actor.lr_scheduler in ("linear", "cosine")
        facts.append(
            f"the data last for at most {steps} of train.max_steps = {cfg.train.max_steps} updates; filtered groups"
            f" shorten that{', and the schedule of actor.lr_scheduler is for all of them' if scheduled else ''}."
            " Raise train.num_episodes for more"
        )
    return facts


def _by_env(problems: ProblemCounts) -> str:
    return (
        f" ({', '.join(f'{name}: {count}' for name, count in sorted(problems.items()))})" if len(problems) > 1 else ""
    )


def _repeated(problems: ProblemCounts) -> list[str]:
    """Return how many of the problems are distinct; [] if all are."""
    if problems.distinct == problems.total():
        return []
    return [
        f"{problems.distinct} of the {problems.total()} problems are distinct; each row is drawn as often as it stands"
    ]


def _without_label(cfg: Config, problems: ProblemCounts, names: str) -> list[str]:
    """Return how many problems without a label go to a user's reward, which may or may not compare with one."""
    return [
        f"{problems.empty[environment.name]} of the {problems[environment.name]} problems of env {environment.name!r}"
        f" in {names} have no label: the reward {user_reward!r} gets an empty one. If it compares with a label, name"
        " the column with --data.label_key"
        for environment in environments_of(cfg)
        if problems.empty[environment.name]
        and (user_reward := cfg.train.agent_func_path or next(filter(_is_own, environment.reward.used), None))
    ]


def _specials(problems: ProblemCounts) -> list[str]:
    """Return how many rows look as if a chat template had rendered them, if none is applied."""
    if not problems.special:
        return []
    return [
        f"{problems.special} of the {problems.total()} problems have the text of a special token: the model reads its"
        " characters, not the token. Give rows that a chat template has rendered as messages with"
        " --data.apply_chat_template, or declare them with --data.rendered"
    ]


def _columns(problems: ProblemCounts, label_key: str) -> list[str]:
    """Return which columns rewards and environments get besides prompt and label, and which they do not get."""
    names = shorten(", ".join(sorted(problems.columns - {label_key})))
    facts = [f"columns that rewards get in task.extra, environments in task['extra']: {names}"] if names else []
    return facts + extra_columns.sentences_of(problems.left_out)


def _is_own(reward: str) -> bool:
    """Return True for a user's function, file.py:function."""
    return ":" in reward


class ProblemCounts(Counter[str]):
    """Number of rows by environment, and what else was counted.

    Attributes:
        distinct: Number of problems that differ.
        empty: Rows without a label, by environment.
        special: Rows with the text of a special token, if no chat template is applied.
        columns: Columns besides prompt and label.
        of_env: Rows by environment and column, with the columns of meta.
        left_out: Column -> reason why rewards do not get it -> rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.distinct = 0
        self.empty: Counter[str] = Counter()
        self.special = 0
        self.columns: set[str] = set()
        self.of_env: Counter[tuple[str, str]] = Counter()
        self.left_out: dict[str, Counter[str]] = {}


def _check_columns_of_rewards(environments: Iterable[Environment], problems: ProblemCounts, data: Data) -> None:
    """Raise DataError if a reward in TRL's form requires a column that rows of its environment do not have."""
    for e in environments:
        for name in filter(_is_own, e.reward.used):
            try:
                needed = convention_of(rewards.load(name)).columns_needed()
            except ConfigError:
                continue  # reported by the checks of names
            for column in needed:
                rows = problems[e.name] - problems.of_env[e.name, column]
                if rows and column not in e.reward.options_of(name):
                    known = shorten(", ".join(sorted({c for env, c in problems.of_env if env == e.name}))) or "none"
                    files = ", ".join(data.datasets)
                    raise DataError(
                        f"{rows} of the {problems[e.name]} problems of env {e.name!r} in {files} have no column"
                        f" {column!r}, which the reward {name!r} requires. Their columns: {known}. Add the"
                        " column, or give the parameter a default."
                    )


def _scan(cfg: Config, data: Data) -> tuple[ProblemCounts, BadRows]:
    """Return the counted problems and the bad rows. Everything is checked except what needs the tokenizer."""
    counts = ProblemCounts()
    environments = {e.name: e for e in environments_of(cfg)}
    input_templates = {name: e.input_template for name, e in environments.items()} or {
        cfg.env.name: data.input_template
    }
    resolved = {}
    for name, template in input_templates.items():
        try:
            resolved[name] = templates.resolve(template)
        except ConfigError as error:
            raise ConfigError(in_section(str(error), f"envs.{name}" if cfg.envs else "env")) from None
    bad = BadRows(data.on_bad_row)
    specials = () if data.apply_chat_template or data.rendered else special_texts_of(cfg.actor.model_name_or_path)
    label_free = unlabelled(cfg) if environments else frozenset()
    problems = distinct_problems(data, bad, resolved.values(), labels=not label_free)
    chat_prompts = ChatPrompts(cfg, data) if data.apply_chat_template and environments else None
    for problem, rows in zip(problems.distinct, problems.counts().tolist(), strict=True):
        try:
            name = env_of(problem, [*resolved])
            if not problem.label and name not in label_free:
                raise DataError(no_label(problem.where, data.label_key))
            if not data.apply_chat_template:
                render_text(problem, resolved[name])
            if chat_prompts:  # Raises ConfigError for tools that no row would show.
                chat_prompts.check(problem, name, resolved[name])
        except DataError as error:
            bad(error, rows)
            continue
        if environments and not cfg.by_agent:  # Raises: data of another method are a mistake, not a bad row.
            check_row(problem, entry_of(environments, name))
        counts[name] += rows
        counts.empty[name] += 0 if problem.label else rows
        counts.distinct += 1
        counts.columns.update(problem.extra)
        counts.of_env.update({(name, column): rows for column in problem.extra.keys() | problem.meta.keys()})
        for column, reason in problem.left_out.items():
            counts.left_out.setdefault(column, Counter())[reason] += rows
        counts.special += rows if specials and marked_in(problem.input, specials) != problem.input else 0
    bad.check_some_good(counts.total(), data.datasets)
    if not cfg.by_agent:
        _check_columns_of_rewards(environments.values(), counts, data)
    if not counts:
        raise DataError(f"{', '.join(data.datasets)} has no rows. Point at a data set with problems.")
    return counts, bad
