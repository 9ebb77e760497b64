"""Data checks: every row of both data sets, by environment, without the tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ... import rewards
from ...config import Config, Data
from ...config.environments import Environment, in_section, one, unlabelled
from ...config.integrations.reward_signatures import convention_of
from ...config.paths import shorten
from ...data import extra_columns, templates
from ...data.bad_rows import BadRows
from ...data.chat_template import special_texts_of
from ...data.prompts import distinct_problems, env_of, no_label, render_text
from ...data.rows import SETTING
from ...errors import ConfigError, DataError
from ...inert import marked_in
from .envs import environments_of
from .rows import check_row


def check_data(cfg: Config, *, training: bool) -> list[str]:
    """Every row has input, label and an environment of this run, and there are enough of them."""
    facts = []
    if training or not cfg.eval.dataset:
        if not cfg.data.datasets:
            raise ConfigError(
                "data.prompt_dataset is not set. Give a JSONL or parquet file,"
                " a directory of them, or a name on the hub."
            )
        found, bad = _scan(cfg, cfg.data)
        rows, named = found.total(), ", ".join(cfg.data.datasets)
        facts += [
            f"{rows} problems in {named}{_by_env(found)}",
            *_repeated(found),
            *_without_label(cfg, found, named),
            *_specials(found),
            *bad.facts(),
            *_columns(found, cfg.data.label_key),
        ]
        if training:
            facts += _check_enough(cfg, found, rows, named)
    if training and cfg.eval.steps > 0 and not cfg.eval.dataset:
        raise ConfigError(
            "eval.steps is set, but eval.dataset is not. Give the held-out problems, or leave eval.steps unset."
        )
    if cfg.eval.dataset:
        try:
            found, bad = _scan(cfg, cfg.held_out)
        except ConfigError as e:
            raise type(e)(str(e).replace(SETTING, "eval.dataset")) from None
        facts += [
            f"{found.total()} problems for evaluation in {cfg.eval.dataset}{_by_env(found)}",
            *_specials(found),
            *bad.facts(),
        ]
    return facts


def _check_enough(cfg: Config, found: Counter[str], rows: int, named: str) -> list[str]:
    """A batch can be filled, and every environment with a share has problems."""
    b = cfg.rollout.batch_size
    if rows < b:
        raise ConfigError(
            f"{named} has {rows} problems, a batch needs rollout.batch_size = {b}."
            " Add problems or lower rollout.batch_size."
        )
    shares = {e.name: e.share for e in environments_of(cfg)}
    if without := [name for name, share in shares.items() if share and not found[name]]:
        raise DataError(
            f"envs.{without[0]}.share = {shares[without[0]]:g}, but no row of {named} is of env {without[0]!r}. Give"
            " rows with that name, or a share of 0."
        )
    facts = [
        f"{found[name]} problems of env {name!r} are not trained: envs.{name}.share = 0"
        for name, share in shares.items()
        if share == 0 and found[name]
    ]
    steps = rows * cfg.train.num_episodes // b * cfg.updates_per_batch
    if steps < cfg.train.max_steps and not cfg.data.prompt_probs and not any(shares.values()):
        scheduled = cfg.actor.lr_warmup_ratio or cfg.actor.lr_scheduler in ("linear", "cosine")
        facts.append(
            f"the data last for at most {steps} of train.max_steps = {cfg.train.max_steps} updates; filtered groups"
            f" shorten that{', and the schedule of the learning rate is for all of them' if scheduled else ''}."
            " Raise train.num_episodes for more"
        )
    return facts


def _by_env(found: Found) -> str:
    return f" ({', '.join(f'{name}: {n}' for name, n in sorted(found.items()))})" if len(found) > 1 else ""


def _repeated(found: Found) -> list[str]:
    """Return how many of the problems are distinct; nothing where all are."""
    if found.distinct == found.total():
        return []
    return [f"{found.distinct} of the {found.total()} problems are distinct; each row is drawn as often as it stands"]


def _without_label(cfg: Config, found: Found, named: str) -> list[str]:
    """Return what rewards of one's own, which may or may not compare with a label, are told none of."""
    return [
        f"{found.empty[e.name]} of the {found[e.name]} problems of env {e.name!r} in {named} have no label: the reward"
        f" {own!r} is given an empty one. If it compares with a label, name the column with --data.label_key"
        for e in environments_of(cfg)
        if found.empty[e.name] and (own := cfg.train.agent_func_path or next(filter(_is_own, e.reward.used), None))
    ]


def _specials(found: Found) -> list[str]:
    """Return how many rows look as if a chat template had rendered them, where none is applied."""
    if not found.special:
        return []
    return [
        f"{found.special} of the {found.total()} problems have the text of a special token: the model reads its"
        " characters, not the token. Rows that a chat template rendered already should be messages, with"
        " --data.apply_chat_template, or be named as such with --data.rendered"
    ]


def _columns(found: Found, label_key: str) -> list[str]:
    """Return which columns rewards and environments get besides prompt and label, and which they do not get."""
    names = shorten(", ".join(sorted(found.columns.keys() - {label_key})))
    told = [f"columns that rewards get in task.extra, environments in task['extra']: {names}"] if names else []
    return told + extra_columns.said(found.left_out)


def _is_own(reward: str) -> bool:
    """Return True for a function of one's own, file.py:function."""
    return ":" in reward


class Found(Counter[str]):
    """Number of rows by environment; `distinct` counts problems that differ, `empty` rows without a label by
    environment, `special` rows with the text of a special token where no chat template is applied, `columns` rows by
    further column, `of_env` the same by environment with meta's, `left_out` rows by column and the reason why it does
    not reach rewards."""

    def __init__(self) -> None:
        super().__init__()
        self.distinct = 0
        self.empty: Counter[str] = Counter()
        self.special = 0
        self.columns: Counter[str] = Counter()
        self.of_env: Counter[tuple[str, str]] = Counter()
        self.left_out: dict[str, Counter[str]] = {}


def _check_columns_of_rewards(environments: Iterable[Environment], found: Found, data: Data) -> None:
    """Raise DataError where a reward of TRL's form requires a column that rows of its environment do not have."""
    for e in environments:
        for name in filter(_is_own, e.reward.used):
            try:
                needed = convention_of(rewards.load(name)).columns_needed()
            except ConfigError:
                continue  # told by the checks of names
            for column in needed:
                rows = found[e.name] - found.of_env[e.name, column]
                if rows and column not in e.reward.options_of(name):
                    known = shorten(", ".join(sorted({c for env, c in found.of_env if env == e.name}))) or "none"
                    files = ", ".join(data.datasets)
                    raise DataError(
                        f"{rows} of the {found[e.name]} problems of env {e.name!r} in {files} have no column"
                        f" {column!r}, which the reward {name!r} requires. Their columns: {known}. Add the"
                        " column, or give the parameter a default."
                    )


def _scan(cfg: Config, data: Data) -> tuple[Found, BadRows]:
    """Number of problems by environment, and what was left out. Everything is checked but what needs the tokenizer."""
    found = Found()
    given = {e.name: e.input_template for e in environments_of(cfg)} or {cfg.env.name: data.input_template}
    resolved, environments = {}, {e.name: e for e in environments_of(cfg)}
    for name, template in given.items():
        try:
            resolved[name] = templates.resolve(template)
        except ConfigError as e:
            raise ConfigError(in_section(str(e), f"envs.{name}" if cfg.envs else "env")) from None
    bad = BadRows(data.on_bad_row)
    specials = () if data.apply_chat_template or data.rendered else special_texts_of(cfg.actor.model_name_or_path)
    free = unlabelled(cfg) if environments else frozenset()
    problems = distinct_problems(data, bad, labels=not free)
    for problem, rows in zip(problems.distinct, problems.counts().tolist(), strict=True):
        try:
            name = env_of(problem, [*resolved], data.env_key)
            if not problem.label and name not in free:
                raise DataError(no_label(problem.where, data.label_key))
            if not data.apply_chat_template:
                render_text(problem, resolved[name])
        except DataError as e:
            bad(e, rows)
            continue
        if environments and not cfg.by_agent:  # a data set of another method is no bad row
            check_row(problem, one(environments, name))
        found[name] += rows
        found.empty[name] += 0 if problem.label else rows
        found.distinct += 1
        for column in problem.extra:
            found.columns[column] += rows
        found.of_env.update({(name, column): rows for column in problem.extra.keys() | problem.meta.keys()})
        for column, reason in problem.left_out.items():
            found.left_out.setdefault(column, Counter())[reason] += rows
        found.special += rows if specials and marked_in(problem.input, specials) != problem.input else 0
    bad.check_some_good(found.total(), data.datasets)
    if not cfg.by_agent:
        _check_columns_of_rewards(environments.values(), found, data)
    if not found:
        raise DataError(f"{', '.join(data.datasets)} has no rows. Point at a data set with problems.")
    return found, bad
