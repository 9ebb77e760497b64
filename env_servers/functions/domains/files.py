"""A file system: directories are objects, files are texts."""

from __future__ import annotations

import random
from typing import Any

from ..tools import Domain, ToolError, tool

Tree = dict[str, Any]


class Files(Domain):
    """state: `tree` (name -> text or directory), `here` (the current directory, a list of names)."""

    name = "files"

    @classmethod
    def initial(cls, rng: random.Random) -> dict[str, Any]:
        names = rng.sample(["notes", "report", "budget", "plan", "draft", "summary", "todo", "log"], 4)
        words = ["alpha", "beta", "gamma", "delta", "echo", "kilo", "lima", "oscar"]
        text = {f"{n}.txt": "\n".join(rng.choices(words, k=rng.randint(2, 5))) for n in names}
        return {
            "tree": {"home": {"docs": dict(list(text.items())[:2]), "work": dict(list(text.items())[2:]), "tmp": {}}},
            "here": ["home"],
        }

    def _parts(self, path: str) -> list[str]:
        parts = [] if path.startswith("/") else list(self.state["here"])
        for part in path.split("/"):
            if part == "..":
                if not parts:
                    raise ToolError(f"{path}: there is nothing above /.")
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        return parts

    def _at(self, parts: list[str], path: str) -> Any:
        node: Any = self.state["tree"]
        for part in parts:
            if not isinstance(node, dict) or part not in node:
                raise ToolError(f"{path}: no such file or directory.")
            node = node[part]
        return node

    def _directory(self, path: str) -> Tree:
        node = self._at(self._parts(path), path)
        if not isinstance(node, dict):
            raise ToolError(f"{path}: not a directory.")
        return node

    def _file(self, path: str) -> str:
        node = self._at(self._parts(path), path)
        if not isinstance(node, str):
            raise ToolError(f"{path}: is a directory.")
        return node

    def _place(self, path: str) -> tuple[Tree, str]:
        """The directory that holds `path`, and the last name."""
        parts = self._parts(path)
        if not parts:
            raise ToolError(f"{path}: is the root.")
        node = self._at(parts[:-1], path)
        if not isinstance(node, dict):
            raise ToolError(f"{path}: its parent is no directory.")
        return node, parts[-1]

    def _new(self, path: str, content: Any) -> None:
        directory, name = self._place(path)
        if name in directory:
            raise ToolError(f"{path}: exists already.")
        directory[name] = content

    @tool
    def list_directory(self, path: str = ".") -> list[str]:
        """List what a directory holds, in alphabetical order; directories end with a slash."""
        return sorted(n + "/" * isinstance(c, dict) for n, c in self._directory(path).items())

    @tool
    def current_directory(self) -> str:
        """Tell the path of the current directory."""
        return "/" + "/".join(self.state["here"])

    @tool
    def change_directory(self, path: str) -> str:
        """Make a directory the current one; tells its path."""
        self._directory(path)
        self.state["here"] = self._parts(path)
        return self.current_directory()

    @tool
    def make_directory(self, path: str) -> None:
        """Create an empty directory."""
        self._new(path, {})

    @tool
    def create_file(self, path: str) -> None:
        """Create an empty file."""
        self._new(path, "")

    @tool
    def read_file(self, path: str) -> str:
        """Read a file."""
        return self._file(path)

    @tool
    def write_file(self, path: str, text: str) -> None:
        """Replace the text of a file, which is created if it is not there."""
        directory, name = self._place(path)
        if isinstance(directory.get(name), dict):
            raise ToolError(f"{path}: is a directory.")
        directory[name] = text

    @tool
    def append_to_file(self, path: str, text: str) -> None:
        """Add a line to the end of a file."""
        old = self._file(path)
        self.write_file(path, f"{old}\n{text}" if old else text)

    @tool
    def move(self, source: str, destination: str) -> None:
        """Move or rename a file or a directory. A destination that is a directory gets it."""
        self._moved(source, destination, keep=False)

    @tool
    def copy(self, source: str, destination: str) -> None:
        """Copy a file. A destination that is a directory gets it."""
        self._file(source)
        self._moved(source, destination, keep=True)

    def _moved(self, source: str, destination: str, *, keep: bool) -> None:
        directory, name = self._place(source)
        node = self._at(self._parts(source), source)
        target, as_name = self._place(destination)
        if isinstance(target.get(as_name), dict):
            target = target[as_name]
            as_name = name
        if as_name in target:
            raise ToolError(f"{destination}: {as_name} exists there already.")
        if isinstance(node, dict) and self._parts(destination)[: len(self._parts(source))] == self._parts(source):
            raise ToolError(f"{destination}: is inside of {source}.")
        target[as_name] = node
        if not keep:
            del directory[name]

    @tool
    def remove(self, path: str) -> None:
        """Delete a file or an empty directory."""
        directory, name = self._place(path)
        if self._at(self._parts(path), path) and isinstance(directory[name], dict):
            raise ToolError(f"{path}: the directory is not empty.")
        if self.state["here"][: len(self._parts(path))] == self._parts(path):
            raise ToolError(f"{path}: holds the current directory.")
        del directory[name]

    @tool
    def find_files(self, name: str) -> list[str]:
        """Find the paths of all files and directories whose name contains a text."""
        found: list[str] = []

        def walk(node: Tree, path: str) -> None:
            for n, content in sorted(node.items()):
                found.extend([f"{path}/{n}"] * (name in n))
                if isinstance(content, dict):
                    walk(content, f"{path}/{n}")

        walk(self.state["tree"], "")
        return found

    @tool
    def search_text(self, path: str, text: str) -> list[str]:
        """List the lines of a file that contain a text."""
        return [line for line in self._file(path).split("\n") if text in line]

    @tool
    def count_lines(self, path: str) -> int:
        """Count the lines of a file."""
        text = self._file(path)
        return len(text.split("\n")) if text else 0

    @tool
    def sort_lines(self, path: str) -> None:
        """Sort the lines of a file."""
        self.write_file(path, "\n".join(sorted(self._file(path).split("\n"))))
