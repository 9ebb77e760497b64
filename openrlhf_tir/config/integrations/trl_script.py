"""A script of TRL, read and not run: the arguments of its trainer, and the functions that it gives to it.

GRPOConfig(learning_rate=1e-6, ...)                   -> values by name
GRPOTrainer(model=, reward_funcs=[f, g], tools=[h])   -> names, and the code that these functions need
words behind the script, --num_generations 8          -> win over the values, as TrlParser reads them
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError

TRAINERS = ("GRPOTrainer", "RLOOTrainer", "SFTTrainer", "AsyncGRPOTrainer")
CONFIGS = ("GRPOConfig", "RLOOConfig", "SFTConfig", "AsyncGRPOConfig")
UNKNOWN = object()
"""The value of an expression that only a run can tell."""
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
    reader = _Reader(tree, dict(_flags(words)))
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
    found = TrlScript(_called(call), call.lineno, arguments, reader=reader)
    for made in reader.calls():
        if _called(made) in CONFIGS:
            found.config |= {k.arg: reader.value(k.value) for k in made.keywords if k.arg}
        if _called(made) == "LoraConfig":
            found.lora |= {k.arg: reader.value(k.value) for k in made.keywords if k.arg}
    found.config |= reader.set_later()
    found.config |= reader.flags
    return found, text


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
        """Return `training_args.x = value`."""
        return {
            node.targets[0].attr: self.value(node.value)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Attribute)
            and isinstance(node.targets[0].value, ast.Name)
            and "args" in node.targets[0].value.id
        }

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
        if isinstance(node, ast.List | ast.Tuple):
            values = [self.value(part, depth + 1) for part in node.elts]
            return UNKNOWN if any(v is UNKNOWN for v in values) else values
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

    def names(self, node: ast.expr) -> list[str]:
        """Return the names in a list of functions."""
        if isinstance(node, ast.Name):
            if node.id in self.assigned and not isinstance(self.assigned[node.id], ast.Lambda):
                inner = self.assigned[node.id]
                if isinstance(inner, ast.List | ast.Tuple | ast.Name):
                    return self.names(inner)
            return [node.id]
        if isinstance(node, ast.List | ast.Tuple):
            return [name for part in node.elts for name in self.names(part)]
        return [ast.unparse(node)]

    def code_of(self, names: Sequence[str]) -> str:
        """Return the source of some functions and of what they need: imports, constants, other functions and classes.

        Functions inside of others are taken out of them.
        """
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
        return "\n\n\n".join([*blocks, *map(ast.unparse, rest)]) + "\n"

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
