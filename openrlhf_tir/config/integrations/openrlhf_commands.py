"""OpenRLHF's programs among the commands of a script: which are recipes here, and which remain OpenRLHF's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from .bash_script import Command, readable

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
_PROCESSES = ("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--num_processes")


_INCLUDED = ("--include", "-i")
"""deepspeed's flags for nodes and GPUs: localhost:0,1 or worker-0@worker-1:0,2."""


@dataclass(frozen=True)
class Call:
    """A command that starts one of OpenRLHF's programs."""

    program: str
    launcher: tuple[str, ...]
    """The words up to the program, itself included."""
    words: tuple[str, ...]
    """Its flags."""
    line: int

    @property
    def gpus(self) -> int | None:
        """The number of processes per node that the launcher was told; None if it was told none."""
        for i, word in enumerate(self.launcher):
            name, equals, value = word.partition("=")
            text = value if equals else next(iter(self.launcher[i + 1 : i + 2]), "")
            if name in _PROCESSES:
                return int(text) if text.isdecimal() else None
            if name in _INCLUDED:
                return _slots_of_a_node(text)
        return None

    @property
    def text(self) -> str:
        """The command as a shell takes it."""
        return shlex.join(readable(word) for word in (*self.launcher, *self.words))

    @property
    def is_own(self) -> bool:
        """Return True for a program of the user's own, a module that is not OpenRLHF's."""
        word = next(iter(self.launcher[-1:]), "")
        return _OTHER_MODULE.fullmatch(word) is not None and _MODULE.fullmatch(word) is None

    @property
    def sentence(self) -> str:
        """Why a command has no recipe, with the command that does the work; empty where it has one."""
        if self.program in RECIPES:
            return ""
        if self.program in OTHERS:
            return f"{OTHERS[self.program]}."
        why = PROGRAMS.get(self.program, f"this project has nothing like openrlhf.cli.{self.program}")
        return f"{why}. It remains OpenRLHF's: {self.text}"


def _slots_of_a_node(text: str) -> int | None:
    """Return how many GPUs of each node deepspeed's --include names; None where nodes have different numbers, or all
    GPUs of a node are meant."""
    counts = {
        len(slots.split(",")) if slots else 0 for _, _, slots in (node.partition(":") for node in text.split("@"))
    }
    return (counts.pop() or None) if len(counts) == 1 else None


def calls_of(commands: Sequence[Command]) -> list[Call]:
    """Return the calls of OpenRLHF's programs, each once, in the order of the script."""
    calls: dict[tuple[str, ...], Call] = {}
    for command in commands:
        call = _call(command)
        if call is not None:
            calls.setdefault((call.program, *call.words), call)
    return [*calls.values()]


def _call(command: Command) -> Call | None:
    for i, word in enumerate(command.words):
        module, file = _MODULE.fullmatch(word), _FILE.fullmatch(word)
        if module is None and command.words[i - 1 : i] == ("-m",):
            module = _OTHER_MODULE.fullmatch(word)
        name = module[1] if module else file[1] if file and file[1] in PROGRAMS else None
        if word in OTHERS:
            name = word
        if name is not None:
            return Call(name, command.words[: i + 1], command.words[i + 1 :], command.line)
    return None
