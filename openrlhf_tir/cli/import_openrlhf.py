"""import-openrlhf: a bash script or a command line of OpenRLHF -> a recipe that does what it did."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

from ..config.integrations.openrlhf_commands import RECIPES, calls_of, is_own
from ..config.integrations.openrlhf_import import Imported, Source, import_train_ppo
from ..config.integrations.openrlhf_sft import import_train_sft
from ..config.integrations.recipe_draft import Draft
from ..config.integrations.rehearsal import rehearse
from ..config.integrations.script_call import Call, Devices, devices_of_launcher, gpus_of_launcher
from ..data.chat_template import special_texts_of
from .exit_codes import NO
from .imports import (
    Project,
    add_bash_arguments,
    count_rows,
    first_rows,
    give_recipe,
    recipe_text,
    training_call,
)

EXAMPLES = """examples
  openrlhf-tir import-openrlhf train_grpo.sh --out grpo.toml
      the recipe of a script; what differs, and OpenRLHF's defaults, are comments in it and on the screen
  openrlhf-tir import-openrlhf -- --actor.model_name_or_path MODEL --actor.adam.lr 5e-7 ...
      the same of train_ppo_ray's flags, without a script
  openrlhf-tir import-openrlhf --rehearse train_grpo.sh --run --actor.model_name_or_path TOY --data.prompt_dataset ROWS
      two short batches of it on this machine, without GPUs: does everything work together?
  openrlhf-tir import-openrlhf train_grpo.sh --run --run-dir runs/mine
      make the recipe and start it: what follows --run are flags of `openrlhf-tir train`
Names of OpenRLHF 0.11 and of all older versions are read. The script is not run: variables, arrays, here-documents,
conditions and loops are read as bash would take them."""

SPECIAL = re.compile(r"<\|[a-z_]+\|>|<｜[^｜]+｜>|</?s>|<(?:start|end)_of_turn>")
"""Special tokens of chat templates: of Qwen, Llama 3, Phi, DeepSeek, Llama 2 and Gemma."""


PROJECT = Project("OpenRLHF", "import-openrlhf", "flags")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bash_arguments(parser, PROJECT, EXAMPLES)
    parser.usage = (
        "%(prog)s [--out FILE] [--number N] [--force] SCRIPT.sh [ARGUMENT...] [--run [FLAGS...]]\n"
        "       %(prog)s [--out FILE] [--program NAME] -- FLAGS..."
    )
    parser.add_argument(
        "--program",
        choices=RECIPES,
        default="train_ppo_ray",
        help="whose flags stand behind -- [train_ppo_ray]",
    )


def run(args: argparse.Namespace) -> int:
    def without_program(words: list[str]) -> Call | None:
        return Call(args.program, (args.program,), tuple(words), 0) if words[0].startswith("--") else None

    found = training_call(args, PROJECT, calls_of, without_program)
    if found is None:
        return NO
    call, flags, path = found
    source = Source("openrlhf", [Path.cwd()]) if path is None else Source(path.name, _directories(path))
    imported, text = recipe_of(replace(call, words=flags), source, rehearsal=args.rehearse)
    return give_recipe(args, imported, text, "sft" if call.program == "train_sft" else "train")


def recipe_of(call: Call, source: Source, *, rehearsal: bool = False) -> tuple[Imported, str]:
    """Return the recipe of one command, as settings and as text."""
    cut = rehearse if rehearsal else None
    if call.program == "train_sft":
        devices = devices_of_launcher(call.launcher)
        gpus = gpus_of_launcher(call.launcher)
        imported = import_train_sft(call.words, source, devices or (gpus and Devices(per_node=gpus)) or None, cut)
        if devices is None and gpus:
            imported.draft.differs("How many nodes the launcher starts only a run can tell: set actor.num_nodes.")
    else:
        imported = import_train_ppo(call.words, source, rows_of, cut, is_rendered)
    draft = imported.draft
    if is_own(call):
        draft.differs(
            f"{call.launcher[-1]} is a program of your own around {call.program}: what its code changes in OpenRLHF is"
            " not in the recipe, which has what the flags say. Compare its code."
        )
    where = f"{source.name}, line {call.line}" if call.line else "a command line"
    origin = f"From {where}: OpenRLHF's {call.program}. Made by `openrlhf-tir import-openrlhf`."
    return imported, recipe_text(origin, imported)


def rows_of(draft: Draft) -> int | None:
    """Return the number of rows of a recipe's data, as far as `count_rows` can tell."""
    names = str(draft.settings.get("data.prompt_dataset", "")).split(",")
    return count_rows([name.strip() for name in names], str(draft.settings.get("data.prompt_split", "train")))


def is_rendered(draft: Draft) -> bool:
    """Return True if the template of the prompts, or one of the first rows, holds special tokens of a chat template.

    A tokenizer that is on this machine says which texts are special, else those of common families count.
    """
    names = str(draft.settings.get("data.prompt_dataset", "")).split(",")
    key = str(draft.settings.get("data.input_key", "input"))
    rows = first_rows([name.strip() for name in names], str(draft.settings.get("data.prompt_split", "train")))
    texts = [str(row[key]) for row in rows if isinstance(row.get(key), str)]
    texts.append(str(draft.settings.get("data.input_template") or ""))
    specials = special_texts_of(str(draft.settings.get("actor.model_name_or_path", "")))
    known = re.compile("|".join(map(re.escape, specials))) if specials else SPECIAL
    return any(known.search(text) for text in texts)


def _directories(path: Path) -> list[Path]:
    """Return where relative paths of a script may begin: here, where OpenRLHF's scripts are started from, or beside
    it."""
    here = path.absolute().parent
    return [Path.cwd(), here.parent.parent, here]
