"""Commands: assignments, what builtins and functions do to the shell, and which commands a script would start."""

from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

from .conditions import Conditions
from .ends import MAX_COMMANDS, Break, Continue, Enough, Exit, Return
from .script import Command
from .syntax import HERE, Node, first_child
from .unknown_text import UNKNOWN_ALONE, readable, unknown, unknowns
from .words import formatted, split_at

_TRAINER = re.compile(
    r"openrlhf[./]cli[./]\w+|\btrain_(ppo_ray|ppo|sft|dpo|rm|kto|kd|prm)\b"
    r"|-m\s+(verl|recipe)\.\w|\b(\w+_)?main_(ppo|dapo)(\.py)?(?!\S)"
    r"|(^|&&|;|\n)\s*(\w+=\S+\s+)*"
    r"(trl (grpo|rloo|sft)\b|(accelerate launch|torchrun|deepspeed|python3?) [^;|&\n]*\.py\b)"
)
"""A text that may start a program of OpenRLHF or verl, or a script of TRL."""
_OVERRIDE = re.compile(r"[+~]*\w+(\.[\w@/-]+)+=")
"""An override of Hydra, whose value is no command whatever is in it."""
_LAUNCHER = re.compile(r"(.*/)?(python|torchrun|deepspeed|accelerate)[\w.]*")
"""What starts a program whose words are no scripts of bash."""
SHELLS = ("bash", "sh", "zsh", "dash")
STARTERS = re.compile(
    "srun|salloc|sbatch|qsub|bsub|ray|nohup|setsid|exec|env|sudo|time|timeout|nice|stdbuf|numactl|taskset|mpirun|pdsh|ssh"
    "|docker|podman|singularity|apptainer|enroot|kubectl|tmux|screen"
)
"""Commands that start the command, or the script, that stands among their words."""
_ITEM = re.compile(r"""(?<=[\s(])\[([^\]]+)\]=("[^"]*"|'[^']*'|[^\s)]*)""")
"""An item of an associative array, [key]=value."""
PRINTS = ("echo", "printf", "cat", "grep", "sed", "awk", "tee", "logger", "pkill", "pgrep", "tail", "ls", "which")
"""Commands whose words may name a program that they do not start."""


class Commands(Conditions):
    """Runs commands as far as they change the shell, and keeps the others."""

    def text(self, text: str) -> None:
        """Read a text in the current scope."""
        raise NotImplementedError

    def nested(self, text: str, line: int) -> None:
        """Read a text that a command runs in a shell of its own."""
        raise NotImplementedError

    # assignments

    def _variable_assignments(self, node: Node) -> None:
        self.children(node)

    def _declaration_command(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._variable_assignment(child)
                continue
            for word in self.words(child):  # export $(xargs < .env)
                name, equals, value = word.partition("=")
                if unknowns(name):
                    self.script.note(
                        f"Line {self.line(node)}: what `{readable(self.raw(node))}` sets only a run can tell. Export"
                        " it, and import again."
                    )
                elif equals and name.isidentifier():
                    self.variables[name] = value

    def _variable_assignment(self, node: Node) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = self.raw(target)
        if target.type == "subscript":
            name, _, index = name.partition("[")
            self._set_item(name, index.rstrip("]"), self._joined(value))
            return
        if value is not None and value.type == "array":
            new: str | list[str] = self._items(name, value)
        else:
            new = self._joined(value)
        adds = any(child.type == "+=" for child in node.children)
        self.variables[name] = _added(self.variables.get(name), new) if adds else new

    def _items(self, name: str, array: Node) -> list[str]:
        """Return the items of `(...)`. Those of an associative array, [key]=value, are remembered by their keys."""
        items = _ITEM.findall(self.raw(array))
        if not items:
            return self.words_of(child for child in array.named_children if child.type != "comment")
        for key, text in items:
            self.variables[f"{name}[{self._text(key)}]"] = self._text(text)
        return [self._text(text) for _, text in items]

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
        heredoc = first_child(node, *HERE)
        text = self._text_of_input(node) if heredoc is None else self._redirected_text(heredoc)
        status = None
        kept = body is not None and text is not None and self._keep_file(node, body, text)
        if body is not None:
            # A script that is written to a file is read where it is started, with the arguments that it is given there.
            status = self._with_input(body, text) if text is not None and not kept else self.statement(body)
        elif text is not None and trains(text):
            self.nested(text, self.line(node))
        if heredoc is not None:
            # `cat <<EOF | bash`, `cmd <<EOF && other`: what follows hangs below the redirect
            for child in heredoc.named_children:
                if child.type in ("pipeline", "list", "command", "redirected_statement"):
                    self.statement(child)
        return status

    def _text_of_input(self, node: Node) -> str | None:
        """Return what `< FILE` or `< <(COMMAND)` gives a command to read; None where there is no such redirection."""
        for redirect in node.named_children:
            if redirect.type != "file_redirect" or not self.raw(redirect).lstrip("0").startswith("<"):
                continue
            source = redirect.child_by_field_name("destination")
            if source is not None and source.type == "process_substitution":
                inner = [c for c in source.named_children if c.type != "comment"]
                return self._printed_apart(inner, self.raw(source))
            text = self._text_of_file(self._joined(source))
            return unknown(self.raw(redirect)) if text is None else text
        return None

    def _keep_file(self, node: Node, body: Node, text: str) -> bool:
        """Remember a file that `cat > FILE` or `tee FILE` writes from a here-document. Return whether there is one."""
        words = self.command_words(body) if body.type == "command" else []
        paths = [word for word in words[1:] if words[0] == "tee" and not word.startswith("-")]
        if words[:1] == ["cat"]:
            heredoc = first_child(node, "heredoc_redirect")
            beside = [] if heredoc is None else heredoc.named_children
            for child in (*node.named_children, *body.named_children, *beside):
                if child.type == "file_redirect" and ">" in self.raw(child)[:2]:
                    paths.append(self._joined(child.child_by_field_name("destination")))
        for path in paths:
            self.script.files[path] = text
            self.unread.add(path)
        return bool(paths)

    def _with_input(self, body: Node, text: str) -> bool | None:
        if body.type == "command":
            words = self.command_words(body)
            if words and words[0] == "read":
                self._read(words[1:], text, self._separators(body))
                return True
            if words and words[0] in ("mapfile", "readarray"):
                names = [word for word in words[1:] if not word.startswith("-")]
                self.variables[names[-1] if names else "MAPFILE"] = text.splitlines()
                return True
            status = self._without_input(body)
            if trains(text) and not (words and _LAUNCHER.fullmatch(words[0])):
                self.nested(text, self.line(body))
            return status
        with self.inside(lines=None if UNKNOWN_ALONE.fullmatch(text) else text.splitlines()):
            return self.statement(body)

    def _separators(self, node: Node) -> str:
        """Return the value of IFS for a command, which may set it itself."""
        own = first_child(node, "variable_assignment")
        if own is not None and self.raw(own).startswith("IFS="):
            return self._joined(own.child_by_field_name("value"))
        return str(self.variables.get("IFS", " \t\n"))

    def _read(self, words: list[str], text: str, separators: str) -> None:
        """Give variables what `read` makes of a text.

        Args:
            words: Its arguments.
            text: What it reads.
            separators: The value of IFS.
        """
        try:
            given, names = getopt.getopt(words, "ersa:d:i:n:N:p:t:u:")
        except getopt.GetoptError:
            return
        options = dict(given)
        if unknowns(separators) or UNKNOWN_ALONE.fullmatch(text):
            targets = [options["-a"]] if "-a" in options else names or ["REPLY"]
            source = text.strip() if UNKNOWN_ALONE.fullmatch(text) else unknown(shlex.join(["read", *words]))
            self.variables |= dict.fromkeys(targets, source)
            return
        if "-d" not in options:
            text = text.partition("\n")[0]
        if "-a" in options:
            self.variables[options["-a"]] = split_at(separators, text)
            return
        names = names or ["REPLY"]
        values = split_at(separators, text, len(names))
        self.variables |= dict(zip_longest(names, values, fillvalue=""))

    def _command(self, node: Node) -> bool | None:
        given = first_child(node, "herestring_redirect")
        return self._without_input(node) if given is None else self._with_input(node, self._redirected_text(given))

    def _without_input(self, node: Node) -> bool | None:
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

    def run_words(self, words: list[str], node: Node) -> bool | None:
        """Do what a command does to the shell itself, and keep it."""
        if not words:
            return None
        name, arguments, line = words[0], words[1:], self.line(node)
        if any(map(trains, words)):
            for missing in self.unset:
                self.script.note(
                    f"Line {line}: ${missing} is set neither by the script nor in this environment: it is empty, as in"
                    " bash."
                )
        if name == "printf" and arguments[:1] == ["-v"] and len(arguments) > 1:
            text = formatted(arguments[2:])
            self.variables[arguments[1]] = unknown(shlex.join(words)) if text is None else text
            return True
        if name in PRINTS:
            return None
        if name.startswith("-"):
            self.script.note(
                f"Line {line} begins with {readable(name)}: bash ended the command before it, at a comment or at a line"
                f" that does not end with a backslash, so {self._orphans(words)} never reached it, and does not here."
            )
            return None
        if name in self.functions:
            self._call(name, arguments)
            return None
        if name.endswith(".sh") and self._other_script(words, line):
            return None
        builtin: Callable[[list[str], int], bool | None] | None = {
            "cd": self._cd,
            "eval": self._eval,
            "source": self._source,
            ".": self._source,
            "set": self._set,
            "shift": self._shift,
            "let": self._let,
            "read": self._read_line,
            "exit": self._leave,
            "return": self._leave_function,
            "true": lambda arguments, line: True,
            ":": lambda arguments, line: True,
            "false": lambda arguments, line: False,
            "test": lambda arguments, line: self._test_words(arguments),
            "break": self._break,
            "continue": self._continue,
        }.get(name)
        if builtin is not None:
            return builtin(arguments, line)
        if len(self.script.commands) >= MAX_COMMANDS:
            raise Enough
        texts = [
            word
            for word in words
            if not word.startswith("-")
            and any(map(str.isspace, word.strip()))
            and not _OVERRIDE.match(word)
            and trains(word)
        ]
        if texts:
            for text in texts:
                self.nested(text, line)
            return None
        if self._started_script(words, line):
            return None
        self.script.commands.append(Command(tuple(words), line))
        return None

    def _orphans(self, words: list[str]) -> str:
        flags = [readable(word) for word in words if word.startswith("-")]
        return ", ".join(flags)

    def _call(self, name: str, arguments: list[str]) -> None:
        body, source = self.functions[name]
        with self.inside(positional=arguments, source=source, loops=0), suppress(Return):
            self.statement(body)

    def _started_script(self, words: list[str], line: int) -> bool:
        """Read a script that a command starts, as `bash x.sh`, `srun -N1 ./x.sh` and `ray job submit -- bash x.sh` do,
        or the text behind `bash -c`.

        Returns:
            True if there is one that can be read.
        """
        for i, word in enumerate(words):
            if _LAUNCHER.fullmatch(word):
                return False
            shell = Path(word).name in (*SHELLS, "sbatch")
            behind = words[i + 1 :]
            first = next((k for k, other in enumerate(behind) if not other.startswith("-")), None)
            if shell and first is not None and any(re.fullmatch(r"-[a-z]*c", flag) for flag in behind[:first]):
                self.nested(behind[first], line)
                return True
            started = shell or (word.endswith(".sh") and STARTERS.fullmatch(Path(words[0]).name))
            if started and self._other_script(words[i + shell :], line):
                return True
        return False

    def _other_script(self, words: list[str], line: int) -> bool:
        """Read a script with its arguments, flags of the shell in front of it. Return whether it could be read."""
        rest = iter(words)
        for word in rest:
            if word.startswith("-"):
                continue
            text = self._text_of_file(word)
            if text is None:
                return False
            with self.inside(name=str(self._there(word) or word), positional=list(rest)):
                self.nested(text, line)
            return True
        return False

    # builtins: each is given its arguments and its line, and returns whether it succeeds

    def _eval(self, arguments: list[str], line: int) -> None:
        with self.inside(first_line=line):
            self.text(" ".join(arguments))

    def _source(self, arguments: list[str], line: int) -> bool | None:
        if not arguments:
            return None
        text = self._text_of_file(arguments[0])
        if text is None:
            self.script.note(
                f"Line {line} reads {readable(arguments[0])}, which is not there: what it sets is unknown here."
            )
            return None
        with self.inside(first_line=line, positional=arguments[1:] or self.positional), suppress(Return):
            self.text(text)
        return True

    def _set(self, arguments: list[str], line: int) -> bool:
        if "--" in arguments:
            self.positional = arguments[arguments.index("--") + 1 :]
        return True

    def _shift(self, arguments: list[str], line: int) -> bool:
        count = int(arguments[0]) if arguments and arguments[0].isdecimal() else 1
        self.positional = self.positional[count:]
        return True

    def _let(self, arguments: list[str], line: int) -> bool | None:
        values = [self.evaluated(word, f"let {word}") for word in arguments]
        return None if not values or unknowns(values[-1]) else values[-1] != "0"

    def _read_line(self, arguments: list[str], line: int) -> bool | None:
        """Do what `read` does in a loop over lines; elsewhere its variables are what only a run can tell."""
        separators = str(self.variables.get("IFS", " \t\n"))
        if self.lines is None:
            self._read(arguments, unknown(shlex.join(["read", *arguments])), separators)
            return None
        if not self.lines:
            return False
        self._read(arguments, self.lines.pop(0), separators)
        return True

    def _unset_command(self, node: Node) -> None:
        names = [self.raw(child) for child in node.named_children]
        table = self.functions if "-f" in names else self.variables
        for name in names:
            table.pop(name, None)

    def _break(self, arguments: list[str], line: int) -> bool | None:
        if self.loops:
            raise Break
        return None

    def _continue(self, arguments: list[str], line: int) -> bool | None:
        if self.loops:
            raise Continue
        return None

    def _leave(self, arguments: list[str], line: int) -> bool:
        raise Exit

    def _leave_function(self, arguments: list[str], line: int) -> bool:
        raise Return


def _added(old: str | list[str] | None, new: str | list[str]) -> str | list[str]:
    """Return what `+=` makes of a value: more items, or more text, which the first item of a list gets."""
    if isinstance(new, list):
        return [*([old] if isinstance(old, str) else old or []), *new]
    if isinstance(old, list):
        return ["".join(old[:1]) + new, *old[1:]]
    return (old or "") + new


def trains(text: str) -> bool:
    """Return True if a text may start a program of OpenRLHF, verl or TRL."""
    return _TRAINER.search(text) is not None
