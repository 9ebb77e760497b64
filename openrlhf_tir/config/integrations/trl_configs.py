"""Which of the configs that a script of TRL makes reach its trainer, or the model that this is given.

GRPOConfig(...)           through args=
LoraConfig(...)           through peft_config=, get_peft_model(model, ...), model.add_adapter(...)
BitsAndBytesConfig(...)   through a loader of the model, or anything else that is given it

What reaches neither changes nothing that is trained, and a sentence says so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .python_script.syntax import called
from .python_script.values import CONFIGS, LOADERS, SourceReader

if TYPE_CHECKING:
    from .trl_script import TrlScript

PEFT_FLAGS = {
    "use_peft": "",
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_target_modules": "target_modules",
    "lora_dropout": "lora_dropout",
}
"""Flags of TRL's ModelConfig -> the arguments of LoraConfig that they become."""
ADAPTING = ("get_peft_model", "add_adapter", "PeftModel", "PeftModelForCausalLM")
"""Calls that give a model low-rank adapters."""
OF_FLAGS = "get_peft_config"
"""TRL's function that makes a LoraConfig of PEFT_FLAGS, or None without --use_peft."""


class Reached:
    """The configs of a script that its trainer or its model is given."""

    def __init__(self, script: TrlScript, call: ast.Call, reader: SourceReader) -> None:
        """Take a script.

        Args:
            script: The script, with the arguments of its trainer.
            call: The call that makes the trainer.
            reader: The script's reader.
        """
        self.script = script
        self.reader = reader
        self.policy = script.value("model")
        self.hides_arguments = any(k.arg is None for k in call.keywords) or bool(
            re.search(r"\b__init__\b|\(of ", script.changed)
        )
        """True if the trainer may be given more than `script.arguments`: by `**table`, or by a class of its own."""

    def read(self) -> None:
        """Read the arguments of the trainer's config, those of LoRA, and whether the model is loaded in 4 or 8 bits."""
        for name in ("args", "peft_config"):
            chosen = self.reader.chosen(self.script.arguments.get(name))
            if isinstance(chosen, ast.Constant) and chosen.value is None:
                del self.script.arguments[name]
        for call in self._taken(self.reader.kinds(CONFIGS), self._given("args")):
            self.script.config |= self.reader.keywords(call)
        self._read_adapters()
        self.script.quantised = any(map(self._quantises, self.reader.calls()))

    def _read_adapters(self) -> None:
        script, reader = self.script, self.reader
        takers = self._given("peft_config")
        for call in (call for call in reader.calls() if called(call) in ADAPTING and self._is_of_policy(call)):
            takers.append([*call.args, *(keyword.value for keyword in call.keywords)])
            values = reader.keywords(call)  # Unsloth's get_peft_model(model, r=16)
            script.lora |= {name: values[name] for name in PEFT_FLAGS.values() if name in values}
            script.lora.setdefault("r", 8)
        by_flags = [taker for taker in takers if any(map(self._is_of_flags, taker))]
        for call in self._taken(["LoraConfig"], [taker for taker in takers if taker not in by_flags]):
            script.lora |= {"r": 8, **reader.keywords(call)}
        if not reader.flags.get("use_peft"):
            if by_flags:
                script.arguments.pop("peft_config", None)
        elif by_flags or self.hides_arguments:
            script.lora |= {PEFT_FLAGS[name]: value for name, value in reader.flags.items() if PEFT_FLAGS.get(name)}
            script.lora.setdefault("r", 16)
            script.lora.setdefault("lora_alpha", 32)
        else:
            reader.notes.append(f"--use_peft: the script gives no {OF_FLAGS}(...) to {script.trainer}; left out.")

    def _given(self, name: str) -> list[list[ast.expr]]:
        """Return the expression of one of the trainer's arguments, as the one that is taken; [] where it has none."""
        return [[self.script.arguments[name]]] if name in self.script.arguments else []

    def _taken(self, classes: Sequence[str] | dict[str, str], takers: Sequence[Sequence[ast.expr]]) -> list[ast.Call]:
        """Return the calls that make what the trainer or its model is given, and say which others there are.

        Args:
            classes: What the calls make.
            takers: The arguments of the trainer, and of calls that change the model, in which it would stand.
        """
        made = [call for call in self.reader.calls() if called(call) in classes]
        # Where reading does not tell what is given, it may be anything that the script does not drop.
        possible = [call for call in made if not self.reader.is_dropped(call)]
        taken = [] if takers or not self.hides_arguments else possible
        for taker in takers:
            chosen = [self.reader.chosen(node) for node in taker]
            known = [call for call in made if any(call is node for node in chosen)]
            taken += known or possible
        for call in made:
            if call not in taken:
                self.reader.notes.append(
                    f"line {call.lineno}: {called(call)}(...) reaches neither {self.script.trainer} nor its model; left"
                    " out."
                )
        return taken

    def _quantises(self, call: ast.Call) -> bool:
        """Return True for a call that loads the trainer's model in 4 or 8 bits."""
        if called(call) not in (*LOADERS, "BitsAndBytesConfig"):
            return False
        loaded = self.reader.keywords(call)
        if loaded.get("load_in_4bit") is not True and loaded.get("load_in_8bit") is not True:
            return False
        loaders = [other for other in self.reader.calls() if called(other) in LOADERS]
        given = [
            loader
            for loader in loaders
            if loader is call or any(self.reader.chosen(keyword.value) is call for keyword in loader.keywords)
        ]
        return any(map(self._is_of_policy, given)) if given else not self.reader.is_dropped(call)

    def _is_of_policy(self, call: ast.Call) -> bool:
        """Return False for a call that is known to load, or to change, another model than the trainer's."""
        model: ast.expr | None = call
        if called(call) in ADAPTING:
            named = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "model")]
            model = next(iter(named), None)
            if called(call) == "add_adapter" and isinstance(call.func, ast.Attribute):
                model = call.func.value
        name = None if model is None else self.reader.value(model)
        return not isinstance(name, str) or not isinstance(self.policy, str) or name == self.policy

    def _is_of_flags(self, node: ast.expr) -> bool:
        """Return True for an expression that makes adapters of the flags of the command."""
        return OF_FLAGS in self.reader.source(node) and not self.reader.is_defined(OF_FLAGS)
