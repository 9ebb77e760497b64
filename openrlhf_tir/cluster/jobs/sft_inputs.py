"""Fine-tuning's inputs: a configuration -> rows as tokens, and what a resume compares. Before Ray or a model is up."""

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
from ...pipeline.checkpoints import lineage, ranks
from ...pipeline.checkpoints.checkpoint import Checkpoints
from ...pipeline.fine_tuning import ROWS_TAKEN, Schedule
from .inputs import tokenizer_of


@dataclass
class SftInputs:
    """`held_out`: None without sft.eval_dataset. `made_of`: what a resumed run must share with the one before."""

    rows: SftSet
    held_out: SftSet | None
    schedule: Schedule
    made_of: dict[str, Any]
    facts: list[str]


def load_sft_inputs(cfg: Config, tick: Callable[[], None] = lambda: None) -> SftInputs:
    """Raises ConfigError, DataError, or Unavailable for a hub that does not answer."""
    tokenizer = tokenizer_of(cfg)
    vocabulary, template = vocabulary_of(tokenizer), chat_template_of(cfg, tokenizer)
    rows = load_set(cfg, vocabulary, template, tick=tick)
    held_out = load_set(cfg, vocabulary, template, held_out=True, tick=tick) if cfg.sft.eval_dataset else None
    longest = max(len(row.token_ids) for row in [*rows.rows, *(held_out.rows if held_out else ())])
    if (most := _positions(cfg)) and longest > most:
        raise ConfigError(
            f"A row has {longest} tokens, and the model knows {most} positions (max_position_embeddings)."
            f" Set --sft.max_len {most}."
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
    specials = {text: tokenizer.convert_tokens_to_ids(text) for text in special_texts(tokenizer)}
    return Vocabulary(HfCodec(tokenizer), specials, tokenizer.eos_token_id, bos_of(tokenizer))


def chat_template_of(cfg: Config, tokenizer: Any) -> ChatTemplate | None:
    """The tokenizer's own. Of a model that a run exported: without that run's prompt around the question."""
    given = template_of(tokenizer)
    if not given:
        return None
    own = {} if without_question(given) == given else {"chat_template": without_question(given)}
    return ChatTemplate.of(tokenizer, {**cfg.data.chat_template_options, **own})


def _positions(cfg: Config) -> int | None:
    """None where the model's directory does not say, or stretches them."""
    file = Path(cfg.actor.model_name_or_path) / "config.json"
    model = json.loads(file.read_text(encoding="utf-8-sig")) if file.is_file() else {}
    most = model.get("max_position_embeddings")
    return most if isinstance(most, int) and not model.get("rope_scaling") else None


def checkpoints_of(cfg: Config, made_of: dict[str, Any] | None = None) -> Checkpoints:
    facts = None if made_of is None else {"sft": made_of}
    return Checkpoints(
        cfg.run_dir / cfg.ckpt.path,
        cfg.ckpt.max_num,
        facts=facts,
        max_bytes=lineage.max_bytes(cfg),
        expected_bytes=checkpoint_bytes(cfg),
    )


def resumable(cfg: Config, made_of: dict[str, Any], schedule: Schedule) -> Path | None:
    """The verified checkpoint that a run with train.resume goes on from; None: there is none, and train.resume_or_start
    allows that.

    Raises ConfigError for a checkpoint of another run, of passes that ended elsewhere, or none; CheckpointDamaged."""
    checkpoints = checkpoints_of(cfg)
    path = checkpoints.choose(cfg.train.resume_from)
    if path is None:
        if cfg.train.resume_or_start:
            return None
        raise ConfigError(
            f"There is no checkpoint in {checkpoints.directory}, so --resume has nothing to go on from. Correct"
            " --run-dir, or leave --resume out to start anew; --train.resume_or_start starts anew by itself as long as"
            " there is none."
        )
    state = checkpoints.state(path)
    before = (state.get("facts") or {}).get("sft")
    if before is None:
        raise ConfigError(
            f"{path} is a checkpoint of `openrlhf-tir train`."
            " Resume it with that command, or give this run another --run-dir."
        )
    wrong = [
        f"{name} = {before.get(name)}, this run has {now}" for name, now in made_of.items() if before.get(name) != now
    ]
    if wrong := [*wrong, *filter(None, [ranks.refusal(state, cfg)])]:
        raise ConfigError(
            f"The checkpoint {path.name} was made with {'; '.join(wrong)}."
            " Resume with the same, or start anew in another --run-dir."
        )
    taken, now = state.get(ROWS_TAKEN), schedule.taken(state["step"])
    if taken not in (None, now):
        raise ConfigError(
            f"The updates of {path.name} have taken {taken} rows; with sft.max_epochs = {schedule.epochs} they would"
            f" have taken {now}, since an update that ends the passes is smaller. Resume with the same passes, or"
            " fine-tune that run's model further in another --run-dir."
        )
    return path
