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
LOADERS = ("from_pretrained", "from_config")
"""Methods whose first argument names a model or a tokenizer."""
LEFT_OUT = ("trl", "accelerate")
"""Packages whose names no reward function or tool needs; an import of them is not copied."""


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
        tree = ast.parse(text, str(path))
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"The script {path} cannot be read: {e}. Give the path of a Python script.") from None
    except SyntaxError as e:
        raise ConfigError(
            f"{path}:{e.lineno}: {e.msg}. Give a Python script that makes one of TRL's trainers."
        ) from None
    flags = dict(_flags(words))
    reader = _Reader(tree, {**_config_file(flags.pop("config", None), path), **flags})
    calls = [c for c in reader.calls() if _called(c) in TRAINERS]
    if not calls:
        raise ConfigError(
            f"{path} makes none of TRL's trainers that have a counterpart here ({', '.join(TRAINERS)}). Its reward"
            " functions and tools can be named all the same: docs/coming_from_trl.md."
        )
    call = calls[-1]
    arguments = {k.arg: k.value for k in call.keywords if k.arg}
    if call.args:
        arguments.setdefault("model", call.args[0])
    if len(call.args) > 1:
        arguments.setdefault("reward_funcs", call.args[1])
    found = TrlScript(_called(call), call.lineno, arguments, reader=reader, directories=(Path.cwd(), path.parent))
    for made in reader.calls():
        if _called(made) in CONFIGS:
            found.config |= reader.keywords(made)
        if _called(made) == "LoraConfig":
            found.lora |= reader.keywords(made)
    found.config |= reader.set_later()
    found.config |= {name: value for name, value in reader.flags.items() if name not in PEFT_FLAGS}
    if reader.flags.get("use_peft"):
        found.lora |= {PEFT_FLAGS[name]: value for name, value in reader.flags.items() if PEFT_FLAGS.get(name)}
        found.lora.setdefault("r", 16)
        found.lora.setdefault("lora_alpha", 32)
    elif "get_peft_config" in reader.source(arguments.get("peft_config")):
        del arguments["peft_config"]  # None without --use_peft
    return found, text


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
        values = [value] if equals else []
        i += 1
        while not equals and i < len(words) and not words[i].startswith("--"):
            values.append(words[i])
            i += 1
        read = [_literal(v) for v in values]
        yield name, True if not read else read[0] if len(read) == 1 else read


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


class _Reader:
    """Evaluates what literals and names can tell."""

    def __init__(self, tree: ast.Module, flags: dict[str, Any]) -> None:
        self.tree = tree
        self.flags = flags
        self.assigned: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.assigned[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.assigned[node.target.id] = node.value

    def calls(self) -> list[ast.Call]:
        """Return all calls in the order of their lines."""
        return sorted((n for n in ast.walk(self.tree) if isinstance(n, ast.Call)), key=lambda n: n.lineno)

    def set_later(self) -> dict[str, Any]:
        """Return `training_args.x = value`, of names that hold one of TRL's configs or are called args."""
        configs = {
            name for name, made in self.assigned.items() if isinstance(made, ast.Call) and _called(made) in CONFIGS
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
        if isinstance(node, ast.Name) and node.id in self.assigned:
            return self.value(self.assigned[node.id], depth + 1)
        if isinstance(node, ast.Attribute) and node.attr in self.flags:  # model_args.model_name_or_path
            return self.flags[node.attr]
        if isinstance(node, ast.JoinedStr):
            parts = [
                self.value(part.value, depth + 1) if isinstance(part, ast.FormattedValue) else ast.literal_eval(part)
                for part in node.values
            ]
            return UNKNOWN if any(part is UNKNOWN for part in parts) else "".join(map(str, parts))
        if isinstance(node, ast.Call) and _called(node) in ("get", "getenv") and len(node.args) == 2:
            return self.value(node.args[1], depth + 1)  # os.environ.get("X", default)
        if isinstance(node, ast.Call) and _called(node) in LOADERS and node.args:
            return self.value(node.args[0], depth + 1)  # the model's name, where a model is meant
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
            inner = self.assigned.get(node.id)
            if isinstance(inner, ast.List | ast.Tuple | ast.Name | ast.Subscript):
                return self.names(inner)
            return [node.id]
        if isinstance(node, ast.List | ast.Tuple):
            return [name for part in node.elts for name in self.names(part)]
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):  # registry["accuracy"]
            table, key = self.assigned.get(node.value.id), self.value(node.slice)
            if isinstance(table, ast.Dict):
                for name, value in zip(table.keys, table.values, strict=True):
                    if name is not None and self.value(name) == key:
                        return self.names(value)
        return [ast.unparse(node)]

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
        blocks = ["\n".join(map(ast.unparse, first))] if first else []
        assigned = ["\n".join(f"{name} = {source}" for name, source in made.items())] if made else []
        return "\n\n\n".join([*blocks, *map(ast.unparse, rest), *assigned]) + "\n"

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
