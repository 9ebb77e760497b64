"""Seeds of runs on a packaged model, which follow from a digest of the run's settings, so that nobody picks them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from openrlhf_tir.config import Config
from openrlhf_tir.config.flags import Parser, add_config_flags, overrides_of
from openrlhf_tir.config.sections.sft import Sft
from openrlhf_tir.config.settings import load, to_toml

from .tasks import RealTask

SEED_BITS = 31


def digest(task: RealTask, recipe: str, flags: Sequence[str], demonstrations: int = 0) -> str:
    """Return a hash of a run's resolved settings, without seed and directory, and of its held-out rows.

    Runs of the same digest, seed and base model are one run.

    Args:
        task: What the model learns.
        recipe: The run's recipe.
        flags: Flags in addition to the recipe's.
        demonstrations: Rows of the cold start; 0: there is none, and the settings of fine-tuning do not count.
    """
    cfg = _settings(recipe, tuple(flags))
    if not demonstrations:
        cfg = cfg.model_copy(update={"sft": Sft()})
    text = f"{to_toml(cfg)}\n{json.dumps(task.held_out())}"
    if demonstrations:
        text += f"\n{demonstrations} demonstrations"
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _settings(recipe: str, flags: tuple[str, ...]) -> Config:
    """Return the settings without the run directory, which is below the directory that the program was started in."""
    parser = Parser()
    add_config_flags(parser)
    args, args.unknown = parser.parse_known_args(flags)
    return load(recipe, overrides_of(args)).model_copy(update={"run_dir": Path()})


def seeds(settings: str, number: int) -> list[int]:
    """Return `number` seeds that follow from the digest of the settings."""
    hashes = (hashlib.sha256(f"{settings}/{i}".encode()).hexdigest() for i in range(number))
    return [int(text, 16) % 2**SEED_BITS for text in hashes]
