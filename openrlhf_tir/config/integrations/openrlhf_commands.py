"""OpenRLHF's programs among the commands of a script: which are recipes here, and which remain OpenRLHF's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from .bash_script import Command, readable
from .script_call import Call

PROGRAMS = {
    "train_ppo_ray": "",
    "train_ppo": "",
    "train_sft": "",
    "train_dpo": "preference training (DPO, IPO, cDPO) is not part of this project",
    "train_rm": (
        "training a reward model is not part of this project; what it makes is loaded by reward.model_name_or_path"
    ),
    "train_kto": "KTO is not part of this project, and OpenRLHF 0.11.2 has dropped it too",
    "train_kd": "knowledge distillation is not part of this project, and OpenRLHF 0.11.2 has dropped it too",
    "train_prm": "process reward models are not part of this project, and OpenRLHF 0.11.2 has dropped them too",
    "batch_inference": (
        "scoring and sampling in batches is OpenRLHF's (0.11.2 has dropped it); `openrlhf-tir eval` samples, and"
        " `openrlhf-tir distill` makes rows of what a run kept"
    ),
    "interactive_chat": "chatting is not part of this project; `openrlhf-tir serve` gives a model an OpenAI API",
    "lora_combiner": "a run here exports merged weights and the adapter beside them",
    "serve_rm": 'the reward server stays as it is; a run asks it with reward.remote_url = "http://HOST:PORT/get_reward"',
}
"""OpenRLHF's programs -> why there is no recipe, empty where there is one."""
RECIPES = tuple(name for name, why in PROGRAMS.items() if not why)
OTHERS = {
    "deepspeed.checkpoint.ds_to_universal": (
        "converting a checkpoint is not needed here: one of ZeRO-3 is resumed on any number of ranks as it is"
    ),
}
"""Programs of others that OpenRLHF's scripts call."""
_MODULE = re.compile(r"openrlhf\.cli\.(\w+)")
_OTHER_MODULE = re.compile(r"[\w.]+\.(train_ppo_ray|train_sft)")
"""A program of the user's own around one of OpenRLHF's, which takes its flags."""
_FILE = re.compile(r"(?:.*/)?(\w+)\.py")


def calls_of(commands: Sequence[Command]) -> list[Call]:
    """Return the calls of OpenRLHF's programs, each once, in the order of the script."""
    calls: dict[tuple[str, ...], Call] = {}
    for command in commands:
        call = _call(command)
        if call is not None:
            calls.setdefault((call.program, *call.words), call)
    return [*calls.values()]


def is_own(call: Call) -> bool:
    """Return True for a program of the user's own, a module that is not OpenRLHF's."""
    word = "".join(call.launcher[-1:])
    return _OTHER_MODULE.fullmatch(word) is not None and _MODULE.fullmatch(word) is None


def _call(command: Command) -> Call | None:
    for i, word in enumerate(command.words):
        module, file = _MODULE.fullmatch(word), _FILE.fullmatch(word)
        if module is None and command.words[i - 1 : i] == ("-m",):
            module = _OTHER_MODULE.fullmatch(word)
        name = None
        if word in OTHERS:
            name = word
        elif module:
            name = module[1]
        elif file and file[1] in PROGRAMS:
            name = file[1]
        if name is not None:
            launcher, words = command.words[: i + 1], command.words[i + 1 :]
            return Call(name, launcher, words, command.line, _sentence(name, command))
    return None


def _sentence(program: str, command: Command) -> str:
    """Return why a program has no recipe, with the command that does the work; "" where it has one."""
    if program in RECIPES:
        return ""
    if program in OTHERS:
        return f"{OTHERS[program]}."
    why = PROGRAMS.get(program, f"this project has nothing like openrlhf.cli.{program}")
    return f"{why}. It remains OpenRLHF's: {shlex.join(map(readable, command.words))}"
