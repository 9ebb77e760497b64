"""A script of TRL, read and not run: the arguments of its trainer, and the functions that it gives to it.

GRPOConfig(learning_rate=1e-6, ...)                   -> values by name
GRPOTrainer(model=, reward_funcs=[f, g], tools=[h])   -> names, and the code that these functions need
words behind the script, --num_generations 8          -> win over the values, as TrlParser reads them
--config FILE.yaml                                    -> the same, below the words
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...errors import ConfigError
from .bash_script import unknowns
from .python_script.function_names import function_names
from .python_script.syntax import called
from .python_script.values import UNKNOWN, SourceReader, literal
from .shared_settings import existing_path, table_of_yaml, written_text, yaml_table
from .trl_configs import PEFT_FLAGS, Reached

TRAINERS = ("GRPOTrainer", "RLOOTrainer", "SFTTrainer", "AsyncGRPOTrainer")
POSITIONS = {
    "SFTTrainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
}
"""Trainer -> its arguments by position; "" are the others."""
COMMAND_LINE = """
from trl import {kind}Config, {kind}Trainer

{kind}Trainer(
    model=model_args.model_name_or_path,{rewards}
    args={kind}Config(),
    train_dataset=load_dataset(script_args.dataset_name),
    peft_config=get_peft_config(model_args),
)
"""
"""What `trl grpo --flags` and its like run, as far as it is read here."""
NO_FILES: Mapping[str, str] = MappingProxyType({})
CALLED_NO = ("no_cuda",)
"""An argument of transformers whose own name begins so."""
COMMANDS = {"grpo": "GRPO", "rloo": "RLOO", "sft": "SFT"}
"""Commands of TRL that start a trainer -> the first part of the trainer's name."""


def text_of_command(command: str) -> str:
    """Return the script that a command of TRL's stands for."""
    rewards = "" if command == "sft" else "\n    reward_funcs=script_args.reward_funcs,"
    return COMMAND_LINE.format(kind=COMMANDS[command], rewards=rewards)


@dataclass
class TrlScript:
    """What a script of TRL would do, as far as reading tells."""

    trainer: str
    line: int
    arguments: dict[str, ast.expr]
    """The arguments of the trainer, by name."""
    reader: SourceReader
    config: dict[str, Any] = field(default_factory=dict)
    """The arguments of its config; UNKNOWN where only a run can tell."""
    lora: dict[str, Any] = field(default_factory=dict)
    changed: str = ""
    """The script's own subclass of the trainer with the methods that it overrides; empty where there is none."""
    others: tuple[str, ...] = ()
    """Other trainers that the script makes, each with its line."""
    quantised: bool = False
    """Whether the model is loaded in 4 or 8 bits."""
    directories: tuple[Path, ...] = ()
    """Where relative paths may begin, the likeliest first."""

    @property
    def notes(self) -> list[str]:
        """What reading the script could not tell for certain, each sentence once."""
        return [*dict.fromkeys(self.reader.notes)]

    def path_of(self, name: str) -> str:
        """Return the absolute path of a file or directory that the script names, or the name where there is none."""
        return str(existing_path(name, self.directories) or name) if name else name

    def value(self, name: str) -> Any:
        """Return the value of one of the trainer's arguments; None where it is not given."""
        node = self.arguments.get(name)
        return None if node is None else self.reader.value(node)

    def names(self, name: str) -> list[str]:
        """Return the names of functions in an argument: one, or a list of them. What is no name is its source."""
        node = self.arguments.get(name)
        return [] if node is None else function_names(self.reader, node)

    def source(self, name: str) -> str:
        """Return the source of an argument."""
        return ast.unparse(self.arguments[name]) if name in self.arguments else ""


def read_trl_script(path: Path, words: Sequence[str], files: Mapping[str, str] = NO_FILES) -> TrlScript:
    """Return what a script's trainer is given; the arguments are those of `read_trl_text`.

    Raises:
        ConfigError: The file cannot be read, is no Python, or makes no trainer of TRL's.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"The script {path} cannot be read: {e}. Give the path of a Python script.") from None
    return read_trl_text(text, path, words, files)


def read_trl_text(text: str, path: Path, words: Sequence[str], files: Mapping[str, str] = NO_FILES) -> TrlScript:
    """Return what the trainer of a script's text is given.

    Args:
        text: The script.
        path: Its file, beside which modules and files of arguments are found.
        words: The flags that it is given.
        files: The files that a bash script writes before it starts this one.

    Raises:
        ConfigError: It is no Python, or makes no trainer of TRL's.
    """
    try:
        tree = ast.parse(text, str(path))
    except SyntaxError as e:
        raise ConfigError(
            f"{path}:{e.lineno}: {e.msg}. Give a Python script that makes one of TRL's trainers."
        ) from None
    flags = dict(_flags(words))
    given = {**_config_file(flags.pop("config", None), path, files), **flags}
    reader, declared = _reader_of(tree, given, path.parent)
    trainers = reader.kinds(TRAINERS)
    call = _trainer_call(reader, trainers, path)
    trainer = trainers[called(call)]
    arguments = reader.arguments(call, POSITIONS.get(trainer, POSITIONS[""]))
    for spread in (keyword.value for keyword in call.keywords if keyword.arg is None):
        reader.notes.append(
            f"line {call.lineno}: {called(call)}(**{ast.unparse(spread)}): not all that it holds is"
            " taken over. Write it as arguments of the trainer, or correct the recipe."
        )
    script = TrlScript(trainer, call.lineno, arguments, reader, directories=(Path.cwd(), path.parent))
    script.changed = reader.overrides(called(call))
    script.others = tuple(
        f"{called(other)} in line {other.lineno}" for other in reader.calls() if other is not call and _trains(other)
    )
    reached = Reached(script, call, reader)
    reached.read()
    # What the script declares itself, by argparse or a dataclass, is read where the script uses it.
    later = reader.set_later(arguments.get("args")) if "args" in arguments or reached.hides_arguments else {}
    script.config |= {name: value for name, value in later.items() if name not in declared}
    script.config |= {name: value for name, value in given.items() if name not in PEFT_FLAGS and name not in declared}
    return script


def _reader_of(tree: ast.Module, given: dict[str, Any], directory: Path) -> tuple[SourceReader, Collection[str]]:
    """Return a reader that knows the script's arguments, and the names of those that the script declares itself.

    Args:
        tree: The script.
        given: The values that the command gives to arguments; one word behind the flag of a list becomes a list of one.
        directory: Where modules beside the script are found.
    """
    reader = SourceReader(tree, given, directory)
    declared: dict[str, Any] = {}
    for module_tree in reversed(reader.trees()):
        declared |= _declared(module_tree)
        lists = _lists(module_tree)
        given |= {name: [value] for name, value in given.items() if name in lists and not isinstance(value, list)}
    for name in [name for name, value in given.items() if value is True and name not in (*declared, *CALLED_NO)]:
        if name.startswith("no_"):  # HfArgumentParser's switch for what is on by default
            del given[name]
            given.setdefault(name.removeprefix("no_"), False)
    reader.flags = {**declared, **given}
    # `if args.lr is None: args.lr = 2e-5`
    reader.flags |= {name: value for name, value in reader.set_later().items() if name in declared}
    return reader, declared.keys()


def _trainer_call(reader: SourceReader, trainers: Mapping[str, str], path: Path) -> ast.Call:
    """Return the last call that makes a trainer.

    Args:
        reader: The script.
        trainers: Classes that are trainers -> TRL's trainer that they are or come from.
        path: The script's file.

    Raises:
        ConfigError: There is none.
    """
    calls = [c for c in reader.calls() if called(c) in trainers and _makes_trainer(c, trainers[called(c)], reader)]
    if calls:
        return calls[-1]
    others = sorted({called(c) for c in reader.calls() if called(c).endswith("Trainer")})
    remains = f" It makes a {others[0]}, which remains TRL's: python {path}." if others else ""
    raise ConfigError(
        f"{path} makes none of TRL's trainers that have a counterpart here ({', '.join(TRAINERS)}).{remains} Its"
        " reward functions and tools can be named all the same: docs/coming_from_trl.md."
    )


def _makes_trainer(call: ast.Call, trainer: str, reader: SourceReader) -> bool:
    """Return True for a call that makes a trainer.

    A class from elsewhere that is called like one of TRL's may have other arguments, and GRPOTrainerCallback(x), which
    only has the name in its own, is no trainer at all.

    Args:
        call: A call of TRL's trainer, or of something that `SourceReader.kinds` takes for one.
        trainer: The trainer of TRL's that it is taken for.
        reader: The script.
    """
    name = called(call)
    if name == trainer or any(k.arg in ("train_dataset", "reward_funcs") for k in call.keywords):
        return True
    is_trainer = name.endswith(trainer) or reader.is_defined(name)
    return is_trainer and (bool(call.args) or any(k.arg is None for k in call.keywords))


def _trains(call: ast.Call) -> bool:
    """Return True for a call that makes a trainer."""
    return called(call).endswith("Trainer") and isinstance(call.func, ast.Name)


def _config_file(name: Any, script: Path, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments in the YAML file of --config, which TrlParser reads.

    Raises:
        ConfigError: There is no such file, it cannot be read, or it is no table.
    """
    if not isinstance(name, str):
        return {}
    path = existing_path(name, (Path(), script.parent))
    text = written_text(name, files)
    if text is not None:
        table = table_of_yaml(text, name)
    elif path is not None:
        table = yaml_table(path)
    else:
        raise ConfigError(f"--config {name}: there is no such file. Give the path of the script's YAML file.")
    if not table:
        raise ConfigError(f"--config {name} holds no arguments by name. Give the path of the script's YAML file.")
    return table


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """`--name value`, as HfArgumentParser reads them; a flag without a value is true."""
    i = 0
    while i < len(words):
        name, equals, value = words[i].removeprefix("--").partition("=")
        name = name.replace("-", "_")
        values = [value] if equals else []
        i += 1
        while not equals and i < len(words) and not words[i].startswith("--"):
            values.append(words[i])
            i += 1
        read = [_literal(v) for v in values]
        if not read:
            yield name, True
        else:
            yield name, read[0] if len(read) == 1 else read


def _declared(tree: ast.Module) -> dict[str, Any]:
    """Return the arguments that a script declares itself, with their defaults: `parser.add_argument("--lr", default=1)`
    and the fields of its dataclasses."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) == "add_argument":
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            keywords = {k.arg: literal(k.value) for k in node.keywords if k.arg}
            long = next((name for name in names if name.startswith("--")), names[0] if names else "")
            name = str(keywords.get("dest") or long.lstrip("-").replace("-", "_"))
            required = not long.startswith("-") or keywords.get("required") not in (None, False)
            without = {"store_true": False, "store_false": True}.get(str(keywords.get("action")))
            if name:
                found[name] = UNKNOWN if required else keywords.get("default", without)
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            for member in node.body:
                if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    found[member.target.id] = _default_of(member.value)
    return found


def _lists(tree: ast.Module) -> set[str]:
    """Return the arguments of a script's dataclasses that are lists: one word behind their flag is a list of one."""
    return {
        member.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
        if re.match(r"(Optional\[)?list\[", ast.unparse(member.annotation), re.IGNORECASE)
    }


def _default_of(node: ast.expr | None) -> Any:
    """Return the default of a dataclass's field: a literal, or what field(default=...) or its factory gives."""
    if isinstance(node, ast.Call) and called(node) == "field":
        for keyword in node.keywords:
            if keyword.arg == "default":
                return literal(keyword.value)
            if keyword.arg == "default_factory" and isinstance(keyword.value, ast.Lambda):
                return literal(keyword.value.body)
        return UNKNOWN
    return UNKNOWN if node is None else literal(node)


def _literal(text: str) -> Any:
    """Return the value of a word of a command, UNKNOWN where only a run can tell it."""
    if unknowns(text):
        return UNKNOWN
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    with suppress(ValueError):
        return json.loads(text) if text.startswith(("{", "[")) else text  # {"enable_thinking": false}
    return text
