"""A script with TRL's SFTTrainer -> a recipe of `openrlhf-tir sft` that does what its trainer did."""

from __future__ import annotations

from typing import Any

from .recipe_draft import Draft
from .script_call import Devices
from .shared_settings import set_run_dir
from .trl_import import (
    TrlArguments,
    TrlRecipe,
    say_what_is_left,
    set_model,
    set_outputs,
    set_ranks,
    set_rows,
    set_saves,
)
from .trl_optimizer import DEFAULTS as OPTIMIZER_DEFAULTS
from .trl_optimizer import set_optimizer
from .trl_script import TrlScript

DEFAULTS: dict[str, Any] = OPTIMIZER_DEFAULTS | {
    "learning_rate": 2e-5,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3,
    "max_steps": -1,
    "max_length": 1024,
    "packing": False,
    "save_steps": 500,
}
"""What SFTConfig says of the arguments that are read here."""
TAKEN = ("model", "args", "train_dataset", "eval_dataset", "processing_class", "tokenizer", "peft_config")
"""Arguments of SFTTrainer that are read, or that need nothing here."""


def import_trl_sft(script: TrlScript, name: str, rows_file: str, devices: Devices) -> TrlRecipe:
    """Return the recipe of a script.

    Args:
        script: What its trainer is given.
        name: The script's name, for the run directory.
        rows_file: The file that the recipe names for rows that the script itself makes.
        devices: The devices, by which per_device_train_batch_size is multiplied.
    """
    recipe = TrlRecipe()
    draft = recipe.draft
    trl = TrlArguments(script, draft, DEFAULTS)
    set_run_dir(draft, name)
    set_model(script, draft, trl)
    set_rows(script, recipe, rows_file, dataset="sft.dataset")
    batch = int(trl("per_device_train_batch_size")) * int(trl("gradient_accumulation_steps"))
    batch *= devices.nodes * devices.per_node
    set_ranks(draft, devices)
    draft.set("sft.batch_size", batch, "rows of an update, over all devices")
    older = trl("max_seq_length")  # its name in older versions of TRL
    length = older if older and "max_length" not in trl.values else trl("max_length")
    if length:
        draft.set("sft.max_len", int(length))
        draft.differs(f"max_length={length}: longer rows are left out and counted, not cut.")
    epochs = float(trl("num_train_epochs"))
    draft.set("sft.max_epochs", max(1, round(epochs)))
    if epochs != round(epochs):
        draft.differs(f"num_train_epochs={epochs:g}: whole passes, {max(1, round(epochs))}.")
    max_steps = int(trl("max_steps"))
    if max_steps > 0:
        draft.set("sft.max_steps", max_steps)
    set_optimizer(draft, trl, "sft", max_steps if max_steps > 0 else None)
    if trl("packing"):
        draft.set("ds.packing_samples", True, "forward passes without padding: no row reads another")
    set_saves(draft, trl, None)
    set_outputs(draft, trl)
    _learned(draft, trl)
    say_what_is_left(script, recipe, trl, TAKEN)
    return recipe


def _learned(draft: Draft, trl: TrlArguments) -> None:
    """Which tokens are learned: here the columns of a row say so."""
    if not trl("assistant_only_loss"):
        draft.differs(
            "assistant_only_loss is not set: of rows with `messages` TRL learns every token, and here what the"
            " assistant says is learned, users' words are read. Rows with `text` are learned as a whole, of `prompt`"
            " and `completion` the completion, as in TRL."
        )
    if trl("completion_only_loss") is False:
        draft.differs("completion_only_loss=False: the prompt is read and not learned; `text` is learned as a whole.")
    if field := trl("dataset_text_field"):
        draft.set("sft.input_key", str(field))
