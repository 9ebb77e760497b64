"""What a run is made of, as its checkpoints store it, and whether a run that resumes is still the same run.

facts_of(cfg, tasks)    configuration, the model's architecture, digests of tokenizer, prompts and labels; stored in
                        every checkpoint
compare(state, ...)     raises ConfigError for what does not fit, and returns messages about other changes
resumable(cfg, ...)     the checkpoint that a run with train.resume goes on from, verified and compared before
                        anything is loaded
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash

from ...config import Config
from ...config.changes import Change, changes, dumped, refusal
from ...data.identity import columns_digest, tasks_digest
from ...errors import ConfigError
from ...memory.model_size import checkpoint_bytes, model_directory
from ...types import Task
from ..ledger.lines import LEDGER
from . import ranks
from .checkpoint import Checkpoints

VOLATILE = {"transformers_version", "_name_or_path", "torch_dtype", "dtype", "use_cache"}
"""Keys of a model's config.json that differ between copies of the same model."""
VOCABULARY = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
RENDERING = ("tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "generation_config.json")
RUN_LOGS = (LEDGER, "metrics.jsonl")
"""Files that a run writes to its directory from its first update on; fine-tuning writes only the second."""


def checkpoints_of(cfg: Config, tasks: Sequence[Task] | None = None) -> Checkpoints:
    """Return the checkpoints of a run. To write some, its prompts are needed; to look at them, they are not."""
    return Checkpoints(
        cfg.run_dir / cfg.ckpt.path,
        cfg.ckpt.max_num,
        ledger=None if cfg.train.new_ledger else cfg.run_dir / LEDGER,
        facts=None if tasks is None else facts_of(cfg, tasks),
        expected_bytes=checkpoint_bytes(cfg),
    )


def results_of(cfg: Config) -> list[str]:
    """Return what a run in cfg.run_dir has left that a new run would delete or overwrite: checkpoints, models.

    A model in a directory without a run's log is not a result: somebody has put it there to start from.
    """
    checkpoints = checkpoints_of(cfg)
    model = cfg.run_dir / cfg.ckpt.output_dir
    results = [f"checkpoints ({checkpoints})"] if checkpoints.exist or checkpoints.exports else []
    if (model / "config.json").is_file() and any((cfg.run_dir / log).exists() for log in RUN_LOGS):
        results.append(f"a trained model ({cfg.ckpt.output_dir})")
    return results


def check_unused(cfg: Config) -> None:
    """Refuse a run that would delete the results of an earlier one without --train.overwrite on the command line.

    Called again by the holder of the run directory's lock, because another run may have had the directory meanwhile.

    Raises:
        ConfigError: There are results.
    """
    results = results_of(cfg)
    if not results or cfg.train.overwrite:
        return
    checkpoints = checkpoints_of(cfg)
    # With resume_or_start and without a checkpoint the run would start anew and overwrite the model.
    resumes = cfg.train.resume and (checkpoints.exist or not cfg.train.resume_or_start)
    if resumes:
        return
    go_on = "Go on with --resume, choose" if checkpoints.exist else "Choose"
    raise ConfigError(
        f"{cfg.run_dir} holds a run with {' and '.join(results)}. {go_on} another --run-dir, or delete it with"
        " --train.overwrite on the command line (that of a recipe does not count).",
        code="run_dir_used",
    )


def resumable(
    cfg: Config, checkpoints: Checkpoints, tasks: Sequence[Task] | None = None, *, made: bool = True
) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to resume from, and messages for the start of the run.

    Args:
        cfg: The run's configuration.
        checkpoints: Its checkpoints.
        tasks: Its prompts; None if they were not read yet.
        made: False if the model and the data that the configuration names are still to be made (the quickstart makes
            its own): then the run is not compared.

    Returns:
        The checkpoint, or None if there is none and train.resume_or_start allows to start anew; and the messages.

    Raises:
        ConfigError: There is no checkpoint, or it is one of another run.
        CheckpointDamaged: It is damaged.
    """
    path = checkpoint_to_resume(cfg, checkpoints)
    if path is None:
        return None, [
            f"there is no checkpoint in {checkpoints.directory} yet: the run starts anew, as train.resume_or_start"
            " allows"
        ]
    step = int(path.name.removeprefix("step_").rstrip("a"))  # "a" marks the second of one update
    messages = compare(checkpoints.state(path), cfg, tasks) if made else []
    if step >= cfg.train.max_steps:
        messages.append(
            f"the checkpoint is of update {step}, and train.max_steps = {cfg.train.max_steps}: no update is left."
            " Raise train.max_steps to train on"
        )
    return path, messages


def checkpoint_to_resume(cfg: Config, checkpoints: Checkpoints) -> Path | None:
    """Return the verified checkpoint that the settings name, or None if there is none and train.resume_or_start allows
    to start anew.

    Raises:
        ConfigError: There is no checkpoint.
        CheckpointDamaged: It is damaged.
    """
    path = checkpoints.choose(cfg.train.resume_from)
    if path is None and not cfg.train.resume_or_start:
        raise ConfigError(
            f"There is no checkpoint in {checkpoints.directory}, so --resume has nothing to go on from. Correct"
            " --run-dir, or leave --resume out to start anew; --train.resume_or_start starts anew by itself as long as"
            " there is none.",
            code="no_checkpoint",
        )
    return path


def facts_of(cfg: Config, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return what the run is made of, as JSON can hold it."""
    return {"config": dumped(cfg), **model_facts(cfg.actor.model_name_or_path), "data": data_facts(tasks)}


def model_facts(name: str) -> dict[str, Any]:
    """Return what identifies a model. Of a model on the hub only the name is known."""
    path = model_directory(name)
    if path is None or not (path / "config.json").is_file():
        return {"model": {"name": name}, "vocabulary": None, "rendering": None}
    model = json.loads((path / "config.json").read_text())
    return {
        "model": {key: value for key, value in model.items() if key not in VOLATILE},
        "vocabulary": _digest_of_files(path, VOCABULARY),
        "rendering": _digest_of_files(path, RENDERING),
    }


def _digest_of_files(directory: Path, names: Sequence[str]) -> str:
    """Return a digest over those of the named files that exist."""
    hashing = xxhash.xxh3_128()
    for name in names:
        if (directory / name).is_file():
            hashing.update(name.encode() + b"\0" + (directory / name).read_bytes())
    return hashing.hexdigest()


def data_facts(tasks: Sequence[Task]) -> dict[str, Any]:
    """Return digests of the prompts in their order (the ledger knows a prompt by its index) and of their labels."""
    return {
        "prompts": len(tasks),
        "asked": tasks_digest(tasks, "messages", _prompt_of_row),
        "answers": tasks_digest(tasks, "answers", lambda t: [t.label, sorted(t.meta.items())]),
        "columns": columns_digest(tasks),
    }


def _prompt_of_row(task: Task) -> list[Any]:
    """Return the prompt as its data row has it.

    Not as the chat template renders it: a template may write today's date, and a run must resume after midnight.
    """
    if task.chat is None:
        return [task.env, task.prompt]
    return [task.env, [dict(m) for m in task.chat.messages], [dict(t) for t in task.chat.tools]]


def _tools_not_reported_yet(change: Change, tasks: Sequence[Task] | None) -> bool:
    """Return True for env.tools that the run leaves to its environment, which has not been asked yet."""
    return tasks is None and change.field.endswith(".tools") and not change.now


def compare(state: dict[str, Any], cfg: Config, tasks: Sequence[Task] | None = None) -> list[str]:
    """Compare a checkpoint with the run that is to resume from it.

    Compared are, in this order: what the scheduler counts by, the ranks (ranks.py), each setting by its own policy
    (config/changes.py), the model's files and the rows of the data.

    Args:
        state: The controller's state of the checkpoint.
        cfg: The run's configuration.
        tasks: The run's prompts; None if they were not read yet.

    Returns:
        Messages about changes that are allowed.

    Raises:
        ConfigError: Names everything that does not fit.
    """
    if "max_staleness" not in state:
        raise ConfigError(
            "The checkpoint is one of a fine-tuning (openrlhf-tir sft)."
            " Resume it with that command, or give this run another --run-dir.",
            code="resume",
        )
    accounting = [
        ("pipeline.max_staleness", state["max_staleness"], cfg.max_staleness),
        (
            "updates per batch (train.batch_size, train.max_epochs)",
            state["updates_per_batch"],
            cfg.updates_per_batch,
        ),
        ("rollout.batch_size", state["batch_size"], cfg.rollout.batch_size),
    ]
    wrong = [f"{name} = {before}, this run has {now}" for name, before, now in accounting if before != now]
    wrong += filter(None, [ranks.refusal(state, cfg)])
    messages = ranks.resume_messages(state, cfg)
    facts = state.get("facts")
    if facts:
        refused, others = changes(facts["config"], cfg)
        named = {name for name, before, now in accounting if before != now}
        wrong += [
            f"{c.field} = {c.before}, this run has {c.now} ({refusal(c.field)})"
            for c in refused
            if c.field not in named
        ]
        messages += [
            f"changed since the checkpoint: {change}" for change in others if not _tools_not_reported_yet(change, tasks)
        ]
        _compare_model(facts, model_facts(cfg.actor.model_name_or_path), wrong, messages)
        if tasks is not None:
            _compare_data(facts["data"], data_facts(tasks), wrong, messages)
    if wrong:
        raise ConfigError(
            f"The checkpoint was made with {'; '.join(wrong)}. Resume with the same; to change it, start a new run from"
            " the model that this one exported.",
            code="resume",
        )
    return messages


def _compare_model(before: dict[str, Any], now: dict[str, Any], wrong: list[str], messages: list[str]) -> None:
    """Add what differs between two models to `wrong`, or to `messages` if it is allowed."""
    old = before["model"]
    new = now["model"]
    if ("name" in old) != ("name" in new):  # a name on the hub and a directory cannot be compared
        messages.append(
            "changed since the checkpoint: actor.model_name_or_path, between a name on the hub and a directory;"
            " the architecture was not compared"
        )
        return
    wrong += [
        f"the model's {key} = {old.get(key)}, this run has {new.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if before["vocabulary"] != now["vocabulary"]:
        wrong.append("another tokenizer (its vocabulary differs: token ids would mean other text)")
    if before["rendering"] != now["rendering"]:
        messages.append(
            "changed since the checkpoint: the tokenizer's settings (tokenizer_config.json,"
            " chat template or special tokens)"
        )


def _compare_data(before: dict[str, Any], now: dict[str, Any], wrong: list[str], messages: list[str]) -> None:
    """Add what differs between two data sets to `wrong`, or to `messages` if it is allowed."""
    if before["asked"] != now["asked"]:
        wrong.append(
            f"{before['prompts']} prompts, this run has {now['prompts']}; their texts or their order differ "
            "(data.*: a prompt is known by its place in the data set, so some would be trained twice and others never)"
        )
    elif before["answers"] != now["answers"]:
        messages.append("changed since the checkpoint: labels or meta of the data set; the prompts are the same")
    elif before["columns"] != now["columns"]:
        messages.append("changed since the checkpoint: other columns of the data set; prompts and labels are the same")
