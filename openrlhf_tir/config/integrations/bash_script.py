"""Read a bash script without running it: which commands would it start, with which words?

    text -> tree-sitter's syntax tree -> walk in order: assignments, arrays, tests, loops, functions -> Command(words)

Nothing is executed and nothing is written. Variables, arrays, quotes, here-documents and the few commands that only
compute a path (`dirname`, `cd X && pwd`, ...) are evaluated as bash does. What only a run can tell, such as
`$(nvidia-smi -L | wc -l)`, becomes an `unknown` text that keeps its source, so that whoever reads the words can say so.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError

MAX_COMMANDS = 500
"""Commands that are read of one script: loops and recursive functions end here."""
MAX_DEPTH = 40
"""Scripts, functions and substitutions inside one another."""
_OPEN = "\ue000"
_CLOSE = "\ue001"
_UNKNOWN = re.compile(f"{_OPEN}([0-9a-f]*){_CLOSE}")
_TRAINER = re.compile(r"openrlhf[./]cli[./]\w+|\btrain_(ppo_ray|ppo|sft|dpo|rm|kto|kd|prm)\b")
_PLACEHOLDER = re.compile(r"(?m)^(\s*(?:export\s+|readonly\s+)?\w+=)<([\w .-]+)>[ \t]*$")
"""NAME=<what to fill in>, which bash would take for redirections."""
_ITEM = re.compile(r"""(?<=[\s(])\[([^\]]+)\]=("[^"]*"|'[^']*'|[^\s)]*)""")
"""An item of an associative array, [key]=value."""
PRINTS = ("echo", "printf", "cat", "grep", "sed", "awk", "tee", "logger", "pkill", "pgrep", "tail", "ls", "which")
"""Commands whose words may name a program that they do not start."""
Node = Any
"""A node of tree-sitter's tree; the package has no types of its own worth naming here."""


def unknown(source: str) -> str:
    """Return a text that stands for what only running `source` could tell. It survives splitting and a second reading:
    the source is inside in hexadecimal digits."""
    return f"{_OPEN}{' '.join(readable(source).split()).encode().hex()}{_CLOSE}"


def unknowns(text: str) -> list[str]:
    """Return the sources of the unknown parts of a word."""
    return [bytes.fromhex(digits).decode() for digits in _UNKNOWN.findall(text)]


def readable(text: str) -> str:
    """Return a word with its unknown parts as the script wrote them."""
    return _UNKNOWN.sub(lambda match: bytes.fromhex(match[1]).decode(), text)


@dataclass(frozen=True)
class Command:
    """A command that the script would start."""

    words: tuple[str, ...]
    line: int
    """The line of the outermost script on which it begins, counted from 1."""


@dataclass
class Script:
    """What a script would do, as far as reading tells."""

    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences about what bash does that a reader may not expect, and about what was assumed."""
    files: dict[str, str] = field(default_factory=dict)
    """Path -> text of the files that the script writes from here-documents: `cat > reward.py <<EOF`."""

    def note(self, sentence: str) -> None:
        """Add a sentence once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


def read_script(
    path: Path,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    arguments: Sequence[str] = (),
) -> Script:
    """Return the commands of a script file, called with `arguments`. Raises ConfigError for a file that cannot be
    read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"The script {path} cannot be read: {reason}. Give the path of a bash script.") from None
    return read_text(text, str(path), environ, cwd, arguments)


def read_text(
    text: str,
    name: str = "bash",
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    arguments: Sequence[str] = (),
) -> Script:
    """Return the commands of a script's text; `name` is its $0."""
    walker = _Walker(name, environ, cwd or Path.cwd())
    walker.positional = list(arguments)
    walker.run(text)
    return walker.script


def _parser() -> Any:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError:
        raise ConfigError(
            "Reading a bash script needs the packages tree-sitter and tree-sitter-bash, and they are not installed. Run"
            " pip install tree-sitter==0.26.1 tree-sitter-bash==0.25.1, or give the flags themselves:"
            " openrlhf-tir import-openrlhf -- FLAGS..."
        ) from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class _Exit(Exception):
    """The script ends here."""


class _Return(Exception):
    """The function ends here."""


class _Enough(Exception):
    """More commands, or deeper, than a script of training has."""


@dataclass(frozen=True)
class _Part:
    """A piece of a word. `split`: an unquoted expansion, which bash cuts at white space. `items`: "${array[@]}"."""

    text: str = ""
    split: bool = False
    items: tuple[str, ...] | None = None


def _fields(parts: list[_Part]) -> list[str]:
    """Return the words that the pieces of one word make."""
    words: list[str] = []
    current: str | None = None
    for part in parts:
        if part.items is not None:
            for i, item in enumerate(part.items):
                if i:
                    words.append(current or "")
                    current = item
                else:
                    current = (current or "") + item
        elif not part.split:
            current = (current or "") + part.text
        else:
            pieces = part.text.split()
            if not pieces:
                if part.text and current is not None:
                    words.append(current)
                    current = None
                continue
            if part.text[0].isspace() and current is not None:
                words.append(current)
                current = None
            for i, piece in enumerate(pieces):
                if i:
                    words.append(current or "")
                    current = piece
                else:
                    current = (current or "") + piece
            if part.text[-1].isspace():
                words.append(current or "")
                current = None
    if current is not None:
        words.append(current)
    return words


class _Walker:
    """Walks one script in the order in which bash would run it."""

    def __init__(self, name: str, environ: Mapping[str, str], cwd: Path) -> None:
        self.script = Script()
        self.name = name
        self.variables: dict[str, str | list[str]] = dict(environ)
        self.positional: list[str] = []
        self.functions: dict[str, Node] = {}
        self.cwd = cwd
        self.depth = 0
        self.source = b""
        self.unset: list[str] = []
        """Variables without a value that the words of the current command have."""
        self.first_line: int | None = None
        """The line to which what is read now belongs, inside of a text that a line of the script holds."""

    # running texts and nodes

    def run(self, text: str) -> None:
        """Read a whole script, up to its `exit`."""
        try:
            self.text(text)
        except (_Exit, _Return):
            pass
        except _Enough:
            self.script.note(
                f"Reading stopped after {MAX_COMMANDS} commands, or {MAX_DEPTH} scripts inside one another."
                " Give the flags themselves if what you want comes later."
            )

    def text(self, text: str) -> None:
        """Read a text in the current scope."""
        source = _PLACEHOLDER.sub(r"\1'<\2>'", text.replace("\r\n", "\n")).encode()
        outer, self.source = self.source, source
        self.depth += 1
        try:
            if self.depth > MAX_DEPTH:
                raise _Enough
            root = _parser().parse(source).root_node
            for node in _errors(root):
                words = " ".join(self.raw(node).split())[:60]
                self.script.note(
                    f"Line {self.line(node)} is not bash that can be read ({words!r}); what is around it was."
                )
            self.children(root)
        finally:
            self.depth -= 1
            self.source = outer

    def nested(self, text: str, line: int) -> None:
        """Read a text that a command runs in a shell of its own: nothing that it sets outlives it."""
        saved = (dict(self.variables), list(self.positional), dict(self.functions), self.cwd, self.first_line)
        self.first_line = line
        try:
            self.text(text)
        except (_Exit, _Return):
            pass
        finally:
            self.variables, self.positional, self.functions, self.cwd, self.first_line = saved

    def raw(self, node: Node) -> str:
        """Return the source of a node."""
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    def line(self, node: Node) -> int:
        """Return the line of the outermost script to which a node belongs."""
        return self.first_line or node.start_point[0] + 1

    def children(self, node: Node) -> None:
        """Run the statements below a node."""
        for child in node.named_children:
            self.statement(child)

    def statement(self, node: Node) -> bool | None:
        """Run one statement. Returns whether it succeeds, None where only running it could tell."""
        handler: Callable[[Node], bool | None] | None = getattr(self, f"_{node.type}", None)
        if handler is not None:
            return handler(node)
        if node.type in ("program", "do_group", "pipeline", "ERROR"):
            self.children(node)
        elif node.type == "subshell":
            cwd, variables = self.cwd, dict(self.variables)
            try:
                self.children(node)
            except _Exit:
                pass
            finally:
                self.cwd, self.variables = cwd, variables
        return None

    def _compound_statement(self, node: Node) -> bool | None:
        """`{ ...; }`, or `((...))`, which holds where its value is not 0."""
        raw = self.raw(node)
        if not raw.startswith("(("):
            self.children(node)
            return None
        value = self.calculated(raw[2:-2], raw)
        return None if unknowns(value) else value not in ("0", "")

    def _list(self, node: Node) -> bool | None:
        """`a && b`, `a || b`."""
        first, second = node.named_children[0], node.named_children[-1]
        operator = next((c.type for c in node.children if c.type in ("&&", "||")), "&&")
        status = self.statement(first)
        if operator == "&&":
            return status if status is False else self.statement(second)
        return self.statement(second) if status is False else status

    def _negated_command(self, node: Node) -> bool | None:
        status = self.statement(node.named_children[0])
        return None if status is None else not status

    def _if_statement(self, node: Node) -> None:
        branch: list[Node] = []
        condition: list[Node] = []
        seen_then = False
        for child in node.children:
            if child.type in ("elif_clause", "else_clause"):
                break
            if child.type == "then":
                seen_then = True
            elif child.is_named:
                (branch if seen_then else condition).append(child)
        if self._holds(condition):
            self._all(branch)
            return
        for clause in node.named_children:
            if clause.type == "elif_clause":
                parts = [c for c in clause.children if c.is_named or c.type == "then"]
                at = next((i for i, c in enumerate(parts) if c.type == "then"), len(parts))
                if self._holds(parts[:at]):
                    self._all(parts[at + 1 :])
                    return
            elif clause.type == "else_clause":
                self.children(clause)
                return

    def _holds(self, condition: list[Node]) -> bool:
        status: bool | None = True
        for node in condition:
            status = self.statement(node)
        if status is None and condition:
            words = " ".join(self.raw(condition[-1]).split())
            self.script.note(
                f"Line {self.line(condition[0])}: whether `{words}` holds only a run can tell; it is taken to hold."
            )
        return status is not False

    def _all(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.statement(node)

    def _case_statement(self, node: Node) -> None:
        value = self._joined(node.child_by_field_name("value"))
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = item.children_by_field_name("value")
            if any(fnmatch.fnmatchcase(value, self._joined(pattern)) for pattern in patterns):
                self._all([c for c in item.named_children if c not in patterns])
                return

    def _for_statement(self, node: Node) -> None:
        name = self.raw(node.child_by_field_name("variable"))
        values = [word for child in node.children_by_field_name("value") for word in self.words(child)]
        for value in values:
            self.variables[name] = value
            self.statement(node.child_by_field_name("body"))

    def _once(self, node: Node) -> None:
        """A loop whose number of rounds only a run can tell."""
        before = len(self.script.commands)
        body = node.child_by_field_name("body")
        if body is not None:
            self.statement(body)
        if any(_trains(word) for command in self.script.commands[before:] for word in command.words):
            self.script.note(f"Line {self.line(node)} begins a loop; its commands are read once.")

    _while_statement = _once
    _c_style_for_statement = _once

    def _function_definition(self, node: Node) -> None:
        self.functions[self.raw(node.child_by_field_name("name"))] = (node.child_by_field_name("body"), self.source)

    def _comment(self, node: Node) -> None:
        return

    # tests

    def _test_command(self, node: Node) -> bool | None:
        inner = [c for c in node.named_children if c.type != "comment"]
        return self._truth(inner[0]) if len(inner) == 1 else None

    def _truth(self, node: Node) -> bool | None:
        kind = node.type
        if kind == "binary_expression":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            operator = self.raw(node.child_by_field_name("operator"))
            if operator in ("&&", "||", "-a", "-o"):
                a, b = self._truth(left), self._truth(right)
                if operator in ("&&", "-a"):
                    return False if False in (a, b) else None if None in (a, b) else True
                return True if True in (a, b) else None if None in (a, b) else False
            return self._compare(self._joined(left), operator, self._joined(right))
        if kind == "unary_expression":
            operator = self.raw(node.children[0])
            operand = node.named_children[-1]
            if operator == "!":
                status = self._truth(operand)
                return None if status is None else not status
            return self._unary(operator, self._joined(operand))
        if kind in ("parenthesized_expression", "negation_expression"):
            status = self._truth(node.named_children[0])
            return (None if status is None else not status) if kind == "negation_expression" else status
        if kind in ("command", "test_command"):
            return self.statement(node)
        word = self._joined(node)
        return None if unknowns(word) else bool(word)

    def _compare(self, left: str, operator: str, right: str) -> bool | None:
        if unknowns(left + right):
            return None
        if operator in ("==", "="):
            return fnmatch.fnmatchcase(left, right)
        if operator == "!=":
            return not fnmatch.fnmatchcase(left, right)
        if operator == "=~":
            try:
                return re.search(right, left) is not None
            except re.error:
                return None
        numeric = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
        try:
            a, b = int(left or 0), int(right or 0)
        except ValueError:
            return None
        sign = numeric.get(operator, operator)
        table = {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}
        return table.get(sign)

    def _unary(self, operator: str, operand: str) -> bool | None:
        if operator == "-z":
            return operand == ""
        if operator == "-n":
            return operand != ""
        if unknowns(operand):
            return None
        if operator == "-v":
            return operand in self.variables
        path = self.cwd / operand
        looks = {"-e": path.exists, "-f": path.is_file, "-d": path.is_dir, "-s": path.exists, "-r": path.exists}
        look = looks.get(operator)
        try:
            return look() if look else None
        except OSError:
            return None

    # assignments

    def _variable_assignments(self, node: Node) -> None:
        self.children(node)

    def _declaration_command(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._variable_assignment(child)

    def _variable_assignment(self, node: Node) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        adds = any(c.type == "+=" for c in node.children)
        name = self.raw(target)
        new: str | list[str]
        if value is None:
            new = ""
        elif value.type == "array" and (items := _ITEM.findall(self.raw(value))):
            for key, text in items:
                self.variables[f"{name}[{self._text(key)}]"] = self._text(text)
            new = [self._text(text) for _, text in items]
        elif value.type == "array":
            new = [word for child in value.named_children if child.type != "comment" for word in self.words(child)]
        else:
            new = self._joined(value)
        if target.type == "subscript":
            name, _, index = name.partition("[")
            self._set_item(name, index.rstrip("]"), new if isinstance(new, str) else " ".join(new))
            return
        old = self.variables.get(name, [] if isinstance(new, list) else "")
        if adds and isinstance(new, list):
            new = [*([old] if isinstance(old, str) else old), *new]
        elif adds and isinstance(old, str) and isinstance(new, str):
            new = old + new
        elif adds and isinstance(old, list) and isinstance(new, str):
            new = [(old[0] if old else "") + new, *old[1:]]
        self.variables[name] = new

    def _set_item(self, name: str, index: str, value: str) -> None:
        old = self.variables.get(name, [])
        items = [old] if isinstance(old, str) else list(old)
        try:
            number = int(index)
        except ValueError:
            self.variables[f"{name}[{self._text(index)}]"] = value  # of an associative array
            return
        items += [""] * (number + 1 - len(items))
        items[number] = value
        self.variables[name] = items

    # commands

    def _redirected_statement(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        heredoc = next((c for c in node.named_children if c.type in ("heredoc_redirect", "herestring_redirect")), None)
        text = None if heredoc is None else self._redirected_text(heredoc)
        status = None
        if body is not None and text is not None:
            self._keep_file(node, body, text)
        if body is not None:
            status = self._with_input(body, text) if text is not None else self.statement(body)
        elif text is not None and _trains(text):
            self.nested(text, self.line(node))
        if heredoc is not None:
            # `cat <<EOF | bash`, `cmd <<EOF && other`: what follows hangs below the redirect
            for child in heredoc.named_children:
                if child.type in ("pipeline", "list", "command", "redirected_statement"):
                    self.statement(child)
        return status

    def _keep_file(self, node: Node, body: Node, text: str) -> None:
        """Remember a file that `cat > FILE` or `tee FILE` writes from a here-document."""
        words = self.command_words(body) if body.type == "command" else []
        redirects = [c for c in (*node.named_children, *body.named_children) if c.type == "file_redirect"]
        heredoc = next((c for c in node.named_children if c.type == "heredoc_redirect"), None)
        redirects += [c for c in heredoc.named_children if c.type == "file_redirect"] if heredoc is not None else []
        paths = [word for word in words[1:] if words[0] == "tee" and not word.startswith("-")]
        if words[:1] == ["cat"]:
            paths += [self._joined(c.child_by_field_name("destination")) for c in redirects if ">" in self.raw(c)[:2]]
        for path in paths:
            self.script.files[path] = text

    def _redirected_text(self, node: Node) -> str:
        """Return what a here-document or here-string gives the command to read."""
        if node.type == "herestring_redirect":
            return self._joined(node.named_children[0]) + "\n"
        start = next((c for c in node.named_children if c.type == "heredoc_start"), None)
        body = next((c for c in node.named_children if c.type == "heredoc_body"), None)
        if body is None:
            return ""
        literal = start is not None and any(quote in self.raw(start) for quote in "'\"\\")
        text = self.raw(body) if literal else "".join(part.text for part in self._inside(body, document=True))
        if self.raw(node).startswith("<<-"):
            text = "\n".join(line.lstrip("\t") for line in text.split("\n"))
        return text

    def _with_input(self, body: Node, text: str) -> bool | None:
        if body.type == "command":
            words = self.command_words(body)
            if words and words[0] == "read":
                self._read(words[1:], text)
                return True
            if words and words[0] in ("mapfile", "readarray"):
                names = [word for word in words[1:] if not word.startswith("-")]
                self.variables[names[-1] if names else "MAPFILE"] = text.splitlines()
                return True
            self.run_words(words, body)
            if _trains(text):
                self.nested(text, self.line(body))
            return None
        return self.statement(body)

    def _read(self, words: list[str], text: str) -> None:
        delimiter: str | None = None
        names: list[str] = []
        array = False
        rest = iter(words)
        for word in rest:
            if word == "-d":
                delimiter = next(rest, "")
            elif word in ("-p", "-n", "-N", "-t", "-u", "-i"):
                next(rest, "")
            elif word.startswith("-") and len(word) > 1:
                array = array or word.endswith("a")
                if word.endswith("d"):
                    delimiter = next(rest, "")
            else:
                names.append(word)
        if delimiter is None:
            text = text.partition("\n")[0]
        if not names:
            names = ["REPLY"]
        if array:
            self.variables[names[0]] = text.split()
            return
        values = text.split(maxsplit=len(names) - 1) if len(names) > 1 else [text.strip()]
        for i, name in enumerate(names):
            self.variables[name] = values[i] if i < len(values) else ""

    def _command(self, node: Node) -> bool | None:
        saved = {}
        for child in node.named_children:
            if child.type == "variable_assignment":
                name = self.raw(child.child_by_field_name("name"))
                saved[name] = self.variables.get(name)
                self._variable_assignment(child)
        try:
            return self.run_words(self.command_words(node), node)
        finally:
            for name, value in saved.items():
                if value is None:
                    self.variables.pop(name, None)
                else:
                    self.variables[name] = value

    def command_words(self, node: Node) -> list[str]:
        """Return the words of a command, expanded."""
        words: list[str] = []
        self.unset = []
        for child in node.named_children:
            if child.type in ("variable_assignment", "comment", "file_redirect", "heredoc_redirect"):
                continue
            if child.type == "herestring_redirect":
                continue
            if child.type == "command_name":
                for part in child.named_children:
                    words += self.words(part)
            else:
                words += self.words(child)
        return words

    def run_words(self, words: list[str], node: Node) -> bool | None:
        """Do what a command does to the shell itself, and keep it."""
        if not words:
            return None
        name, arguments, line = words[0], words[1:], self.line(node)
        if any(map(_trains, words)):
            for missing in self.unset:
                self.script.note(
                    f"Line {line}: ${missing} is set neither by the script nor in this environment: it is empty, as in"
                    " bash."
                )
        if name in PRINTS:
            return None
        if name.startswith("-"):
            self.script.note(
                f"Line {line} begins with {readable(name)}: bash ended the command before it, at a comment or at a line"
                f" that does not end with a backslash, so {self._orphans(words)} never reached it, and does not here."
            )
            return None
        if name in self.functions:
            return self._call(name, arguments)
        builtin: Callable[[list[str], int], bool | None] | None = {
            "cd": self._cd,
            "eval": self._eval,
            "source": self._source,
            ".": self._source,
            "set": self._set,
            "shift": self._shift,
            "unset": self._unset,
            "exit": self._leave,
            "return": self._leave_function,
            "true": lambda arguments, line: True,
            ":": lambda arguments, line: True,
            "false": lambda arguments, line: False,
            "export": self._export,
        }.get(name)
        if builtin is not None:
            return builtin(arguments, line)
        if len(self.script.commands) >= MAX_COMMANDS:
            raise _Enough
        texts = [
            word for word in words if not word.startswith("-") and any(map(str.isspace, word.strip())) and _trains(word)
        ]
        if texts:
            for text in texts:
                self.nested(text, line)
            return None
        if name in ("bash", "sh", "sbatch") and arguments and self._other_script(name, arguments, line):
            return None
        self.script.commands.append(Command(tuple(words), line))
        return None

    def _orphans(self, words: list[str]) -> str:
        flags = [readable(word) for word in words if word.startswith("-")]
        return ", ".join(flags)

    def _call(self, name: str, arguments: list[str]) -> bool | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Enough
        body, source = self.functions[name]
        saved, outer = self.positional, self.source
        self.positional, self.source = arguments, source
        try:
            self.statement(body)
        except _Return:
            pass
        finally:
            self.depth -= 1
            self.positional, self.source = saved, outer
        return None

    def _other_script(self, name: str, arguments: list[str], line: int) -> bool:
        """Read a script that this one runs, where it is there. Returns whether it was."""
        words = iter(arguments)
        for word in words:
            if word.startswith("-"):
                continue
            path = self._there(word)
            if path is None:
                return False
            saved, positional = self.name, self.positional
            self.name, self.positional = str(path), list(words)
            try:
                self.nested(path.read_text(encoding="utf-8-sig", errors="replace"), line)
            finally:
                self.name, self.positional = saved, positional
            return True
        return False

    def _there(self, name: str) -> Path | None:
        """Return the script file of that name: where bash would look, or beside this script."""
        for base in (self.cwd, Path(self.name).parent):
            try:
                if (path := base / name).is_file():
                    return path
            except OSError:
                return None
        return None

    def _cd(self, arguments: list[str], line: int) -> bool | None:
        where = next((word for word in arguments if not word.startswith("-")), "")
        target = self.cwd / (where or str(self.variables.get("HOME", "/")))
        if unknowns(str(target)):
            return None
        self.cwd = Path(os.path.normpath(target))
        return True

    def _eval(self, arguments: list[str], line: int) -> None:
        outer, self.first_line = self.first_line, line
        try:
            self.text(" ".join(arguments))
        finally:
            self.first_line = outer

    def _source(self, arguments: list[str], line: int) -> bool | None:
        if not arguments:
            return None
        path = self._there(arguments[0])
        if path is None:
            self.script.note(
                f"Line {line} reads {readable(arguments[0])}, which is not there: what it sets is unknown here."
            )
            return None
        outer, positional = self.first_line, self.positional
        self.first_line = line
        if arguments[1:]:
            self.positional = arguments[1:]
        try:
            self.text(path.read_text(encoding="utf-8-sig", errors="replace"))
        except _Return:
            pass
        finally:
            self.first_line, self.positional = outer, positional
        return True

    def _set(self, arguments: list[str], line: int) -> bool:
        if "--" in arguments:
            self.positional = arguments[arguments.index("--") + 1 :]
        return True

    def _shift(self, arguments: list[str], line: int) -> bool:
        count = int(arguments[0]) if arguments and arguments[0].isdecimal() else 1
        self.positional = self.positional[count:]
        return True

    def _unset(self, arguments: list[str], line: int) -> bool:
        for name in arguments:
            self.variables.pop(name, None)
        return True

    def _export(self, arguments: list[str], line: int) -> bool:
        for word in arguments:
            name, equals, value = word.partition("=")
            if equals:
                self.variables[name] = value
        return True

    def _leave(self, arguments: list[str], line: int) -> bool:
        raise _Exit

    def _leave_function(self, arguments: list[str], line: int) -> bool:
        raise _Return

    # words

    def words(self, node: Node) -> list[str]:
        """Return the words that a node expands to."""
        return _fields(self.parts(node))

    def _joined(self, node: Node | None) -> str:
        """Return the text that a node expands to where bash does not split it: an assignment, a test."""
        if node is None:
            return ""
        pieces: list[str] = []
        for part in self.parts(node):
            pieces.append(part.text if part.items is None else " ".join(part.items))
        return "".join(pieces)

    def parts(self, node: Node) -> list[_Part]:
        """Return the pieces of a word."""
        kind = node.type
        if kind == "concatenation":
            return [part for child in node.children for part in self.parts(child)]
        if kind in ("string", "translated_string"):
            if kind == "translated_string":
                node = node.named_children[0]
            inside = self._inside(node, document=False)
            return inside or [_Part("")]
        if kind == "raw_string":
            return [_Part(self.raw(node)[1:-1])]
        if kind == "ansi_c_string":
            return [_Part(_ansi(self.raw(node)[2:-1]))]
        if kind in ("simple_expansion", "expansion"):
            return self.expansion(self.raw(node), quoted=False)
        if kind == "command_substitution":
            return [_Part(self.substitution(node), split=True)]
        if kind == "arithmetic_expansion":
            return [_Part(self.arithmetic(node), split=True)]
        if kind == "process_substitution":
            return [_Part(unknown(self.raw(node)))]
        return self._literal(self.raw(node))

    def _literal(self, raw: str) -> list[_Part]:
        text = re.sub(r"\\\n", "", raw)
        text = re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
        if raw.startswith("~") and (raw == "~" or raw.startswith("~/")):
            text = str(self.variables.get("HOME", "~")) + text[1:]
        return [_Part(text)]

    def _inside(self, node: Node, *, document: bool) -> list[_Part]:
        """Return the pieces between double quotes, or of a here-document: nothing is split there."""
        start, end = node.start_byte, node.end_byte
        if not document:
            start, end = start + 1, end - 1
        parts: list[_Part] = []
        at = start
        for child in node.named_children:
            if child.type not in ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"):
                continue
            parts.append(self._quoted_text(at, child.start_byte, document))
            if child.type in ("simple_expansion", "expansion"):
                parts += self.expansion(self.raw(child), quoted=True)
            elif child.type == "command_substitution":
                parts.append(_Part(self.substitution(child)))
            else:
                parts.append(_Part(self.arithmetic(child)))
            at = child.end_byte
        parts.append(self._quoted_text(at, end, document))
        return [part for part in parts if part.text or part.items is not None]

    def _quoted_text(self, start: int, end: int, document: bool) -> _Part:
        text = self.source[start:end].decode(errors="replace")
        escapes = r"\\([$`\\\n])" if document else r'\\([$`"\\\n])'
        return _Part(re.sub(escapes, lambda m: "" if m[1] == "\n" else m[1], text))

    # expansions

    _BRACES = re.compile(r"\$\{(?P<prefix>[#!]?)(?P<name>\w+|[@*#?$!-])(?P<index>\[[^\]]*\])?(?P<rest>.*)\}", re.DOTALL)

    def expansion(self, raw: str, *, quoted: bool) -> list[_Part]:
        """Return the pieces of $NAME or ${NAME...}."""
        if not raw.startswith("${"):
            return self._value_parts(raw[1:], None, quoted)
        match = self._BRACES.fullmatch(raw)
        if match is None:
            return [_Part(unknown(raw))]
        prefix, name, index, rest = match["prefix"], match["name"], match["index"], match["rest"]
        if prefix == "#":
            value = self.value(name) or ""
            count = len(value) if isinstance(value, list) or index is None else 1
            return [_Part(str(count if value else 0))]
        if prefix == "!":
            target = self.value(name)
            return self._value_parts(target, None, quoted) if isinstance(target, str) else [_Part(unknown(raw))]
        if not rest:
            return self._value_parts(name, index, quoted)
        return self._with_operator(name, index, rest, raw, quoted)

    def _with_operator(self, name: str, index: str | None, rest: str, raw: str, quoted: bool) -> list[_Part]:
        match = re.match(r":?[-=+?]", rest)
        if match:
            operator = match[0]
            default = rest[len(operator) :]
            value = self.value(name, index)
            missing = not value if operator.startswith(":") else value is None
            if operator[-1] == "+":
                return [] if missing else self._text_parts(default, quoted)
            if not missing:
                return self._value_parts(name, index, quoted)
            if operator[-1] == "?":
                return [_Part(unknown(raw))]
            parts = self._text_parts(default, quoted)
            if operator[-1] == "=":
                self.variables[name] = "".join(part.text for part in parts)
            return parts
        value = self.value(name, index)
        if isinstance(value, list):
            value = " ".join(value)
        if value is None:
            value = ""
        if unknowns(value):
            return [_Part(unknown(raw), split=not quoted)]
        return [_Part(self._edited(value, rest, raw), split=not quoted)]

    def _edited(self, value: str, rest: str, raw: str) -> str:
        """Apply `%`, `#`, `/`, `^`, `,` or `:offset:length` to a value."""
        if rest[0] in "%#":
            longest = rest[:2] in ("%%", "##")
            pattern = self._text(rest[2:] if longest else rest[1:])
            return _without(value, pattern, at_end=rest[0] == "%", longest=longest)
        if rest[0] == "/":
            everywhere = rest.startswith("//")
            pattern, *others = re.split(r"(?<!\\)/", rest[2:] if everywhere else rest[1:], maxsplit=1)
            pattern, new = pattern.replace("\\/", "/"), "".join(others)
            regex = fnmatch.translate(self._text(pattern)).removesuffix("\\Z").removesuffix("\\z")
            return re.sub(regex, lambda _: self._text(new), value, count=0 if everywhere else 1)
        if rest in (",,", "^^"):
            return value.lower() if rest == ",," else value.upper()
        if rest in (",", "^"):
            return (value[:1].lower() if rest == "," else value[:1].upper()) + value[1:]
        if cut := re.fullmatch(r":\s*(-?\d+)(?::\s*(\d+))?", rest):
            start = int(cut[1])
            return value[start : start + int(cut[2])] if cut[2] else value[start:]
        return unknown(raw)

    def _text_parts(self, text: str, quoted: bool) -> list[_Part]:
        """Return the pieces of the text behind `:-` and the like, which may hold quotes and expansions."""
        if not text:
            return [_Part("", split=not quoted)]
        source = f"v={text}".encode()
        root = _parser().parse(source).root_node
        found = root.named_children[0] if root.named_children else None
        value = found.child_by_field_name("value") if found is not None else None
        if value is None or root.has_error or value.end_byte != len(source):
            return [_Part(self._text(text), split=not quoted)]
        outer, self.source = self.source, source
        try:
            return self.parts(value)
        finally:
            self.source = outer

    def _text(self, text: str) -> str:
        """Return a text with its variables replaced and its quotes removed."""
        replaced = re.sub(
            r"\$\{\w+\}|\$\w+", lambda m: "".join(p.text for p in self.expansion(m[0], quoted=True)), text
        )
        return replaced.replace('"', "").replace("'", "")

    def value(self, name: str, index: str | None = None) -> str | list[str] | None:
        """Return a variable's value; None where it is not set."""
        found: str | list[str] | None
        if name == "0":
            return self.name
        if name == "BASH_SOURCE":
            found = [self.name]
        elif name.isdecimal():
            number = int(name)
            return self.positional[number - 1] if number <= len(self.positional) else None
        elif name in ("@", "*"):
            return list(self.positional)
        elif name == "#":
            return str(len(self.positional))
        elif name == "PWD":
            return str(self.cwd)
        elif name == "?":
            return "0"
        elif name in ("$", "!", "RANDOM", "SECONDS", "HOSTNAME"):
            return unknown(f"${name}")
        else:
            found = self.variables.get(name)
        if index is None or index in ("[@]", "[*]"):
            return found
        number_text = self._text(index[1:-1])
        if (item := self.variables.get(f"{name}[{number_text}]")) is not None or found is None:
            return item
        items = [found] if isinstance(found, str) else found
        try:
            return items[int(number_text)]
        except (ValueError, IndexError):
            return None

    def _value_parts(self, name: str, index: str | None, quoted: bool) -> list[_Part]:
        value = self.value(name, index)
        whole = name in ("@", "*") or index in ("[@]", "[*]")
        if isinstance(value, list) and not whole:
            value = value[0] if value else ""  # $array is its first element
        if isinstance(value, str) and whole:
            value = [value] if value else []
        if value is None:
            if not whole and not name.isdecimal():
                self.unset.append(name)
            value = [] if whole else ""
        if isinstance(value, str):
            return [_Part(value, split=not quoted)]
        if not quoted:
            return [_Part(" ".join(value), split=True)]
        if name == "*" or index == "[*]":
            return [_Part(" ".join(value))]
        return [_Part(items=tuple(value))]

    # substitutions

    def substitution(self, node: Node) -> str:
        """Return what $(...) prints, where that only takes reading; else an unknown text."""
        raw = self.raw(node)
        inner = [c for c in node.named_children if c.type != "comment"]
        variables, cwd = dict(self.variables), self.cwd
        try:
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise _Enough
            printed = self._printed(inner)
        finally:
            self.depth -= 1
            self.variables, self.cwd = variables, cwd
        return unknown(raw) if printed is None else printed.rstrip("\n")

    def _printed(self, nodes: list[Node]) -> str | None:
        """Return what statements print one after another; None where one of them has to be run for that."""
        out: list[str] = []
        for node in nodes:
            if node.type == "list":
                text = self._printed(list(node.named_children))
            elif node.type == "redirected_statement":
                text = self._printed_from(node)
            elif node.type == "command":
                text = self._print(self.command_words(node))
            elif node.type in ("variable_assignment", "declaration_command"):
                self.statement(node)
                text = ""
            else:
                text = None
            if text is None:
                return None
            out.append(text)
        return "".join(out)

    def _printed_from(self, node: Node) -> str | None:
        body = node.child_by_field_name("body")
        text = next(
            (
                self._redirected_text(c)
                for c in node.named_children
                if c.type in ("heredoc_redirect", "herestring_redirect")
            ),
            None,
        )
        if body is None or body.type != "command":
            return None
        words = self.command_words(body)
        if text is not None and words == ["cat"]:
            return text
        return self._print(words) if text is None else None

    def _print(self, words: list[str]) -> str | None:
        """Return what a command that only computes prints."""
        name, arguments = (words[0], words[1:]) if words else ("", [])
        plain = [word for word in arguments if not word.startswith("-")]
        if name in self.functions:
            return self._printed_by(name, arguments)
        if name == "pwd":
            return str(self.cwd)
        if name == "cd":
            self._cd(arguments, 0)
            return ""
        if name == "echo":
            return " ".join(word for word in arguments if word not in ("-n", "-e"))
        if name == "printf" and arguments:
            return arguments[0] if len(arguments) == 1 and "%" not in arguments[0] else None
        if any(unknowns(word) for word in arguments):
            return None
        if name == "dirname" and plain:
            return os.path.dirname(plain[0].rstrip("/")) or ("/" if plain[0].startswith("/") else ".")
        if name == "basename" and plain:
            base = os.path.basename(plain[0].rstrip("/"))
            return base.removesuffix(plain[1]) if len(plain) > 1 and base != plain[1] else base
        if name in ("realpath", "readlink") and plain:
            return os.path.normpath(self.cwd / plain[0])
        if name == "date":
            form = next((word[1:] for word in arguments if word.startswith("+")), "%c")
            return time.strftime(form)
        if name == "whoami":
            return str(self.variables.get("USER", "")) or None
        return None

    def _printed_by(self, name: str, arguments: list[str]) -> str | None:
        """Return what a function of the script prints, where its body only computes."""
        body, source = self.functions[name]
        saved, outer = self.positional, self.source
        self.positional, self.source = arguments, source
        try:
            return self._printed([c for c in body.named_children if c.type != "comment"])
        finally:
            self.positional, self.source = saved, outer

    def arithmetic(self, node: Node) -> str:
        """Return the value of $((...)) of whole numbers; else an unknown text."""
        raw = self.raw(node)
        return self.calculated(raw.removeprefix("$((").removesuffix("))").removeprefix("$[").removesuffix("]"), raw)

    def calculated(self, expression: str, raw: str) -> str:
        """Return the value of an expression of whole numbers and variables that hold some; else an unknown text."""

        def number(match: re.Match[str]) -> str:
            value = self.value(match[1] or match[2])
            return value if isinstance(value, str) and re.fullmatch(r"-?\d+", value) else "?"

        text = re.sub(r"\$\{(\w+)\}|\$?\b([A-Za-z_]\w*)\b", number, expression)
        try:
            return str(int(_calculated(text)))
        except (ValueError, ArithmeticError, SyntaxError):
            return unknown(raw)


def _calculated(text: str) -> int:
    """Return the value of an expression of integers, + - * / % ( ) and comparisons."""
    import ast

    def of(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -of(node.operand)
        if isinstance(node, ast.BinOp):
            a, b = of(node.left), of(node.right)
            if isinstance(node.op, ast.Add):
                return a + b
            if isinstance(node.op, ast.Sub):
                return a - b
            if isinstance(node.op, ast.Mult):
                return a * b
            if isinstance(node.op, ast.Div | ast.FloorDiv):
                return int(a / b)
            if isinstance(node.op, ast.Mod):
                return a % b
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            a, b = of(node.left), of(node.comparators[0])
            for kind, holds in (
                (ast.Gt, a > b),
                (ast.GtE, a >= b),
                (ast.Lt, a < b),
                (ast.LtE, a <= b),
                (ast.Eq, a == b),
                (ast.NotEq, a != b),
            ):
                if isinstance(node.ops[0], kind):
                    return int(holds)
        raise ValueError(text)

    return of(ast.parse(text.strip(), mode="eval").body)


def _without(value: str, pattern: str, *, at_end: bool, longest: bool) -> str:
    """Return `value` without the part at one end that matches a glob."""
    cuts = range(len(value) + 1) if at_end == longest else range(len(value), -1, -1)
    for cut in cuts:
        part, rest = (value[cut:], value[:cut]) if at_end else (value[:cut], value[cut:])
        if fnmatch.fnmatchcase(part, pattern):
            return rest
    return value


def _ansi(text: str) -> str:
    """Return what $'...' means."""
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "e": "\033", "0": "\0"}
    return re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[0]), text)


def _trains(text: str) -> bool:
    """Whether a text may start one of OpenRLHF's programs."""
    return _TRAINER.search(text) is not None


def _errors(root: Node) -> Iterator[Node]:
    """Yield the outermost places that are no bash."""
    if not root.has_error:
        return
    for child in root.children:
        if child.is_error or child.is_missing:
            yield child
        else:
            yield from _errors(child)
