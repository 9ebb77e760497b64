"""Expansions: a node of the syntax tree -> the words that bash would make of it.

$NAME, ${NAME:-default}, "${array[@]}", $(dirname "$0"), $((2 * N)), 'text', "text"
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .arithmetic import assignment, calculate, expressions, names_changed
from .ends import MAX_DEPTH, MAX_FILE, Enough
from .script import Script
from .syntax import HERE, Node, first_child, parser
from .unknown_text import unknown, unknowns
from .words import Part, braces_expanded, fields, formatted, joined, sequence, without, without_escapes

_CUT = re.compile(r":\s*(-?\d+)(?::\s*(\d+))?")
"""${X:offset:length}"""
_NUMBER = re.compile(r"-?\d+")
_EXPANDED = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")
"""Nodes that are replaced between double quotes."""
_WITH_BRACES = ("word", "concatenation", "brace_expression")
"""Nodes of words that may have alternatives, `{a,b}` or `{1..3}`."""
Items = TypeVar("Items", str, list[str])
_HIDDEN = "\ue002"
"""Stands for a double quote of a here-document, which quotes nothing there."""


def _cut(items: Items, cut: re.Match[str]) -> Items:
    """Return the part of a text, or of a list, that `:offset:length` names."""
    behind = items[int(cut[1]) :]
    return behind if cut[2] is None else behind[: int(cut[2])]


def _is_whole(name: str, index: str | None) -> bool:
    """Return True for all items of a list, $@ or ${A[@]}."""
    return name in ("@", "*") or index in ("[@]", "[*]")


class Expansions:
    """The state of a shell, and what words expand to in it."""

    def __init__(self, name: str, environ: Mapping[str, str], cwd: Path) -> None:
        self.script = Script()
        self.name = name
        self.variables: dict[str, str | list[str]] = dict(environ)
        self.positional: list[str] = []
        self.functions: dict[str, Node] = {}
        self.cwd = cwd
        self.depth = 0
        self.loops = 0
        """Loops around the current statement that `break` and `continue` are read of."""
        self.lines: list[str] | None = None
        """The lines that are left for `read` in a loop over them; None outside of such a loop."""
        self.source = b""
        self.unread: set[str] = set()
        """Files that the script writes and has not started so far."""
        self.unset: list[str] = []
        """Variables without a value that the words of the current command have."""
        self.first_line: int | None = None
        """The line to which what is read now belongs, inside of a text that a line of the script holds."""

    @contextmanager
    def inside(self, **state: Any) -> Iterator[None]:
        """Give attributes of the shell other values, and put back the old ones at the end.

        Raises:
            Enough: So many of these are inside one another that a script must be calling itself.
        """
        if self.depth > MAX_DEPTH:
            raise Enough
        state["depth"] = self.depth + 1
        outer = {name: getattr(self, name) for name in state}
        for name, value in state.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in outer.items():
                setattr(self, name, value)

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
        raise NotImplementedError

    # words

    def words(self, node: Node) -> list[str]:
        """Return the words that a node expands to."""
        alternatives = braces_expanded(self.raw(node)) if node.type in _WITH_BRACES else []
        pieces = [self._parsed(alternative) if alternative else [] for alternative in alternatives]
        if len(pieces) > 1 and None not in pieces:
            return [word for parts in pieces for word in fields(parts or [])]
        return fields(self.parts(node))

    def _joined(self, node: Node | None) -> str:
        """Return the text that a node expands to where bash does not split it: an assignment, a test."""
        return "" if node is None else joined(self.parts(node))

    def parts(self, node: Node) -> list[Part]:
        """Return the pieces of a word."""
        kind = node.type
        if kind == "concatenation":
            return [part for child in node.children for part in self.parts(child)]
        if kind in ("string", "translated_string"):
            if kind == "translated_string":
                node = node.named_children[0]
            return self._inside(node) or [Part("")]
        if kind == "raw_string":
            return [Part(self.raw(node)[1:-1])]
        if kind in ("simple_expansion", "expansion"):
            return self.expansion(self.raw(node), quoted=False)
        if kind == "command_substitution":
            return [Part(self.substitution(node), split=True)]
        if kind == "arithmetic_expansion":
            return [Part(self.arithmetic(self.raw(node)), split=True)]
        if kind == "ansi_c_string":
            return [Part(without_escapes(self.raw(node)[2:-1]))]
        if kind == "process_substitution":
            return [Part(unknown(self.raw(node)))]
        return self._literal(self.raw(node))

    def _literal(self, raw: str) -> list[Part]:
        text = re.sub(r"\\\n", "", raw)
        text = re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
        if raw.startswith("~") and (raw == "~" or raw.startswith("~/")):
            text = str(self.variables.get("HOME", "~")) + text[1:]
        return [Part(text)]

    def _inside(self, node: Node) -> list[Part]:
        """Return the pieces between double quotes: nothing is split there."""
        parts: list[Part] = []
        at = node.start_byte + 1
        for child in node.named_children:
            if child.type not in _EXPANDED:
                continue
            raw = self.raw(child)
            text = raw.lstrip()  # the parser gives the blanks between two expansions to the second one
            start = child.start_byte + len(raw) - len(text)
            parts.append(self._quoted_text(at, start))
            if child.type in ("simple_expansion", "expansion"):
                parts += self.expansion(text, quoted=True)
            elif child.type == "command_substitution":
                parts.append(Part(self.substitution(child)))
            else:
                parts.append(Part(self.arithmetic(text)))
            at = child.end_byte
        parts.append(self._quoted_text(at, node.end_byte - 1))
        return [part for part in parts if part.text or part.items is not None]

    def _quoted_text(self, start: int, end: int) -> Part:
        text = self.source[start:end].decode(errors="replace")
        return Part(re.sub(r'\\([$`"\\\n])', lambda m: "" if m[1] == "\n" else m[1], text))

    def _document_text(self, nodes: Iterable[Node], start: int, end: int) -> str:
        """Return the text of a here-document with its expansions replaced.

        The parser sees `$@`, $((...)) and `...` between double quotes and not in a here-document, so the text is read
        as one between double quotes, with its own ones hidden.
        """
        pieces: list[str] = []
        for child in nodes:
            if child.type in _EXPANDED and child.start_byte >= start:
                pieces += [self._hidden(start, child.start_byte), self.raw(child)]
                start = child.end_byte
        pieces.append(self._hidden(start, end))
        text = "".join(pieces)
        parts = self._parsed(f'"{text}"')
        return (self._filled(text) if parts is None else joined(parts)).replace(_HIDDEN, '"')

    def _hidden(self, start: int, end: int) -> str:
        """Return a part of a here-document with its double quotes hidden, but for those inside of `...`."""
        text = self.source[start:end].decode(errors="replace")
        return re.sub(r'\\[^"]|`[^`]*`|"', lambda m: _HIDDEN if m[0] == '"' else m[0], text)

    # expansions

    _BRACES = re.compile(r"\$\{(?P<prefix>[#!]?)(?P<name>\w+|[@*#?$!-])(?P<index>\[[^\]]*\])?(?P<rest>.*)\}", re.DOTALL)

    def expansion(self, raw: str, *, quoted: bool) -> list[Part]:
        """Return the pieces of $NAME or ${NAME...}."""
        if not raw.startswith("${"):
            return self._value_parts(raw[1:], None, quoted)
        match = self._BRACES.fullmatch(raw)
        if match is None:
            return [Part(unknown(raw))]
        prefix, name, index, rest = match["prefix"], match["name"], match["index"], match["rest"]
        if prefix == "#":
            value = self.value(name) or ""
            count = len(value) if isinstance(value, list) or index is None else 1
            return [Part(str(count if value else 0))]
        if prefix == "!" and _is_whole("", index) and not rest:
            return self._list_parts(self._keys(name), name, index, quoted)
        if prefix == "!":
            target = self.value(name)
            if not isinstance(target, str) or not re.fullmatch(r"\w+", target):
                return [Part(unknown(raw))]
            name, index = target, None
        if not rest:
            return self._value_parts(name, index, quoted)
        return self._with_operator(name, index, rest, raw, quoted)

    def _with_operator(self, name: str, index: str | None, rest: str, raw: str, quoted: bool) -> list[Part]:
        value = self.value(name, index)
        match = re.match(r"(:?)([-=+?])", rest)
        if match:
            default = rest[match.end() :]
            missing = not value if match[1] else value is None
            if match[2] == "+":
                return [] if missing else self._text_parts(default, quoted)
            if not missing:
                return self._value_parts(name, index, quoted)
            if match[2] == "?":
                return [Part(unknown(raw))]
            parts = self._text_parts(default, quoted)
            if match[2] == "=":
                self.variables[name] = joined(parts)
            return parts
        if isinstance(value, list) and _is_whole(name, index) and not any(map(unknowns, value)):
            return self._list_parts(self._edited_list(name, value, rest, raw), name, index, quoted)
        text = " ".join(value) if isinstance(value, list) else value or ""
        return [Part(unknown(raw) if unknowns(text) else self._edited(text, rest, raw), split=not quoted)]

    def _edited_list(self, name: str, items: list[str], rest: str, raw: str) -> list[str]:
        """Apply `:offset:length` to a list, and everything else to each of its items."""
        cut = _CUT.fullmatch(rest)
        if cut is None:
            return [self._edited(item, rest, raw) for item in items]
        return _cut([self.name, *items] if name in ("@", "*") else items, cut)

    def _edited(self, value: str, rest: str, raw: str) -> str:
        """Apply `%`, `#`, `/`, `^^`, `,,` or `:offset:length` to a value."""
        if rest[0] in "%#":
            longest = rest[:2] in ("%%", "##")
            pattern = self._text(rest[2:] if longest else rest[1:])
            return without(value, pattern, at_end=rest[0] == "%", longest=longest)
        if rest[0] == "/":
            everywhere = rest.startswith("//")
            pattern, *others = re.split(r"(?<!\\)/", rest[2:] if everywhere else rest[1:], maxsplit=1)
            pattern, new = pattern.replace("\\/", "/"), "".join(others)
            anchor = pattern[:1] if pattern[:1] in ("#", "%") and not everywhere else ""
            regex = fnmatch.translate(self._text(pattern[len(anchor) :])).removesuffix("\\Z").removesuffix("\\z")
            regex = {"#": rf"\A{regex}", "%": rf"{regex}\Z"}.get(anchor, regex)
            return re.sub(regex, lambda _: self._text(new), value, count=0 if everywhere else 1)
        if rest in (",,", "^^"):
            return value.lower() if rest == ",," else value.upper()
        cut = _CUT.fullmatch(rest)
        return unknown(raw) if cut is None else _cut(value, cut)

    def _text_parts(self, text: str, quoted: bool) -> list[Part]:
        """Return the pieces of the text behind `:-` and the like, which may hold quotes and expansions."""
        if not text:
            return [Part("", split=not quoted)]
        quotes = '"' if quoted and '"' not in text else ""
        parts = self._parsed(f"{quotes}{text}{quotes}")
        return [Part(self._text(text), split=not quoted)] if parts is None else parts

    def _parsed(self, text: str) -> list[Part] | None:
        """Return the pieces of a text that is one word; None where it is not."""
        source = f"v={text}".encode()
        root = parser().parse(source).root_node
        found = root.named_children[0] if root.named_children else None
        value = found.child_by_field_name("value") if found is not None else None
        if value is None or root.has_error or value.end_byte != len(source):
            return None
        with self.inside(source=source):
            return self.parts(value)

    def _text(self, text: str) -> str:
        """Return a text with its variables replaced and its quotes removed."""
        return self._filled(text).replace('"', "").replace("'", "")

    def _filled(self, text: str) -> str:
        """Return a text with its variables replaced."""
        return re.sub(
            r"\$\{#?(?:\w+|[@*])(?:\[[@*]\])?\}|\$(?:\w+|[@*])",
            lambda m: joined(self.expansion(m[0], quoted=True)),
            text,
        )

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
        raw = f"${{{name}{index}}}"
        key = self._text(index[1:-1])
        if unknowns(key):
            return unknown(raw)
        item = self.variables.get(f"{name}[{key}]")
        if item is not None or found is None:
            return item
        position = self.calculated(key.replace("$((", "(").replace("))", ")"), raw)
        if unknowns(position):
            is_associative = any(other.startswith(f"{name}[") for other in self.variables)
            return None if is_associative else position
        items = [found] if isinstance(found, str) else found
        try:
            return items[int(position)]
        except IndexError:
            return None

    def _keys(self, name: str) -> list[str]:
        """Return the keys of an associative array, or the numbers of a list's items."""
        start = f"{name}["
        keys = [key.removeprefix(start).removesuffix("]") for key in self.variables if key.startswith(start)]
        items = self.variables.get(name)
        return keys or [str(i) for i in range(len(items) if isinstance(items, list) else items is not None)]

    def _value_parts(self, name: str, index: str | None, quoted: bool) -> list[Part]:
        value = self.value(name, index)
        whole = _is_whole(name, index)
        if whole:
            if not isinstance(value, list):
                value = [value] if value else []
            return self._list_parts(value, name, index, quoted)
        if isinstance(value, list):
            value = value[0] if value else ""  # $array is its first element
        if value is None and not name.isdecimal():
            self.unset.append(f"{name}{index or ''}")
        return [Part(value or "", split=not quoted)]

    def _list_parts(self, items: list[str], name: str, index: str | None, quoted: bool) -> list[Part]:
        """Return the pieces of all items of a list."""
        if not quoted or name == "*" or index == "[*]":
            return [Part(" ".join(items), split=not quoted)]
        return [Part(items=tuple(items))]

    # substitutions

    def substitution(self, node: Node) -> str:
        """Return what $(...) prints, where that only takes reading; else an unknown text."""
        raw = self.raw(node)
        inner = [c for c in node.named_children if c.type != "comment"]
        return self._printed_apart(inner, raw).rstrip("\n")

    def _printed_apart(self, nodes: list[Node], raw: str) -> str:
        """Return what statements print in a shell of their own, or an unknown text that keeps their source."""
        with self.inside(variables=dict(self.variables), cwd=self.cwd):
            printed = self._printed(nodes)
        return unknown(raw) if printed is None else printed

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
        if body is None or body.type != "command":
            return None
        words = self.command_words(body)
        given = first_child(node, *HERE)
        if given is None:
            return self._print(words)
        return self._redirected_text(given) if words == ["cat"] else None

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
            end = "" if arguments[:1] == ["-n"] else "\n"
            return " ".join(word for word in arguments if word not in ("-n", "-e")) + end
        if any(unknowns(word) for word in arguments):
            return None
        if name == "cat" and plain:
            texts = [self._text_of_file(word) for word in plain]
            return None if None in texts else "".join(map(str, texts))
        if name == "dirname" and plain:
            return os.path.dirname(plain[0].rstrip("/")) or ("/" if plain[0].startswith("/") else ".")
        if name == "basename" and plain:
            base = os.path.basename(plain[0].rstrip("/"))
            return base.removesuffix(plain[1]) if len(plain) > 1 and base != plain[1] else base
        if name in ("realpath", "readlink") and plain:
            return os.path.normpath(self.cwd / plain[0])
        if name == "printf":
            return formatted(arguments)
        if name == "seq" and 1 <= len(arguments) <= 3 and all(map(_NUMBER.fullmatch, arguments)):
            return sequence(*map(int, arguments if len(arguments) > 1 else ["1", *arguments]))
        if name == "date":
            form = next((word[1:] for word in arguments if word.startswith("+")), "%c")
            return time.strftime(form)
        if name == "whoami":
            return str(self.variables.get("USER", "")) or None
        return None

    def _printed_by(self, name: str, arguments: list[str]) -> str | None:
        """Return what a function of the script prints, where its body only computes."""
        body, source = self.functions[name]
        with self.inside(positional=arguments, source=source):
            return self._printed([c for c in body.named_children if c.type != "comment"])

    def arithmetic(self, raw: str) -> str:
        """Return the value of $((...)) of whole numbers; else an unknown text."""
        expression = raw.removeprefix("$((").removesuffix("))").removeprefix("$[").removesuffix("]")
        self.variables |= dict.fromkeys(names_changed(expression), unknown(raw))
        return self.calculated(expression, raw)

    def evaluated(self, expression: str, raw: str) -> str:
        """Return the value of the last of some expressions, as `((...))` and `let` have them, and make their
        assignments.

        Args:
            expression: Expressions with commas between them.
            raw: Their source, which stands for what only a run can tell.
        """
        value = "0"
        for part in expressions(expression):
            assigned = assignment(part)
            if assigned is None:
                self.variables |= dict.fromkeys(names_changed(part), unknown(raw))
                value = self.calculated(part, raw)
                continue
            value = self.calculated(assigned.value, raw)
            self.variables[assigned.name] = self.calculated(assigned.new, raw)
        return value

    def calculated(self, expression: str, raw: str) -> str:
        """Return the value of an expression of whole numbers and variables that hold some; else an unknown text."""

        def number(match: re.Match[str]) -> str:
            value = self.value(match[1] or match[2] or match[3])
            return value if isinstance(value, str) and re.fullmatch(r"-?\d+", value) else "?"

        if re.search(r"(\+\+|--)\s*[A-Za-z_]", expression):  # it would change the variable
            return unknown(raw)
        counts = re.sub(r"\$\{#[^}]*\}", lambda match: self._text(match[0]), expression)
        text = re.sub(r"\$\{(\w+)\}|\$?\b([A-Za-z_]\w*)\b|\$([0-9#])", number, counts)
        try:
            return str(calculate(text))
        except ValueError:
            return unknown(raw)

    def _there(self, name: str) -> Path | None:
        """Return the script file of that name: where bash would look, or beside this script."""
        for base in (self.cwd, Path(self.name).parent):
            try:
                if (path := base / name).is_file():
                    return path
            except OSError:
                return None
        return None

    def _text_of_file(self, name: str) -> str | None:
        """Return the text of a file that the script writes itself, or that is there; None where there is none."""
        for written, text in self.script.files.items():
            if os.path.normpath(self.cwd / written) == os.path.normpath(self.cwd / name):
                self.unread.discard(written)
                return text
        path = self._there(name)
        try:
            if path is None or path.stat().st_size > MAX_FILE:
                return None
            return path.read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            return None

    # commands as far as expansions need them

    def command_words(self, node: Node) -> list[str]:
        """Return the words of a command, expanded."""
        self.unset = []
        skipped = ("variable_assignment", "comment", "file_redirect", "heredoc_redirect", "herestring_redirect")
        parts: list[Node] = []
        for child in node.named_children:
            if child.type == "command_name":
                parts += child.named_children
            elif child.type not in skipped:
                parts.append(child)
        if node.parent is not None and node.parent.type == "redirected_statement":
            for redirect in node.parent.named_children:  # `command > log 2>&1 "$@"`: bash takes words behind it as well
                if redirect.type == "file_redirect":
                    named = [c for c in redirect.named_children if c.type != "file_descriptor"]
                    parts += named[1:]
        return self.words_of(parts)

    def words_of(self, nodes: Iterable[Node]) -> list[str]:
        """Return the words of some nodes. Nodes with nothing between them are one word: the parser cuts `[$X\\]`."""
        words: list[str] = []
        end = -1
        for node in nodes:
            new = self.words(node)
            if node.start_byte == end and words and new:
                words[-1] += new.pop(0)
            words += new
            end = node.end_byte
        return words

    def _redirected_text(self, node: Node) -> str:
        """Return what a here-document or here-string gives the command to read."""
        if node.type == "herestring_redirect":
            return self._joined(node.named_children[0]) + "\n"
        start = first_child(node, "heredoc_start")
        body = first_child(node, "heredoc_body")
        if body is None:
            return ""
        at = body.start_byte
        if start is not None and at == body.end_byte:  # the parser takes a text that begins with a backslash for words
            at = self.source.index(b"\n", start.end_byte) + 1
        if start is not None and any(quote in self.raw(start) for quote in "'\"\\"):
            text = self.source[at : body.end_byte].decode(errors="replace")
        else:
            text = self._document_text((*node.named_children, *body.named_children), at, body.end_byte)
        if self.raw(node).startswith("<<-"):
            text = "\n".join(line.lstrip("\t") for line in text.split("\n"))
        return text

    def _cd(self, arguments: list[str], line: int) -> bool | None:
        where = next((word for word in arguments if not word.startswith("-")), "")
        target = self.cwd / (where or str(self.variables.get("HOME", "/")))
        if unknowns(str(target)):
            return None
        self.cwd = Path(os.path.normpath(target))
        return True
