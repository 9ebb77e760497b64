"""A script of TRL, read and not run: the arguments of its trainer, and the functions that it gives to it.

GRPOConfig(learning_rate=1e-6, ...)                   -> values by name
GRPOTrainer(model=, reward_funcs=[f, g], tools=[h])   -> names, and the code that these functions need
words behind the script, --num_generations 8          -> win over the values, as TrlParser reads them
--config FILE.yaml                                    -> the same, below the words
"""

from __future__ import annotations

import ast
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError

TRAINERS = ("GRPOTrainer", "RLOOTrainer", "SFTTrainer", "AsyncGRPOTrainer")
CONFIGS = ("GRPOConfig", "RLOOConfig", "SFTConfig", "AsyncGRPOConfig")
UNKNOWN = object()
"""The value of an expression that only a run can tell."""
PEFT_FLAGS = {
    "use_peft": "",
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_target_modules": "target_modules",
    "lora_dropout": "lora_dropout",
}
"""Flags of TRL's ModelConfig -> the arguments of LoraConfig that they become."""
LOADERS = ("from_pretrained", "from_config", "get_peft_model", "prepare_model_for_kbit_training")
"""Functions whose first argument is a model or a tokenizer, or its name."""
MODEL_KEYWORDS = ("model_name", "pretrained_model_name_or_path", "model_name_or_path", "model")
"""What a loader calls its first argument."""
POSITIONS = {
    "SFTTrainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
}
"""Trainer -> its arguments by position; "" are the others."""
LEFT_OUT = ("trl", "accelerate")
"""Packages whose names no reward function or tool needs; an import of them is not copied."""


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
COMMANDS = {"grpo": "GRPO", "rloo": "RLOO", "sft": "SFT"}
"""Commands of TRL that start a trainer -> the first part of the trainer's name."""


def text_of_command(command: str) -> str:
    """Return the script that a command of TRL's stands for."""
    rewards = "" if command == "sft" else "\n    reward_funcs=script_args.reward_funcs,"
    return COMMAND_LINE.format(kind=COMMANDS[command], rewards=rewards)


CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


@dataclass
class TrlScript:
    """What a script of TRL would do, as far as reading tells."""

    trainer: str
    line: int
    arguments: dict[str, ast.expr]
    """The arguments of the trainer, by name."""
    config: dict[str, Any] = field(default_factory=dict)
    """The arguments of its config; UNKNOWN where only a run can tell."""
    lora: dict[str, Any] = field(default_factory=dict)
    changed: str = ""
    """The script's own subclass of the trainer with the methods that it overrides; empty where there is none."""
    quantised: bool = False
    """Whether the model is loaded in 4 or 8 bits."""
    reader: _Reader | None = None
    directories: tuple[Path, ...] = ()
    """Where relative paths may begin, the likeliest first."""

    def path_of(self, name: str) -> str:
        """Return the absolute path of a file or directory that the script names, or the name where there is none."""
        paths = (directory / name for directory in self.directories)
        return next((str(path.absolute()) for path in paths if name and path.exists()), name)

    def value(self, name: str) -> Any:
        """Return the value of one of the trainer's arguments; None where it is not given."""
        node = self.arguments.get(name)
        assert self.reader is not None
        return None if node is None else self.reader.value(node)

    def names(self, name: str) -> list[str]:
        """Return the names of functions in an argument: one, or a list of them. What is no name is its source."""
        node = self.arguments.get(name)
        assert self.reader is not None
        return [] if node is None else self.reader.names(node)

    def source(self, name: str) -> str:
        """Return the source of an argument."""
        return ast.unparse(self.arguments[name]) if name in self.arguments else ""


def read_trl_script(path: Path, words: Sequence[str] = ()) -> tuple[TrlScript, str]:
    """Return what a script's trainer is given, and the script's text.

    Raises:
        ConfigError: The file cannot be read, is no Python, or makes no trainer of TRL's.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"The script {path} cannot be read: {e}. Give the path of a Python script.") from None
    return read_trl_text(text, path, words), text


def read_trl_text(text: str, path: Path, words: Sequence[str] = ()) -> TrlScript:
    """Return what the trainer of a script's text is given.

    Args:
        text: The script.
        path: Its file, beside which modules and files of arguments are found.
        words: The flags that it is given.

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
    given = {**_config_file(flags.pop("config", None), path), **flags}
    declared = _declared(tree)
    reader = _Reader(tree, {**declared, **given}, path.parent)
    trainers, configs = reader.kinds(TRAINERS), reader.kinds(CONFIGS)
    calls = [c for c in reader.calls() if _called(c) in trainers]
    if not calls:
        others = sorted({_called(c) for c in reader.calls() if _called(c).endswith("Trainer")})
        remains = f" It makes a {others[0]}, which remains TRL's: python {path}." if others else ""
        raise ConfigError(
            f"{path} makes none of TRL's trainers that have a counterpart here ({', '.join(TRAINERS)}).{remains} Its"
            " reward functions and tools can be named all the same: docs/coming_from_trl.md."
        )
    call = calls[-1]
    trainer = trainers[_called(call)]
    arguments = reader.arguments(call, POSITIONS.get(trainer, POSITIONS[""]))
    found = TrlScript(trainer, call.lineno, arguments, reader=reader, directories=(Path.cwd(), path.parent))
    found.changed = reader.overrides(_called(call))
    for made in reader.calls():
        if _called(made) in configs:
            found.config |= reader.keywords(made)
        if _called(made) == "LoraConfig":
            found.lora |= reader.keywords(made)
        if _called(made) == "get_peft_model" and not reader.has_lora_config():
            adapters = reader.keywords(made)
            found.lora |= {name: adapters[name] for name in PEFT_FLAGS.values() if name in adapters}
        if _called(made) in (*LOADERS, "BitsAndBytesConfig"):
            loaded = reader.keywords(made)
            found.quantised |= loaded.get("load_in_4bit") is True or loaded.get("load_in_8bit") is True
    found.config |= reader.set_later()
    # What the script declares itself, by argparse or a dataclass, is read where the script uses it.
    found.config |= {name: value for name, value in given.items() if name not in PEFT_FLAGS and name not in declared}
    if reader.flags.get("use_peft"):
        found.lora |= {PEFT_FLAGS[name]: value for name, value in reader.flags.items() if PEFT_FLAGS.get(name)}
        found.lora.setdefault("r", 16)
        found.lora.setdefault("lora_alpha", 32)
    elif "get_peft_config" in reader.source(arguments.get("peft_config")):
        del arguments["peft_config"]  # None without --use_peft
    return found


def _config_file(name: Any, script: Path) -> dict[str, Any]:
    """Return the arguments in the YAML file of --config, which TrlParser reads.

    Raises:
        ConfigError: The file cannot be read, or is no table.
    """
    if not isinstance(name, str):
        return {}
    import yaml

    here = next((path for path in (Path(name), script.parent / name) if path.is_file()), Path(name))
    try:
        table = yaml.safe_load(here.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e).splitlines()[0]
        raise ConfigError(
            f"--config {name} cannot be read: {reason}. Give the path of the script's YAML file."
        ) from None
    if not isinstance(table, dict):
        raise ConfigError(f"--config {name} holds no arguments by name. Give the path of the script's YAML file.")
    # YAML 1.1 takes 1e-6 for a text.
    return {str(key): _literal(value) if isinstance(value, str) else value for key, value in table.items()}


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
        yield name, True if not read else read[0] if len(read) == 1 else read


def _declared(tree: ast.Module) -> dict[str, Any]:
    """Return the arguments that a script declares itself, with their defaults: `parser.add_argument("--lr", default=1)`
    and the fields of its dataclasses."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "add_argument":
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            keywords = {k.arg: _constant(k.value) for k in node.keywords if k.arg}
            long = next((name for name in names if name.startswith("--")), names[0] if names else "")
            name = str(keywords.get("dest") or long.lstrip("-").replace("-", "_"))
            default = keywords.get(
                "default", {"store_true": False, "store_false": True}.get(str(keywords.get("action")))
            )
            if name and default is not None:
                found[name] = default
            elif name:
                found[name] = UNKNOWN
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            for member in node.body:
                if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    found[member.target.id] = _default_of(member.value)
    return found


def _default_of(node: ast.expr | None) -> Any:
    """Return the default of a dataclass's field: a literal, or what field(default=...) or its factory gives."""
    if isinstance(node, ast.Call) and _called(node) == "field":
        for keyword in node.keywords:
            if keyword.arg == "default":
                return _constant(keyword.value)
            if keyword.arg == "default_factory" and isinstance(keyword.value, ast.Lambda):
                return _constant(keyword.value.body)
        return UNKNOWN
    return UNKNOWN if node is None else _constant(node)


def _constant(node: ast.expr) -> Any:
    """Return the value of a literal; UNKNOWN for anything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError):
        return UNKNOWN


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _called(call: ast.Call) -> str:
    """The last part of what is called: trl.GRPOTrainer is GRPOTrainer."""
    node = call.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_environ(node: ast.expr) -> bool:
    """Return True for an expression that reads a variable of the environment."""
    target = node.value if isinstance(node, ast.Subscript) else node.func if isinstance(node, ast.Call) else None
    return target is not None and ast.unparse(target) in (
        "os.environ",
        "os.environ.get",
        "os.getenv",
        "getenv",
        "environ.get",
    )


class _Named(ast.NodeTransformer):
    """Puts a constant in the place of a name."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(self.value), node) if node.id == self.name else node


class _Reader:
    """Evaluates what literals and names can tell."""

    def __init__(self, tree: ast.Module, flags: dict[str, Any], directory: Path = Path()) -> None:
        """Take a script's tree.

        Args:
            tree: The script.
            flags: The values of its arguments, by name; UNKNOWN where there is none.
            directory: Where modules beside the script are found.
        """
        self.tree = tree
        self.flags = flags
        self.directory = directory
        self.assigned: dict[str, ast.expr] = {}
        """The last value that each name is given."""
        self._values: dict[str, list[tuple[int, ast.expr]]] = {}
        """All values that each name is given, each with the last line of the statement, in the order of the lines."""
        for node in sorted((n for n in ast.walk(tree) if isinstance(n, ast.stmt)), key=lambda n: n.lineno):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], node.value, node)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value, node)

    def _assign(self, target: ast.expr, value: ast.expr, statement: ast.stmt) -> None:
        """Remember what a name is given; of `a, b = f()` the first is what a loader of models returns."""
        if isinstance(target, ast.Name):
            self.assigned[target.id] = value
            self._values.setdefault(target.id, []).append((statement.end_lineno or statement.lineno, value))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._assign(one, its, statement)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call) and _called(value) in LOADERS:
            self._assign(target.elts[0], value, statement)

    def given(self, name: ast.Name) -> ast.expr | None:
        """Return what a name holds where it is used: the last value above it, or else the last one."""
        values = self._values.get(name.id, [])
        above = [value for line, value in values if line < name.lineno]
        return above[-1] if above else values[-1][1] if values else None

    def kinds(self, bases: Sequence[str]) -> dict[str, str]:
        """Return the names of some classes of TRL's and of the script's own subclasses -> the class of TRL's."""
        kinds = {name: name for name in bases}
        classes = sorted((n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef)), key=lambda n: n.lineno)
        for made in classes:
            for base in made.bases:
                name = ast.unparse(base).rpartition(".")[2]
                if name in kinds:
                    kinds.setdefault(made.name, kinds[name])
        return kinds

    def overrides(self, name: str) -> str:
        """Return the name of one of the script's classes with its methods; empty where it is none of the script's."""
        for made in ast.walk(self.tree):
            if isinstance(made, ast.ClassDef) and made.name == name:
                methods = [m.name for m in made.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
                return f"{name} ({', '.join(methods) or 'no methods'})"
        return ""

    def has_lora_config(self) -> bool:
        """Return True if the script makes a LoraConfig."""
        return any(_called(call) == "LoraConfig" for call in self.calls())

    def arguments(self, call: ast.Call, positions: Sequence[str]) -> dict[str, ast.expr]:
        """Return the arguments of a call by name, those by position and those of `**table` included."""
        found: dict[str, ast.expr] = dict(zip(positions, call.args, strict=False))
        for keyword in call.keywords:
            if keyword.arg is not None:
                found[keyword.arg] = keyword.value
                continue
            table = self.given(keyword.value) if isinstance(keyword.value, ast.Name) else keyword.value
            if isinstance(table, ast.Dict):
                pairs = zip(table.keys, table.values, strict=True)
                found |= {str(self.value(key)): value for key, value in pairs if key is not None}
            elif isinstance(table, ast.Call) and _called(table) == "dict":
                found |= {k.arg: k.value for k in table.keywords if k.arg}
        return found

    def local_module(self, name: str) -> Path | None:
        """Return the file of a module that lies beside the script; None where there is none."""
        path = self.directory.joinpath(*name.split(".")).with_suffix(".py")
        return path if name and path.is_file() else None

    def imported(self, name: str) -> tuple[str, str] | None:
        """Return (module, name in it) of a name that the script imports; ("module", "") of a module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return node.module or "", alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return alias.name, ""
        return None

    def module_of(self, path: Path) -> _Reader | None:
        """Return a reader of a module beside the script; None for one that is no Python."""
        try:
            return _Reader(ast.parse(path.read_text(encoding="utf-8-sig")), {}, self.directory)
        except (OSError, UnicodeDecodeError, SyntaxError):
            return None

    def calls(self) -> list[ast.Call]:
        """Return all calls in the order of their lines."""
        return sorted((n for n in ast.walk(self.tree) if isinstance(n, ast.Call)), key=lambda n: n.lineno)

    def set_later(self) -> dict[str, Any]:
        """Return `training_args.x = value`, of names that hold one of TRL's configs or are called args."""
        configs = {
            name
            for name, made in self.assigned.items()
            if isinstance(made, ast.Call) and _called(made) in self.kinds(CONFIGS)
        }
        return {
            node.targets[0].attr: self.value(node.value)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Attribute)
            and isinstance(node.targets[0].value, ast.Name)
            and (node.targets[0].value.id in configs or "args" in node.targets[0].value.id)
        }

    def keywords(self, call: ast.Call) -> dict[str, Any]:
        """Return the arguments of a call by name, `**table` included where reading tells what it holds."""
        values: dict[str, Any] = {}
        for keyword in call.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                values[keyword.arg] = value
            elif isinstance(value, dict):
                values |= value
        return values

    def source(self, node: ast.expr | None) -> str:
        """Return the source of an expression, that of the last assignment where it is a name."""
        if isinstance(node, ast.Name) and node.id in self.assigned:
            node = self.assigned[node.id]
        return "" if node is None else ast.unparse(node)

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """Return an expression's value, UNKNOWN where only a run can tell."""
        if depth > 20:
            return UNKNOWN
        if isinstance(node, ast.Name) and (held := self.given(node)) is not None:
            return self.value(held, depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in self.flags:
            return self.flags[node.attr]  # model_args.model_name_or_path
        if isinstance(node, ast.IfExp):
            test = self.value(node.test, depth + 1)
            return UNKNOWN if test is UNKNOWN else self.value(node.body if test else node.orelse, depth + 1)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            operand = self.value(node.operand, depth + 1)
            return UNKNOWN if operand is UNKNOWN else not operand
        if isinstance(node, ast.BoolOp):
            return self._first_that_decides(node, depth)
        if isinstance(node, ast.Call) and _called(node) in CASTS and len(node.args) == 1:
            return self._cast(_called(node), self.value(node.args[0], depth + 1))
        if _is_environ(node):
            return self._of_environment(node, depth)
        if isinstance(node, ast.JoinedStr):
            parts = [
                self.value(part.value, depth + 1) if isinstance(part, ast.FormattedValue) else ast.literal_eval(part)
                for part in node.values
            ]
            return UNKNOWN if any(part is UNKNOWN for part in parts) else "".join(map(str, parts))
        if isinstance(node, ast.Call) and _called(node) in ("get", "getenv") and len(node.args) == 2:
            return self.value(node.args[1], depth + 1)  # os.environ.get("X", default)
        if isinstance(node, ast.Call) and _called(node) in LOADERS:
            named = [k.value for name in MODEL_KEYWORDS for k in node.keywords if k.arg == name]
            first = [*node.args[:1], *named]
            return self.value(first[0], depth + 1) if first else UNKNOWN  # the model's name, where a model is meant
        if isinstance(node, ast.Call) and _called(node) == "dict" and not node.args:
            return self.keywords(node)
        if isinstance(node, ast.List | ast.Tuple):
            values = [self.value(part, depth + 1) for part in node.elts]
            return UNKNOWN if any(v is UNKNOWN for v in values) else values
        if isinstance(node, ast.Dict):
            return self._table(node, depth)
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
            if isinstance(left, int | float) and isinstance(right, int | float):
                try:
                    return ARITHMETIC[type(node.op)](left, right)
                except ArithmeticError:
                    return UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, SyntaxError, TypeError):
            return UNKNOWN

    def _first_that_decides(self, node: ast.BoolOp, depth: int) -> Any:
        """Return the value of `a or b`, `a and b`."""
        wanted = isinstance(node.op, ast.Or)
        value: Any = UNKNOWN
        for part in node.values:
            value = self.value(part, depth + 1)
            if value is UNKNOWN or bool(value) == wanted:
                return value
        return value

    def _cast(self, kind: str, value: Any) -> Any:
        """Return int(value) and the like; UNKNOWN where that cannot be known or would fail."""
        if value is UNKNOWN:
            return UNKNOWN
        try:
            return CASTS[kind](value)
        except (ValueError, TypeError, OverflowError):
            return UNKNOWN

    def _of_environment(self, node: ast.expr, depth: int) -> Any:
        """Return os.environ["X"], os.environ.get("X", default) and os.getenv("X", default) in this environment."""
        words = [node.slice] if isinstance(node, ast.Subscript) else node.args if isinstance(node, ast.Call) else []
        values = [self.value(word, depth + 1) for word in words]
        if not values or not isinstance(values[0], str):
            return UNKNOWN
        missing = UNKNOWN if isinstance(node, ast.Subscript) else values[1] if len(values) > 1 else None
        return os.environ.get(values[0], missing)

    def _table(self, node: ast.Dict, depth: int) -> Any:
        """Return a dict whose keys are all known. A value that is not known stays UNKNOWN."""
        table: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            read = self.value(value, depth + 1)
            if key is None:  # **other
                if not isinstance(read, dict):
                    return UNKNOWN
                table |= read
                continue
            name = self.value(key, depth + 1)
            if name is UNKNOWN or isinstance(name, list | dict):
                return UNKNOWN
            table[name] = read
        return table

    def names(self, node: ast.expr) -> list[str]:
        """Return the names in a list of functions. What is no name is its source."""
        if isinstance(node, ast.Name):
            inner = self.given(node)
            if isinstance(inner, ast.List | ast.Tuple | ast.Name | ast.Subscript | ast.ListComp | ast.Attribute):
                return self.names(inner)
            return [node.id]
        if isinstance(node, ast.List | ast.Tuple):
            return [name for part in node.elts for name in self.names(part)]
        if isinstance(node, ast.Attribute) and isinstance(self.value(node), list):  # script_args.reward_funcs
            return [str(name) for name in self.value(node)]
        if isinstance(node, ast.ListComp) and (parts := self._each(node)) is not None:
            return [name for part in parts for name in self.names(part)]
        if isinstance(node, ast.Call) and _called(node) == "list" and len(node.args) == 1:
            return self.names(node.args[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            table = self._dict(node.func.value)
            if table is not None and _called(node) == "values":
                return [name for value in table.values for name in self.names(value)]
            if table is not None and _called(node) == "get" and node.args:
                return self._item(table, node.args[0], node)
        if isinstance(node, ast.Subscript) and (table := self._dict(node.value)) is not None:  # registry["accuracy"]
            return self._item(table, node.slice, node)
        return [ast.unparse(node)]

    def _dict(self, node: ast.expr) -> ast.Dict | None:
        """Return the table that an expression is, or that a name holds; None for anything else."""
        held = self.given(node) if isinstance(node, ast.Name) else node
        return held if isinstance(held, ast.Dict) else None

    def _item(self, table: ast.Dict, key: ast.expr, whole: ast.expr) -> list[str]:
        """Return the names in an item of a table; the source of the whole expression where there is no such item."""
        wanted = self.value(key)
        for name, value in zip(table.keys, table.values, strict=True):
            if name is not None and self.value(name) == wanted:
                return self.names(value)
        return [ast.unparse(whole)]

    def _each(self, node: ast.ListComp) -> list[ast.expr] | None:
        """Return what `[f(x) for x in list]` makes of each item, unevaluated; None where the list is not known."""
        loop = node.generators[0]
        values = self.value(loop.iter)
        if (
            len(node.generators) > 1
            or loop.ifs
            or not isinstance(loop.target, ast.Name)
            or not isinstance(values, list)
        ):
            return None
        return [
            _Named(loop.target.id, value).visit(ast.parse(ast.unparse(node.elt), mode="eval").body) for value in values
        ]

    def called_with_own(self, source: str) -> bool:
        """Return True if an expression calls something that the script defines or imports, as `Length()`,
        `partial(length, most=20)` and `make_reward(2)` do."""
        try:
            node = ast.parse(source, mode="eval").body
        except SyntaxError:
            return False
        names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        return isinstance(node, ast.Call) and any(self.is_defined(name) for name in names)

    def is_made(self, name: str) -> bool:
        """Return True if a name of the script's top level holds what such a call made, or a lambda."""
        made = [
            n.value
            for n in self.tree.body
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and n.targets[0].id == name
        ]
        return bool(made) and (isinstance(made[-1], ast.Lambda) or self.called_with_own(ast.unparse(made[-1])))

    def code_of(self, names: Sequence[str], made: Mapping[str, str] | None = None) -> str:
        """Return the source of some functions and of what they need: imports, constants, other functions and classes.

        Functions inside of others are taken out of them.

        Args:
            made: Names that are given the value of an expression, behind everything else.
        """
        made = made or {}
        defined = {
            n.name: n
            for n in ast.walk(self.tree)
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        inside = {
            member.name
            for n in ast.walk(self.tree)
            if isinstance(n, ast.ClassDef)
            for member in n.body
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        at_top = {
            target.id: n
            for n in self.tree.body
            if isinstance(n, ast.Assign)
            for target in n.targets
            if isinstance(target, ast.Name)
        }
        imported: dict[str, ast.stmt] = {}
        for n in ast.walk(self.tree):
            if isinstance(n, ast.Import | ast.ImportFrom):
                package = (n.module or "") if isinstance(n, ast.ImportFrom) else n.names[0].name
                if package.partition(".")[0] not in LEFT_OUT:
                    imported |= {(a.asname or a.name).partition(".")[0]: n for a in n.names}
        wanted: dict[int, ast.stmt] = {}
        todo, seen = list(names), set()
        todo += [n.id for source in made.values() for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            node: ast.stmt | None = at_top.get(name) or imported.get(name)
            if name in defined and (name not in inside or name in names):
                node = defined[name]
            if node is None or node.lineno in wanted:
                continue
            wanted[node.lineno] = node
            todo += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        ordered = [wanted[line] for line in sorted(wanted)]
        first = [n for n in ordered if isinstance(n, ast.Import | ast.ImportFrom)]
        rest = [n for n in ordered if not isinstance(n, ast.Import | ast.ImportFrom)]
        beside = [self._code_beside(n) for n in first]
        first = [n for n, code in zip(first, beside, strict=True) if not code]
        blocks = ["\n".join(map(ast.unparse, first))] if first else []
        blocks += [code.rstrip() for code in beside if code]
        assigned = ["\n".join(f"{name} = {source}" for name, source in made.items())] if made else []
        return "\n\n\n".join([*blocks, *map(ast.unparse, rest), *assigned]) + "\n"

    def _code_beside(self, node: ast.stmt) -> str:
        """Return the code that an import of a module beside the script stands for; empty for other modules.

        The file with the functions lies elsewhere, where it cannot import its old neighbours.
        """
        if not isinstance(node, ast.ImportFrom) or any(a.asname or a.name == "*" for a in node.names):
            return ""
        path = self.local_module(node.module or "")
        reader = self.module_of(path) if path is not None else None
        return "" if reader is None else reader.code_of([a.name for a in node.names])

    def is_defined(self, name: str) -> bool:
        """Return True if the script defines this function or class."""
        return any(
            isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and n.name == name
            for n in ast.walk(self.tree)
        )

    def dataset(self, node: ast.expr | None) -> tuple[str, dict[str, Any], list[str]]:
        """Return (name, keywords of load_dataset, what is done to its rows afterwards) of an expression."""
        done: list[str] = []
        line = math.inf
        for _ in range(20):
            if isinstance(node, ast.Name):  # dataset = dataset.map(f): the assignment before this line is meant
                assignment = self._before(node.id, line)
                if assignment is None:
                    break
                line, node = assignment.lineno, assignment.value
            elif isinstance(node, ast.Subscript):
                node = node.value
            elif isinstance(node, ast.Call) and _called(node) in ("load_dataset", "load_from_disk"):
                values = [self.value(a) for a in node.args]
                keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
                return str(values[0]) if values else "", keywords | {"args": values[1:]}, done
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _called(node) != "from_list":
                columns = self.value(node.args[0]) if _called(node) == "from_dict" and node.args else None
                if isinstance(columns, dict) and all(isinstance(column, list) for column in columns.values()):
                    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]
                    return "", {"rows": rows}, done
                if _called(node) in ("from_dict", "from_generator", "from_pandas", "from_json"):
                    return "", {}, done
                if _called(node) != "shuffle":  # rows are drawn at random in any case (data.shuffle)
                    done.append(f".{_called(node)}(...)")
                node = node.func.value
            elif isinstance(node, ast.Call) and _called(node) == "from_list" and node.args:
                rows = self.value(node.args[0])
                return "", {} if rows is UNKNOWN else {"rows": rows}, done
            else:
                break
        return "", {}, done

    def _before(self, name: str, line: float) -> ast.Assign | None:
        """The last assignment to a name before a line."""
        found = [
            n
            for n in ast.walk(self.tree)
            if isinstance(n, ast.Assign)
            and isinstance(n.targets[0], ast.Name)
            and n.targets[0].id == name
            and n.lineno < line
        ]
        return max(found, key=lambda n: n.lineno) if found else None
