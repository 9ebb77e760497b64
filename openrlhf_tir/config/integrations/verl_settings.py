"""The settings of a verl command line: its overrides, over a YAML file that it names, over verl's defaults.

    --config-name FILE.yaml -+
                             +-> values by verl's dotted names -> VerlSettings
    overrides ---------------+

Values that cannot be read (what only a run can tell, a text where verl has a number) are left at verl's default, each
with a sentence.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .bash_script import readable, unknowns
from .recipe_draft import Draft
from .shared_settings import existing_path, say_no_file, yaml_table
from .verl_overrides import Overrides, flat
from .verl_references import resolved

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
OPTIMISER = "actor_rollout_ref.actor.optim"
CORRECTION = "algorithm.rollout_correction"
ROLLOUT = "actor_rollout_ref.rollout"
DEFAULTS: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.kl_ctrl.horizon": 10000,
    "algorithm.kl_ctrl.target_kl": 0.1,
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
    "algorithm.rollout_correction.bypass_mode": False,
    "algorithm.rollout_correction.loss_type": "ppo_clip",
    "algorithm.rollout_is": False,
    "algorithm.rollout_is_level": "token",
    "algorithm.rollout_is_mode": "truncate",
    "async_training.use_rollout_log_probs": True,
    "async_training.compute_prox_log_prob": False,
    "data.train_files": None,
    "data.val_files": None,
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.prompt_key": "prompt",
    "data.shuffle": True,
    "actor_rollout_ref.model.path": None,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.lora_rank": 0,
    "actor_rollout_ref.model.lora_alpha": 16,
    "actor_rollout_ref.model.target_modules": "all-linear",
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.weight_decay": 0.01,
    "actor_rollout_ref.actor.optim.betas": [0.9, 0.999],
    "actor_rollout_ref.actor.optim.lr_warmup_steps": -1,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant",
    "actor_rollout_ref.actor.optim.min_lr_ratio": 0.0,
    "actor_rollout_ref.actor.fsdp_config.dtype": "bfloat16",
    "actor_rollout_ref.actor.tis_imp_ratio_cap": -1,
    "actor_rollout_ref.actor.grad_clip": 1.0,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.actor.clip_ratio": 0.2,
    "actor_rollout_ref.actor.clip_ratio_c": 3.0,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.top_p": 1.0,
    "actor_rollout_ref.rollout.top_k": -1,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.5,
    "actor_rollout_ref.rollout.dtype": "bfloat16",
    "actor_rollout_ref.rollout.multi_turn.format": "hermes",
    "actor_rollout_ref.rollout.multi_turn.max_parallel_calls": 1,
    "actor_rollout_ref.rollout.multi_turn.max_tool_response_length": 256,
    "actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side": "middle",
    "actor_rollout_ref.rollout.val_kwargs.n": 1,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0,
    "actor_rollout_ref.rollout.val_kwargs.top_p": 1.0,
    "critic.optim.lr": 1e-5,
    "critic.optim.betas": [0.9, 0.999],
    "critic.optim.lr_warmup_steps": -1,
    "critic.optim.lr_warmup_steps_ratio": 0.0,
    "critic.optim.lr_scheduler_type": "constant",
    "critic.optim.min_lr_ratio": 0.0,
    "critic.cliprange_value": 0.5,
    "critic.grad_clip": 1.0,
    "critic.optim.weight_decay": 0.01,
    "reward_model.enable": False,
    "custom_reward_function.path": None,
    "custom_reward_function.name": "compute_score",
    "trainer.total_epochs": 30,
    "trainer.total_training_steps": None,
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
    "trainer.logger": ["console", "wandb"],
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.critic_warmup": 0,
}
"""The defaults in verl's ppo_trainer.yaml of the overrides that are read here."""
RENAMED = {
    "reward_model.overlong_buffer": "reward_model.reward_kwargs.overlong_buffer_cfg",  # DAPO's recipe
    "reward.custom_reward_function": "custom_reward_function",  # verl 0.7 on
    "reward.reward_manager.name": "reward_model.reward_manager",
    "reward.reward_model.model_path": "reward_model.model.path",
    "reward.reward_kwargs": "reward_model.reward_kwargs",
    "reward.reward_model": "reward_model",
    "reward.sandbox_fusion": "reward_model.sandbox_fusion",
    "reward.num_workers": "reward_model.num_workers",
    "algorithm.rollout_correction.bypass_old_logprob_for_rollout": "algorithm.rollout_correction.bypass_mode",
}
"""What other versions and recipes of verl call an override, or all below a name -> its name here."""


def dotted_names(tails: Mapping[str, str]) -> tuple[str, ...]:
    """Return full names of overrides, given as prefix -> what stands behind it, between blanks."""
    return tuple(f"{prefix}.{name}" for prefix, names in tails.items() for name in names.split())


NUMBERS = {
    *(name for name, value in DEFAULTS.items() if isinstance(value, int | float) and not isinstance(value, bool)),
    *dotted_names(
        {
            ACTOR: (
                "clip_ratio_low clip_ratio_high loss_scale_factor ppo_micro_batch_size_per_gpu optim.min_lr"
                " optim.clip_grad ulysses_sequence_parallel_size"
            ),
            ROLLOUT: (
                "max_num_seqs max_model_len max_num_batched_tokens val_kwargs.top_k log_prob_max_token_len_per_gpu"
                " log_prob_micro_batch_size_per_gpu multi_turn.max_assistant_turns multi_turn.max_user_turns"
                " prompt_length response_length"
            ),
            MODEL: "lora.rank lora.alpha",
            "critic": "ppo_epochs ppo_mini_batch_size optim.min_lr optim.clip_grad",
            "data": "seed train_max_samples val_max_samples",
            "trainer": "total_training_steps max_actor_ckpt_to_keep",
            "rollout": "nnodes n_gpus_per_node",
            "reward_model.reward_kwargs": "max_resp_len overlong_buffer_cfg.len overlong_buffer_cfg.penalty_factor",
            "algorithm": "rollout_is_threshold rollout_is_threshold_lower",
            "async_training": "require_batches",
        }
    ),
}
"""The overrides that are numbers: those with a default that is one, and those without a default."""
FROM_ONE_ON = frozenset(
    dotted_names(
        {
            ACTOR: "ppo_mini_batch_size ppo_epochs",
            ROLLOUT: "n tensor_model_parallel_size val_kwargs.n",
            "data": "max_prompt_length max_response_length",
            "trainer": "nnodes n_gpus_per_node total_epochs",
        }
    )
)
"""The overrides that count something of which there is one at least."""
LISTS_OF_NUMBERS = (f"{OPTIMISER}.betas", "critic.optim.betas")
OWN_CONFIGS = ("ppo_trainer", "ppo_megatron_trainer")
"""verl's own configurations: what they say is in DEFAULTS."""


@dataclass
class VerlSettings:
    """verl's settings. It remembers which were read, so that no override is dropped without a word.

    Attributes:
        given: What the command gives, by verl's dotted names.
        directories: Where relative paths may begin, the likeliest first.
        _read: The names that were read.
    """

    given: Mapping[str, Any]
    directories: Sequence[Path]
    _read: set[str] = field(default_factory=set)

    def __call__(self, name: str) -> Any:
        """Return a setting's value: the command's, else verl's default."""
        self._read.add(name)
        return self.given.get(name, DEFAULTS.get(name))

    def gives(self, name: str) -> bool:
        """Return True if the command gives a setting."""
        self._read.add(name)
        return name in self.given

    def below(self, prefix: str) -> dict[str, Any]:
        """Return what the command gives below a name, without that name in front."""
        start = f"{prefix}."
        found = {name: value for name, value in self.given.items() if name.startswith(start)}
        self._read |= found.keys()
        return {name.removeprefix(start): value for name, value in found.items()}

    def paths(self, name: str) -> list[str]:
        """Return the files that a setting names: absolute where they are on this machine, else as they are."""
        names = self(name)
        if not isinstance(names, list):
            names = [names] if names else []
        return [str(existing_path(str(path), self.directories) or os.path.expanduser(str(path))) for path in names]

    def files(self, name: str, draft: Draft) -> list[str]:
        """Return `paths` of a setting that names files, and say which are not on this machine."""
        paths = self.paths(name)
        for path in paths:
            if existing_path(path, self.directories) is None:
                say_no_file(draft, f"{name}={readable(path)}")
        return paths

    def unread(self) -> dict[str, Any]:
        """Return what the command gives and nothing has read."""
        return {name: value for name, value in self.given.items() if name not in self._read}


def verl_settings(overrides: Overrides, directories: Sequence[Path], draft: Draft) -> VerlSettings:
    """Return the settings of one command line.

    Args:
        overrides: Its overrides.
        directories: Where relative paths may begin, the likeliest first.
        draft: Where it is said what cannot be read.
    """
    values = {**_of_yaml_file(overrides.config, directories, draft), **overrides.values}
    values = _with_names_of_here(resolved(values, DEFAULTS, draft))
    _leave_out_unreadable(values, draft)
    for word in overrides.strange:
        draft.differs(f"{readable(word)}: not understood, left out.")
    for name in overrides.removed:
        _delete(name, values, draft)
    return VerlSettings(values, directories)


def shown(value: Any) -> str:
    """Return a value as a sentence has it."""
    return readable(str(value))


def _of_yaml_file(config: Mapping[str, str], directories: Sequence[Path], draft: Draft) -> dict[str, Any]:
    """Return the values of the YAML file that --config-path and --config-name name, if it is on this machine."""
    name = config.get("config-name", "").removesuffix(".yaml")
    directory = config.get("config-path", config.get("config-dir", ""))
    if not name or name in OWN_CONFIGS:
        return {}
    path = existing_path(os.path.join(directory, f"{name}.yaml"), directories)
    if path is None:
        draft.differs(
            f"--config-name {name}: there is no {name}.yaml in {readable(directory) or 'this directory'}, so what it"
            " sets is not in this recipe. Give its path, or its values as overrides."
        )
        return {}
    table = yaml_table(path)
    return flat({name: value for name, value in table.items() if name not in ("hydra", "defaults")})


def _with_names_of_here(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with the names of RENAMED replaced; a value that is given under the name here wins."""
    for theirs, here in RENAMED.items():
        for name in [name for name in values if f"{name}.".startswith(f"{theirs}.")]:
            values.setdefault(here + name.removeprefix(theirs), values.pop(name))
    return values


def _leave_out_unreadable(values: dict[str, Any], draft: Draft) -> None:
    """Remove values that only a run can tell, and those that verl could not use: a text where it has a number."""
    for name, value in [*values.items()]:
        if unknowns(str(value)):
            draft.differs(f"{name}={shown(value)}: only a run can tell that value. Left at verl's default.")
            del values[name]
    for name, value in [*values.items()]:
        fault = _fault_of(name, value)
        if fault:
            draft.differs(f"{name}={shown(value)} {fault}: left at verl's default.")
        if fault or (value is None and name in NUMBERS):
            del values[name]


def _fault_of(name: str, value: Any) -> str:
    """Return why verl could not use a value that a command gives, "" where it could."""
    if value is None:  # of a switch it is as good as false
        default = DEFAULTS.get(name)
        return "" if default is None or isinstance(default, bool) else "stands where verl has a value"
    if name in NUMBERS and not _is_number(value):
        return "is no number"
    if name in LISTS_OF_NUMBERS and not (isinstance(value, list) and all(map(_is_number, value))):
        return "is no list of numbers"
    if name in FROM_ONE_ON and (value < 1 or value != int(value)):
        return "is no whole number from 1 on"
    if isinstance(DEFAULTS.get(name), bool) and isinstance(value, str):
        return "is neither true nor false"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _delete(name: str, values: dict[str, Any], draft: Draft) -> None:
    """Do what Hydra does with `~name`: remove a setting, or all below a name."""
    deleted = [other for other in values if f"{other}.".startswith(f"{name}.")]
    for other in deleted:
        del values[other]
    what = "what the script says of it" if deleted else "a setting of verl's own configuration"
    draft.differs(f"~{readable(name)} deletes {what}: nothing is set here for it.")
