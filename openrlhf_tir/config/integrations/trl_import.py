"""A script of TRL -> a recipe that does what its trainer did.

    GRPOConfig's arguments    the tables below; what is not given has TRL's default where this project's is another
    reward_funcs, tools       functions in a file of their own, which TRL need not be installed for
    train_dataset             a name, a file, or a sentence that says how to write its rows out

Every argument is a setting, needs nothing here, or is named in a sentence of `Draft.differs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...algorithms.losses import LOSSES as POLICY_LOSSES
from .python_script.copied_code import code_of
from .python_script.dataset import dataset_of
from .python_script.values import UNKNOWN, SourceReader
from .recipe_draft import Copied, Draft, copy, if_set
from .script_call import Devices
from .shared_settings import CALLS_OF_A_RESPONSE, say_wandb_key, say_wide_clip, set_no_tool, set_run_dir, set_tools
from .trl_left_out import account_for_unread, needs_nothing
from .trl_optimizer import DEFAULTS as OPTIMIZER_DEFAULTS
from .trl_optimizer import set_optimizer
from .trl_script import TrlScript

DEFAULTS: dict[str, Any] = OPTIMIZER_DEFAULTS | {
    "learning_rate": 1e-6,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3,
    "max_steps": -1,
    "num_generations": 8,
    "max_completion_length": 512,
    "max_prompt_length": 512,
    "num_iterations": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "beta": 0.0,
    "epsilon": 0.2,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "importance_sampling_level": "token",
    "save_steps": 500,
    "output_dir": "grpo",
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_cap": 3.0,
}
"""What GRPOConfig says of the arguments that are read here."""
RLOO_DEFAULTS = DEFAULTS | {"num_generations": 2, "beta": 0.05}
"""What RLOOConfig says of them."""
NUMBERS = frozenset(
    {
        *(name for name, value in DEFAULTS.items() if isinstance(value, int | float) and not isinstance(value, bool)),
        *("min_p", "entropy_coef", "delta", "epsilon_high", "max_tool_calling_iterations"),
        *("steps_per_generation", "generation_batch_size", "vllm_gpu_memory_utilization"),
        *("max_length", "max_seq_length"),
    }
)
"""The arguments that are read as numbers."""
WHOLE = frozenset(
    {
        *("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "num_iterations"),
        *("max_completion_length", "max_prompt_length", "steps_per_generation", "generation_batch_size"),
        *("max_length", "max_seq_length", "max_steps", "top_k", "seed", "max_tool_calling_iterations"),
    }
)
"""Those of them that are whole."""
FROM_ONE_ON = WHOLE - {"max_steps", "top_k", "seed", "max_tool_calling_iterations"}
"""Those that count something of which there is one at least."""
COPIED = (
    Copied("temperature", "rollout.temperature", float),
    Copied("top_p", "rollout.top_p", float),
    Copied("top_k", "rollout.top_k", lambda top_k: max(0, int(top_k))),
    Copied("min_p", "rollout.min_p", if_set(float)),
    Copied("num_iterations", "train.max_epochs", lambda passes: int(passes) if int(passes) > 1 else None),
    Copied("shuffle_dataset", "data.shuffle", lambda shuffles: False if shuffles is False else None),
    Copied("chat_template_kwargs", "data.chat_template_options", lambda options: options or None),
    Copied("entropy_coef", "actor.entropy_coef", if_set(float)),
    Copied("delta", "actor.dual_clip", if_set(float), "delta"),
    Copied(
        "mask_truncated_completions",
        "filter.sample",
        if_set(lambda masks: "over_length"),
        "mask_truncated_completions",
    ),
)
"""Arguments that are one setting each."""
TAKEN = (
    *("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "tokenizer", "peft_config"),
    *("tools", "environment_factory", "reward_processing_classes", "data_collator"),
)
"""Arguments of a trainer that are read, or that need nothing here."""
OF_ROWS = ("formatting_func", "data_collator")
"""Arguments of a trainer that change its rows."""
LOSSES = {
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "cispo": "token-mean",
}
"""loss_type -> actor.loss_agg_mode."""
CORRECTIONS = {
    "token_truncate": ("token", "clip"),
    "token_mask": ("token", "mask"),
    "sequence_truncate": ("token", "clip"),
    "sequence_mask": ("seq", "mask"),
}
"""vllm_importance_sampling_mode -> algo.advantage.is_correction_level and is_correction_mode."""


@dataclass
class TrlRecipe:
    """What a script of TRL becomes."""

    draft: Draft = field(default_factory=Draft)
    code: str = ""
    """The text of the file with its functions; empty where there are none."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows that stand in the script itself."""
    nothing: list[str] = field(default_factory=list)


@dataclass
class CopiedCode:
    """What the file with functions of a script is to hold."""

    file: str
    """Its name in the recipe."""
    names: list[str] = field(default_factory=list)
    """Functions and classes of the script."""
    made: dict[str, str] = field(default_factory=dict)
    """Names that are given the value of an expression."""
    tools: list[str] = field(default_factory=list)
    """Those of the functions that the model may call."""


class TrlArguments:
    """The arguments of a trainer's config. It remembers which of them were read."""

    def __init__(self, script: TrlScript, draft: Draft, defaults: Mapping[str, Any]) -> None:
        """Take a script's arguments. Those whose value only a run can tell are named in the draft.

        Args:
            script: What its trainer is given.
            draft: The recipe.
            defaults: TRL's values of arguments that the script does not give.
        """
        self.values = {key: _number_if_text(key, value) for key, value in script.config.items() if value is not UNKNOWN}
        self._defaults = defaults
        self._read = {"dataset_name", "dataset_config", "dataset_train_split"}  # by `set_rows`
        unknown = [key for key in script.config if key not in self.values]
        for key in (key for key in unknown if key != "output_dir" and not needs_nothing(key)):
            draft.differs(f"{key}: only a run can tell its value. Left at TRL's default.")
        for key, value in [*self.values.items()]:
            if fault := _fault_of(key, value):
                draft.differs(f"{key}={value!r} {fault}. Left at TRL's default.")
                del self.values[key]

    def __call__(self, key: str) -> Any:
        """Return an argument, or its default, which None stands for as well: args.x of a flag that is not given."""
        self._read.add(key)
        value = self.values.get(key)
        return self._defaults.get(key) if value is None else value

    def unread(self) -> list[tuple[str, Any]]:
        """Return the script's arguments that were not read, with their values, without those that are None."""
        return [(key, value) for key, value in self.values.items() if key not in self._read and value is not None]


def _number_if_text(name: str, value: Any) -> Any:
    """Return the value of an argument, as a number where TRL has one and a script writes "1e-6"."""
    if name not in NUMBERS or not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if math.isfinite(number) and number == int(number) else number


def _fault_of(name: str, value: Any) -> str:
    """Return why TRL could not use the value of an argument, "" where it could. None is no fault."""
    if name not in NUMBERS or value is None:
        return ""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return "is no number"
    if name in WHOLE and value != int(value):
        return "is no whole number"
    return "is below 1" if name in FROM_ONE_ON and value < 1 else ""


def import_trl(
    script: TrlScript,
    name: str,
    code_file: str,
    rows_file: str,
    devices: Devices,
    rows_of: Callable[[Sequence[str]], int | None],
    first_rows: Callable[[Sequence[str]], Sequence[Mapping[str, Any]]],
) -> TrlRecipe:
    """Return the recipe of a script.

    Args:
        name: The script's name, for the run directory.
        code_file: The file that the recipe names for functions of the script.
        rows_file: The same for rows that the script itself makes.
        devices: The devices, by which per_device_train_batch_size is multiplied.
        rows_of: The number of rows of some files; None where they are not here.
        first_rows: The first rows of some files, as far as they are here.
    """
    recipe = TrlRecipe()
    draft = recipe.draft
    rloo = script.trainer == "RLOOTrainer"
    trl = TrlArguments(script, draft, RLOO_DEFAULTS if rloo else DEFAULTS)
    set_model(script, draft, trl)
    set_rows(script, recipe, rows_file)
    _set_functions(script, recipe, code_file, trl)
    files = [str(draft.settings["data.prompt_dataset"])]
    _set_template(draft, recipe.rows or first_rows(files))
    rows = len(recipe.rows) or rows_of(files)
    _numbers(draft, trl, devices.nodes * devices.per_node, rows)
    if rloo:
        _method_of_rloo(draft, trl)
    else:
        _method_of_grpo(draft, trl)
    copy(COPIED, trl, draft)
    draft.set("filter.names", [], "TRL trains every group")
    draft.set("pipeline.mode", "sync", "TRL samples, then trains")
    _placement(draft, trl, devices)
    set_run_dir(draft, name)
    set_outputs(draft, trl)
    if script.trainer not in ("GRPOTrainer", "RLOOTrainer"):
        draft.differs(f"{script.trainer}: trained as GRPOTrainer; pipeline.mode = 'pipeline' overlaps the rollout.")
    say_what_is_left(script, recipe, trl, TAKEN)
    return recipe


def say_what_is_left(script: TrlScript, recipe: TrlRecipe, trl: TrlArguments, taken: Collection[str]) -> None:
    """Say what of a script is not in its recipe.

    Args:
        script: The script.
        recipe: Its recipe, complete but for these sentences.
        trl: The arguments of the trainer's config, all that set something having been read.
        taken: Arguments of the trainer itself that are read, or that need nothing here.
    """
    draft = recipe.draft
    for note in script.notes:
        draft.differs(note)
    recipe.nothing = account_for_unread(trl, script, draft)
    for other in script.others:
        draft.differs(f"{other}: not in this recipe, which is of the last trainer that the script makes.")
    if script.changed:
        draft.differs(f"{script.changed}: what this class changes of {script.trainer} is not taken over.")
    if script.quantised:
        draft.differs("The model is loaded in 4 or 8 bits: bf16 weights here (ds.param_dtype).")
    for key in script.arguments:
        if key not in taken:
            advice = "write the rows out as they should be" if key in OF_ROWS else "see docs/coming_from_trl.md"
            draft.differs(f"{script.trainer}({key}=...): not taken over; {advice}.")


def set_model(script: TrlScript, draft: Draft, trl: TrlArguments) -> None:
    """Set the model, and its low-rank adapters."""
    model = trl("model_name_or_path") or script.value("model")
    if isinstance(model, str):
        draft.set("actor.model_name_or_path", script.path_of(model))
    else:
        draft.differs(f"model={script.source('model')}: set actor.model_name_or_path to its name or directory.")
    if script.lora or "peft_config" in script.arguments:
        for name, setting in (("r", "ds.lora.rank"), ("lora_alpha", "ds.lora.alpha")):
            value = script.lora.get(name, 8)
            is_size = isinstance(value, int | float) and not isinstance(value, bool) and value >= 1
            draft.set(setting, int(value) if is_size else 8)
            if not is_size:
                known = "only a run can tell it" if value is UNKNOWN else f"{value!r} is no number from 1 on"
                draft.differs(f"LoRA's {name}: {known}. 8 here: set {setting}.")
        modules = script.lora.get("target_modules")
        if modules not in (None, UNKNOWN):
            draft.set("ds.lora.target_modules", modules if isinstance(modules, list) else [str(modules)])
        dropout = script.lora.get("lora_dropout")
        if isinstance(dropout, int | float) and dropout and not trl("disable_dropout"):
            draft.set("ds.lora.dropout", float(dropout))


def set_rows(script: TrlScript, recipe: TrlRecipe, rows_file: str, dataset: str = "data.prompt_dataset") -> None:
    """Set the data set: a name or a file, or rows that have to be written out.

    Args:
        script: What the trainer is given.
        recipe: Its draft is changed, and gets rows that stand in the script.
        rows_file: The file for rows that the script itself makes.
        dataset: The setting that names the rows.
    """
    draft = recipe.draft
    node = script.arguments.get("train_dataset")
    name, keywords, done = dataset_of(script.reader, node)
    name = str(script.config.get("dataset_name") or name)
    files = keywords.get("data_files")
    if isinstance(files, dict):
        files = files.get("train")
    if name in ("json", "parquet"):
        name = files if isinstance(files, str) else ""
    part = str(keywords.get("split") or "train")
    if "rows" in keywords and not done:
        recipe.rows = keywords["rows"]
        draft.set(dataset, rows_file)
    elif name and not done and not keywords.get("args"):
        draft.set(dataset, script.path_of(name))
        if part.partition("[")[0] != "train":
            draft.set("data.prompt_split", part.partition("[")[0])
        if "[" in part:
            draft.differs(f"split={part!r}: the whole split is read; data.max_samples takes the first rows of it.")
    elif node is None and not name:
        draft.set(dataset, rows_file)
        draft.differs(f"{script.trainer} is given no train_dataset: write its rows to {rows_file}, or name them here.")
    else:
        draft.set(dataset, rows_file)
        source = script.source("train_dataset")
        steps = f", changed by {'; '.join(reversed(done))[:200]}" if done else ""
        draft.differs(
            f"train_dataset={source} is made by the script{steps}. Write its rows out once, before the trainer is made:"
            f" {source}.to_json({rows_file!r})."
        )
    if "eval_dataset" in script.arguments and script.value("eval_dataset") is not None:
        held_out = "eval.dataset" if dataset.startswith("data.") else "sft.eval_dataset"
        draft.differs(f"eval_dataset={script.source('eval_dataset')}: give its rows as {held_out}.")


def _set_functions(script: TrlScript, recipe: TrlRecipe, code_file: str, trl: TrlArguments) -> None:
    """Set rewards and tools, and write the code that they need into a file of its own."""
    environment = script.names("environment_factory")
    code = CopiedCode(code_file)
    _set_rewards(script, recipe.draft, trl, environment, code)
    _set_tools(script, recipe.draft, trl, environment, code)
    if code.names or code.made:
        recipe.code = code_of(script.reader, code.names, code.made)
    if code.tools:
        recipe.code += f"\n\nTOOLS = [{', '.join(code.tools)}]\n"


def _set_rewards(
    script: TrlScript, draft: Draft, trl: TrlArguments, environment: Sequence[str], code: CopiedCode
) -> None:
    """Set the rewards with their weights."""
    names = script.names("reward_funcs")
    weights = trl("reward_weights") or []
    weights = [weights] if isinstance(weights, int | float) else weights  # --reward_weights 0.5
    are_numbers = isinstance(weights, list) and all(isinstance(weight, int | float) for weight in weights)
    each = weights if are_numbers and len(weights) == len(names) else [1.0] * len(names)
    if each is not weights and weights:
        draft.differs(
            f"reward_weights={weights} is no list of {len(names)} numbers, and TRL would refuse it: 1.0 each."
        )
    weight_of = dict(zip(names, map(float, each), strict=True))
    judges = {name: weight_of[name] for name in names if "environments" in script.reader.parameters(name)}
    rewards: dict[str, float] = {}
    judgement = _judgement(draft, script.reader, environment, judges) if judges else ""
    if judgement:
        code.names += judges
        code.made[f"{environment[0]}.get_reward"] = judgement
    if judgement or (environment and not names):
        rewards["env"] = 1.0
    for name in names:
        place = None if name in judges else _reward(script, draft, name, code)
        if place is not None:
            rewards[place] = weight_of[name]
    if [*rewards.values()] == [1.0]:
        draft.set("reward.name", next(iter(rewards)))
    elif rewards:
        draft.set("reward.weights", rewards)
    else:
        draft.differs("The script names no reward function that can be read: set reward.name.")


def _set_tools(
    script: TrlScript, draft: Draft, trl: TrlArguments, environment: Sequence[str], code: CopiedCode
) -> None:
    """Set the tools, or the class of an environment, whose methods are the tools."""
    tools = script.names("tools")
    is_defined = script.reader.is_defined
    for name in tools:
        if not is_defined(name):
            draft.differs(f"tools={name}: not a function of the script; add it to TOOLS in {code.file}.")
    tools = [name for name in tools if is_defined(name)]
    calls = trl("max_tool_calling_iterations")
    attribute = ""
    if environment and not is_defined(environment[0]):
        draft.differs(
            f"environment_factory={environment[0]}: not a class of the script. Write a class whose constructor needs no"
            " arguments, and set env.name = 'tools', env.file = 'file.py:CLASS'."
        )
    elif environment:
        attribute = environment[0]
        code.names.append(attribute)
    elif tools:
        attribute = "TOOLS"
        code.tools = tools
        code.names += tools
    if not attribute:
        set_no_tool(draft)
        return
    set_tools(draft, f"{code.file}:{attribute}")
    draft.set("env.options", {"calls": "hermes"}, "Qwen's; llama3, mistral and others: docs/protocols.md")
    draft.set("env.max_calls", int(calls) if calls else CALLS_OF_A_RESPONSE)


def _reward(script: TrlScript, draft: Draft, name: str, code: CopiedCode) -> str | None:
    """Return the place of one of the script's rewards, as `reward.name` has it; None where it cannot be read.

    Args:
        script: The script.
        draft: Is told what the reward needs.
        name: The function, or the expression that makes it.
        code: Gets what has to be copied for it.
    """
    reader = script.reader
    if reader.is_defined(name) or reader.is_made(name):
        code.names.append(name)
        return f"{code.file}:{name}"
    source = reader.held_by(name) if name.isidentifier() else ""
    if source or reader.called_with_own(name):
        code.made[f"reward_{len(code.made) + 1}"] = reader.with_values(source or name)
        return f"{code.file}:reward_{len(code.made)}"
    if name[:1] in "'\"":
        draft.set("reward.model_name_or_path", name.strip("'\""))
        return "model"
    if (place := _place_of(script, name)) is not None:
        module, function = place
        if not module.endswith(".py") and reader.local_module(module) is not None:
            code.names.append(name)
            return f"{code.file}:{name}"
        if not module.endswith(".py"):
            draft.differs(f"reward_funcs={name} is not of the script: {module} has to be installed.")
        return f"{module}:{function}"
    if name.isidentifier() and name not in reader.assigned:
        draft.differs(f"reward_funcs={name} is not of the script: trl.rewards:{name} needs TRL installed.")
        return f"trl.rewards:{name}"
    draft.differs(f"reward_funcs={name}: write it as a function of a file, reward.name = 'file.py:function'.")
    return None


def _judgement(draft: Draft, reader: SourceReader, environment: Sequence[str], judges: Mapping[str, float]) -> str:
    """Return the source of a method `get_reward` that asks reward functions for one environment.

    TRL gives `environments`, the objects, to such functions. Here an object lives in an environment server, where its
    method `get_reward` can ask them.

    Args:
        draft: Is told where that is not possible.
        reader: The script.
        environment: The class, as `environment_factory` names it.
        judges: The functions, with their weights.

    Returns:
        The method as a lambda, or an empty text.
    """
    others = {name: reader.used_parameters(name) - {"environments"} for name in judges}
    free = not any(others.values()) and not any(map(reader.is_async, judges))
    if (
        not environment
        or not reader.is_defined(environment[0])
        or not free
        or reader.has_method(environment[0], "get_reward")  # the functions may call it
    ):
        for name in judges:
            draft.differs(
                f"{name} reads `environments`, and the objects live in the environment server here: give their class a"
                " method get_reward(self) that returns a number, and the reward 'env' a weight, or set reward.name ="
                " 'env'."
            )
        return ""
    calls = []
    for name, weight in judges.items():
        lists = "".join(f", {other}=[None]" for other in reader.parameters(name) if other != "environments")
        factor = "" if weight == 1 else f"{weight:g} * "
        calls.append(f"{factor}({name}(environments=[self]{lists})[0] or 0.0)")
    return f"lambda self: {' + '.join(calls)}"


def _place_of(script: TrlScript, name: str) -> tuple[str, str] | None:
    """Return (module or file, function) of a reward that the script imports; None where it is not imported.

    `from rewards import f` gives the module, whose code is copied; `rewards.f` the file of the module.
    """
    reader = script.reader
    module, dot, function = name.rpartition(".")
    if not dot:
        found = reader.imported(name)
        return found if found is not None and found[1] else None
    found = reader.imported(module)
    if found is None or not all(part.isidentifier() for part in (*module.split("."), function)):
        return None
    path = reader.local_module(found[0])
    return (str(path.absolute()) if path is not None else found[0], function)


def _numbers(draft: Draft, trl: TrlArguments, gpus: int, rows: int | None) -> None:
    """Batches, lengths, the optimiser."""
    n = int(trl("num_generations"))
    batch = int(trl("per_device_train_batch_size")) * int(trl("gradient_accumulation_steps")) * gpus
    if batch % n:
        batch = math.ceil(batch / n) * n
        draft.differs(f"A batch of whole groups: {batch} completions.")
    generations = trl("steps_per_generation")
    generated = trl("generation_batch_size")
    updates = 1
    if generated and int(generated) > batch:
        updates = int(generated) // batch
    elif generations:
        updates = max(1, int(generations) // int(trl("gradient_accumulation_steps")))
    draft.set("rollout.batch_size", batch * updates // n, f"{batch * updates} completions of {n} for each prompt")
    draft.set("rollout.n_samples_per_prompt", n)
    draft.set("train.micro_batch_size", max(1, int(trl("per_device_train_batch_size"))))
    if updates > 1:
        draft.set("train.batch_size", batch)
    length, prompt = int(trl("max_completion_length")), int(trl("max_prompt_length") or 512)
    draft.set("rollout.max_new_tokens", length)
    draft.set("data.max_len", length + prompt)
    steps = int(trl("max_steps"))
    per = updates * int(trl("num_iterations"))
    if steps > 0:
        draft.set("train.max_steps", math.ceil(steps / per) * per)
    elif rows:
        prompts = int(draft.settings["rollout.batch_size"])
        batches = max(1, math.floor(rows * float(trl("num_train_epochs")) / prompts))
        draft.set("train.max_steps", batches * per, f"{rows} rows, num_train_epochs = {trl('num_train_epochs')}")
    else:
        draft.set("train.max_steps", 1000 * per, "TRL derives it from the rows: correct it")
        draft.differs(
            f"TRL derives the number of updates from the rows: train.max_steps = {1000 * per}. The run ends with the"
            " data in any case, and the learning rate's schedule runs over it: set it to rows * epochs /"
            " rollout.batch_size."
        )
    draft.set("train.num_episodes", max(1, math.ceil(float(trl("num_train_epochs")))))
    set_optimizer(draft, trl, "actor", int(draft.settings["train.max_steps"]) if steps > 0 or rows else None)
    set_saves(draft, trl, max(1, rows // int(draft.settings["rollout.batch_size"])) * per if rows else None)


def set_saves(draft: Draft, trl: TrlArguments, updates_of_epoch: int | None) -> None:
    """Set how often a checkpoint is saved.

    Args:
        draft: The recipe.
        trl: The arguments.
        updates_of_epoch: The number of updates of a pass over the rows; None where it is not known.
    """
    steps, strategy = trl("save_steps"), trl("save_strategy")
    if strategy == "epoch" and updates_of_epoch is None:
        draft.differs("save_strategy='epoch': the rows are not known here. Set ckpt.save_steps.")
    if strategy in ("no", "epoch"):
        steps = updates_of_epoch if strategy == "epoch" else None
    elif strategy == "best":
        draft.differs(
            "save_strategy='best': every save_steps here, the best by evaluation included (ckpt.best_metric)."
        )
    if steps and 0 < steps < 1:  # a share of the run
        updates = draft.settings.get("train.max_steps") or draft.settings.get("sft.max_steps")
        if updates is None:
            draft.differs(
                f"save_steps={steps}: a share of the updates, whose number is not known. Set ckpt.save_steps."
            )
        steps = math.ceil(steps * updates) if updates else None
    draft.set("ckpt.save_steps", int(steps) if steps and steps > 0 else -1)


def set_outputs(draft: Draft, trl: TrlArguments) -> None:
    """Set what is logged, and say where checkpoints and the model are."""
    if "output_dir" in trl.values:
        draft.differs(f"output_dir={trl('output_dir')}: checkpoints and the model are in run_dir.")
    if "report_to" not in trl.values:
        return
    given = trl("report_to")
    trackers = [*map(str, given)] if isinstance(given, list) else [str(given or "none")]
    if trackers == ["none"]:
        draft.set("logger.tensorboard_dir", None)
    for tracker in (t for t in trackers if t not in ("none", "tensorboard")):
        if tracker in ("wandb", "all"):
            say_wandb_key(draft, f"report_to {tracker}")
        else:
            draft.differs(
                f"report_to {tracker}: there are W&B and TensorBoard (logger.*), report.html and metrics.jsonl."
            )


def set_ranks(draft: Draft, devices: Devices) -> None:
    """Set a learner rank for each device."""
    draft.set("actor.num_nodes", devices.nodes)
    draft.set("actor.num_gpus_per_node", devices.per_node, "a rank for each device of the script")


def _placement(draft: Draft, trl: TrlArguments, devices: Devices) -> None:
    """A learner rank for each device, and engines on the same ones unless TRL's vLLM was a server."""
    gpus = devices.nodes * devices.per_node
    set_ranks(draft, devices)
    draft.set("vllm.num_engines", gpus)
    if trl("use_vllm") and trl("vllm_mode") == "server":
        draft.differs(
            f"vllm_mode='server': engines are started by the run, {gpus} of one GPU each beside the {gpus} of the"
            " learner (vllm.num_engines, vllm.tensor_parallel_size)."
        )
        return
    draft.set("train.colocate_all", True, "learner and engines in turns on the same devices, as TRL")
    share = trl("vllm_gpu_memory_utilization")
    if isinstance(share, int | float):
        draft.set("vllm.gpu_memory_utilization", float(share))


def _set_template(draft: Draft, rows: Sequence[Mapping[str, Any]]) -> None:
    """Say whether the model's chat template renders the prompts: as in TRL that of messages, not that of texts."""
    texts = bool(rows) and all(isinstance(row.get("prompt"), str) for row in rows)
    if texts and "env.file" not in draft.settings:
        draft.set("data.apply_chat_template", False, "TRL takes prompts that are texts as they are")
        return
    draft.set("data.apply_chat_template", True)
    if not rows and "env.file" not in draft.settings:
        draft.differs(
            "The rows are not here to be looked at, and TRL takes prompts that are texts as they are: set"
            " data.apply_chat_template = false if the column `prompt` holds texts. It is true, for messages."
        )


def _method_of_rloo(draft: Draft, trl: TrlArguments) -> None:
    """Estimator, loss and KL of RLOOTrainer: each response is one action, and KL is a part of its reward."""
    draft.set("algo.advantage.estimator", "rloo")
    draft.set("actor.policy_loss_type", "ppo")
    draft.set("actor.loss_agg_mode", "seq-mean-token-sum-norm", "the sum over the tokens of a response")
    draft.set("actor.loss_agg_constant", 1.0)
    low = float(trl("epsilon"))
    draft.set("actor.eps_clip_low_high", [low, float(trl("epsilon_high") or low)])
    if int(trl("num_iterations")) > 1 or "train.batch_size" in draft.settings:
        draft.differs("RLOOTrainer clips the ratio of a whole response; that of each token is clipped here.")
    if float(trl("beta")):
        draft.set("algo.kl.init_coef", float(trl("beta")), "RLOOTrainer has it in the reward")
        draft.set("algo.kl.estimator", "k1")
        draft.differs(
            f"beta={trl('beta')}: RLOOTrainer takes the KL of a whole response off its reward, before responses are"
            " compared. Here, as in OpenRLHF, rewards are compared first, and a token then has the KL of itself and of"
            " those behind it."
        )
    if clip := trl("reward_clip_range"):
        draft.set("reward.clip_range", list(clip) if isinstance(clip, list | tuple) else clip)
    if trl("normalize_advantages"):
        draft.differs("normalize_advantages=True: advantages of RLOO are not scaled by those of the batch here.")


def _method_of_grpo(draft: Draft, trl: TrlArguments) -> None:
    """Estimator, loss and KL."""
    scale, loss = trl("scale_rewards"), str(trl("loss_type"))
    draft.set("algo.advantage.estimator", "group_norm")
    if scale in (False, "none", "False"):
        draft.set("algo.advantage.no_std_norm", True, "scale_rewards")
    elif scale == "batch":
        draft.differs("scale_rewards='batch': rewards are scaled within a group here.")
    sequence = trl("importance_sampling_level") == "sequence"
    if sequence and loss != "grpo":
        draft.differs(
            f"loss_type={loss!r} with importance_sampling_level='sequence': GSPO's mean over responses here, of each"
            " one's mean over its tokens."
        )
    elif loss not in LOSSES:
        draft.differs(f"loss_type={loss!r}: PPO's clipped loss with token-mean here.")
    if sequence:
        draft.set("actor.policy_loss_type", "gspo")
    else:
        draft.set("actor.policy_loss_type", "cispo" if loss == "cispo" else "ppo")
        draft.set("actor.loss_agg_mode", LOSSES.get(loss, "token-mean"), f"loss_type {loss}")
    low = float(trl("epsilon"))
    draft.set("actor.eps_clip_low_high", [low, float(trl("epsilon_high") or low)])
    say_wide_clip(draft)
    if float(trl("beta") or 0):
        draft.set("algo.kl.init_coef", float(trl("beta")))
        draft.set("algo.kl.use_loss", True)
        draft.set("algo.kl.estimator", "k3")
        draft.set("algo.kl.unbiased_gradient", bool(trl("use_bias_correction_kl")))
    _set_correction(draft, trl)


def _set_correction(draft: Draft, trl: TrlArguments) -> None:
    """Set the correction for the difference between vLLM and learner, which TRL has with use_vllm alone."""
    names = [f"vllm_importance_sampling_{name}" for name in ("correction", "mode", "cap")]
    corrects, mode, cap = map(trl, names)
    if not trl("use_vllm"):
        return
    if not corrects:
        draft.set("actor.pi_old", "learner", "vllm_importance_sampling_correction=False: vLLM's log-probs are not used")
        return
    loss = draft.settings["actor.policy_loss_type"]
    if not POLICY_LOSSES[loss].is_corrected or mode not in CORRECTIONS:
        draft.differs(f"vllm_importance_sampling_mode={mode!r}: left out, {loss} weighs no token so.")
        return
    level, ours = CORRECTIONS[mode]
    draft.set("algo.advantage.is_correction_level", level, "vllm_importance_sampling_mode")
    draft.set("algo.advantage.is_correction_mode", ours)
    draft.set("algo.advantage.is_correction_threshold", [max(1.0, float(cap))])
    if mode.startswith("sequence"):
        compared = "the geometric mean of them is compared" if level == "seq" else "each token's is clipped"
        draft.differs(
            f"vllm_importance_sampling_mode={mode!r}: TRL compares the product of a response's ratios with {cap:g}, and"
            f" weighs its tokens by it; here {compared}, and a token has its own as weight."
        )
