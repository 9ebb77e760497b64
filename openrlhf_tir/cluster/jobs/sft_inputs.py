"""The inputs of fine-tuning: rows as tokens, and what a resume compares. They are read before Ray or a model starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import Config
from ...data.chat_template import ChatTemplate, bos_of, special_texts
from ...data.export_template import template_of, without_question
from ...data.sft.read import SftSet, load_set
from ...data.sft.tokens import Vocabulary
from ...engines.codec import HfCodec
from ...errors import ConfigError
from ...memory.model_size import checkpoint_bytes
from ...pipeline.checkpoints import ranks
from ...pipeline.checkpoints.checkpoint import Checkpoints
from ...pipeline.checkpoints.lineage import checkpoint_to_resume
from ...pipeline.fine_tuning import ROWS_TAKEN, Schedule
from .inputs import tokenizer_of


@dataclass
class SftInputs:
    """The inputs of a fine-tuning run.

    Attributes:
        rows: The rows to learn from.
        held_out: The held-out rows; None without sft.eval_dataset.
        schedule: The updates.
        made_of: What a resumed run must share with the run before.
        facts: Lines to print.
    """

    rows: SftSet
    held_out: SftSet | None
    schedule: Schedule
    made_of: dict[str, Any]
    facts: list[str]


def load_sft_inputs(cfg: Config, tick: Callable[[], None] = lambda: None) -> SftInputs:
    """Read all rows.

    Args:
        cfg: The configuration.
        tick: Called for each row.

    Raises:
        ConfigError: A setting does not fit the rows or the model.
        DataError: A row cannot be used.
        Unavailable: The hub does not answer.
    """
    tokenizer = tokenizer_of(cfg)
    vocabulary = vocabulary_of(tokenizer)
    template = chat_template_of(cfg, tokenizer)
    if template is not None:
        template.check_repeatable([{"role": "user", "content": "A question."}])
    rows = load_set(cfg, vocabulary, template, tick=tick)
    held_out = load_set(cfg, vocabulary, template, held_out=True, tick=tick) if cfg.sft.eval_dataset else None
    longest = max(len(row.token_ids) for row in [*rows.rows, *(held_out.rows if held_out else ())])
    positions = _positions(cfg)
    if positions and longest > positions:
        raise ConfigError(
            f"A row has {longest} tokens, and the model has {positions} positions (max_position_embeddings)."
            f" Set --sft.max_len {positions}."
        )
    schedule = Schedule.of(cfg, len(rows.rows))
    made_of = {
        "rows (sft.dataset, what is read of it, and the tokenizer)": rows.digest,
        "sft.batch_size": cfg.sft.batch_size,
        "train.seed": cfg.train.seed,
        "ds.zero_stage": cfg.ds.zero_stage,
        "ds.lora.rank": cfg.ds.lora.rank,
    }
    facts = rows.facts(", ".join(cfg.sft.datasets), cfg.sft.max_len)
    facts += held_out.facts(f"held out: {cfg.sft.eval_dataset}", cfg.sft.max_len) if held_out else []
    facts.append(
        f"{schedule.steps} updates of {cfg.sft.batch_size} rows,"
        f" {schedule.epoch(schedule.steps):.4g} passes over the rows"
    )
    return SftInputs(rows, held_out, schedule, made_of, facts)


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Return the tokenizer in the form that rows are tokenised with."""
    specials = {text: tokenizer.convert_tokens_to_ids(text) for text in special_texts(tokenizer)}
    return Vocabulary(HfCodec(tokenizer), specials, tokenizer.eos_token_id, bos_of(tokenizer))


def chat_template_of(cfg: Config, tokenizer: Any) -> ChatTemplate | None:
    """Return the tokenizer's chat template, or None.

    If a run exported the model, its template puts that run's prompt around the question; it is returned without it.
    """
    template = template_of(tokenizer)
    if not template:
        return None
    options = {} if without_question(template) == template else {"chat_template": without_question(template)}
    return ChatTemplate.of(tokenizer, {**cfg.data.chat_template_options, **options})


def _positions(cfg: Config) -> int | None:
    """Return the number of positions of the model; None if its directory does not say, or if they are scaled."""
    file = Path(cfg.actor.model_name_or_path) / "config.json"
    model = json.loads(file.read_text(encoding="utf-8-sig")) if file.is_file() else {}
    positions = model.get("max_position_embeddings")
    return positions if isinstance(positions, int) and not model.get("rope_scaling") else None


def checkpoints_of(cfg: Config, made_of: dict[str, Any] | None = None) -> Checkpoints:
    """Return the checkpoints of a fine-tuning run. `made_of` is stored in new ones (see SftInputs)."""
    facts = None if made_of is None else {"sft": made_of}
    return Checkpoints(
        cfg.run_dir / cfg.ckpt.path,
        cfg.ckpt.max_num,
        facts=facts,
        expected_bytes=checkpoint_bytes(cfg),
    )


def resumable(cfg: Config, made_of: dict[str, Any], schedule: Schedule) -> Path | None:
    """Return the verified checkpoint from which a run with train.resume continues.

    Returns None if there is none and train.resume_or_start allows that.

    Raises:
        ConfigError: There is no checkpoint, it belongs to another run, or its passes ended elsewhere.
        CheckpointDamaged: The checkpoint is damaged.
    """
    checkpoints = checkpoints_of(cfg)
    path = checkpoint_to_resume(cfg, checkpoints)
    if path is None:
        return None
    state = checkpoints.state(path)
    checkpoint_made_of = (state.get("facts") or {}).get("sft")
    if checkpoint_made_of is None:
        raise ConfigError(
            f"{path} is a checkpoint of `openrlhf-tir train`."
            " Resume it with that command, or give this run another --run-dir.",
            code="resume",
        )
    differences = [
        f"{name} = {checkpoint_made_of.get(name)}, this run has {value}"
        for name, value in made_of.items()
        if checkpoint_made_of.get(name) != value
    ]
    refusal = ranks.refusal(state, cfg)
    if refusal:
        differences.append(refusal)
    if differences:
        raise ConfigError(
            f"The checkpoint {path.name} was made with {'; '.join(differences)}."
            " Resume with the same, or start anew in another --run-dir.",
            code="resume",
        )
    rows_taken = state.get(ROWS_TAKEN)
    rows_expected = schedule.rows_taken(state["step"])
    if rows_taken not in (None, rows_expected):
        raise ConfigError(
            f"The updates of {path.name} have taken {rows_taken} rows; with sft.max_epochs = {schedule.epochs} they"
            f" would have taken {rows_expected}, because the last update of the passes is smaller. Resume with the same"
            " passes, or fine-tune that run's model further in another --run-dir.",
            code="resume",
        )
    return path
