"""The editor: view, create, str_replace, insert and undo_edit, with the texts of OpenHands' str_replace_editor.

An edit that cannot be made is a Refused, whose text the model reads. Only the contents that undo_edit restores are
kept.
"""

import os

SNIPPET_LINES = 4
"""Lines shown before and after an edit."""
MAX_CHARS = 30_000
"""Characters of a file that a view shows."""
MAX_ENTRIES = 500
"""Entries of a directory that a view shows."""
MAX_BYTES = 16 << 20
"""Bytes of the largest file that is read."""


class Refused(Exception):
    """Raised for an edit that cannot be made."""


class Editor:
    """The editor of one session."""

    def __init__(self):
        self.history = {}

    def run(self, command, path, arguments):
        """Run a command and return its text. Raises Refused."""
        if not path.startswith("/"):
            raise Refused(f"The path {path} is not an absolute path, it should start with `/`.")
        if command != "create" and not os.path.lexists(path):
            raise Refused(f"The path {path} does not exist. Please provide a valid path.")
        if command != "view" and os.path.isdir(path):
            raise Refused(f"The path {path} is a directory and only the `view` command can be used on directories.")
        try:
            return getattr(self, command)(path, **arguments)
        except OSError as e:
            raise Refused(f"{command} of {path} failed: {e.strerror}.") from None

    def view(self, path, view_range=None):
        """Show a file with line numbers, or list a directory."""
        if os.path.isdir(path):
            if view_range:
                raise Refused("The `view_range` parameter is not allowed when `path` points to a directory.")
            return (
                f"Here's the files and directories up to 2 levels deep in {path}, excluding hidden items:\n"
                + "\n".join(_listing(path))
            )
        text = _read(path)
        first = 1
        lines = text.split("\n")
        if view_range:
            first, last = (*view_range, None)[:2] if len(view_range) == 2 else (0, 0)
            if not 1 <= first <= len(lines):
                raise Refused(
                    f"Invalid `view_range`: {view_range}. Its first element should be within the range of lines of the"
                    f" file: [1, {len(lines)}]."
                )
            last = len(lines) if last == -1 else last
            if not first <= last <= len(lines):
                raise Refused(
                    f"Invalid `view_range`: {view_range}. Its second element should be -1, or within [{first},"
                    f" {len(lines)}]."
                )
            lines = lines[first - 1 : last]
        return f"Here's the result of running `cat -n` on {path}:\n{_numbered(lines, first)}\n"

    def create(self, path, file_text=""):
        """Create a file."""
        if os.path.lexists(path):
            raise Refused(f"File already exists at: {path}. Cannot overwrite files using command `create`.")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _write(path, file_text)
        self.history.setdefault(path, []).append(None)
        return f"File created successfully at: {path}"

    def str_replace(self, path, old_str="", new_str=""):
        """Replace a text that occurs exactly once in a file."""
        text = _read(path)
        if not old_str:
            raise Refused("No replacement was performed: `old_str` is empty.")
        if old_str == new_str:
            raise Refused("No replacement was performed: `new_str` and `old_str` must be different.")
        count = text.count(old_str)
        if count == 0:
            raise Refused(f"No replacement was performed, old_str `{old_str}` did not appear verbatim in {path}.")
        if count > 1:
            starts = []
            at = text.find(old_str)
            while at >= 0:
                starts.append(text.count("\n", 0, at) + 1)
                at = text.find(old_str, at + 1)
            raise Refused(
                f"No replacement was performed. Multiple occurrences of old_str `{old_str}` in lines {starts}."
                " Please ensure it is unique."
            )
        at = text.index(old_str)
        return self._edited(
            path, text, text[:at] + new_str + text[at + len(old_str) :], text.count("\n", 0, at), new_str
        )

    def insert(self, path, insert_line=0, new_str=""):
        """Insert lines after a line."""
        text = _read(path)
        lines = text.split("\n")
        if not 0 <= insert_line <= len(lines):
            raise Refused(
                f"Invalid `insert_line` parameter: {insert_line}."
                f" It should be within the range of lines of the file: [0, {len(lines)}]."
            )
        return self._edited(
            path,
            text,
            "\n".join([*lines[:insert_line], *new_str.split("\n"), *lines[insert_line:]]),
            insert_line,
            new_str,
        )

    def undo_edit(self, path):
        """Undo the last edit of a file."""
        if not self.history.get(path):
            raise Refused(f"No edit history found for {path}.")
        before = self.history[path].pop()
        if before is None:
            os.unlink(path)
            return f"Last edit to {path} undone successfully: the file was created by it and is gone."
        _write(path, before)
        return (
            f"Last edit to {path} undone successfully. Here's the result of running `cat -n` on"
            f" {path}:\n{_numbered(before.split(chr(10)), 1)}\n"
        )

    def _edited(self, path, before, after, line, new_str):
        """Write a file, remember its old content, and return the text that shows the edit."""
        _write(path, after)
        self.history.setdefault(path, []).append(before)
        first = max(0, line - SNIPPET_LINES)
        snippet = after.split("\n")[first : line + SNIPPET_LINES + new_str.count("\n") + 1]
        report = (
            f"The file {path} has been edited. Here's the result of running `cat -n` on a snippet of"
            f" {path}:\n{_numbered(snippet, first + 1)}\n"
        )
        return report + "Review the changes and make sure they are as expected. Edit the file again if necessary."


def _read(path):
    """Return the text of a file. Raises Refused."""
    if not os.path.isfile(path):
        raise Refused(f"{path} is no regular file.")
    if os.path.getsize(path) > MAX_BYTES:
        raise Refused(f"{path} is larger than {MAX_BYTES >> 20} MiB. Look at parts of it with bash.")
    with open(path, "rb") as f:
        try:
            return f.read().decode()
        except UnicodeDecodeError:
            raise Refused(f"{path} is no UTF-8 text.") from None


def _write(path, text):
    with open(path, "wb") as f:
        f.write(text.encode("utf-8", "surrogatepass"))


def _numbered(lines, first):
    """Return lines with their numbers, cut to MAX_CHARS."""
    text = "\n".join(f"{i:6}\t{line}" for i, line in enumerate(lines, first))
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:MAX_CHARS]}\n[... the rest is left out: give a `view_range` ...]"


def _listing(top):
    """Return the visible files and directories up to two levels below a directory."""
    paths = [top]
    top = top.rstrip("/")
    for directory, names, files in os.walk(top or "/"):
        directory = directory.rstrip("/")
        depth = directory[len(top) :].count("/")
        if depth >= 2:
            names[:] = []
            continue
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__pycache__")
        paths += [f"{directory}/{name}/" for name in names]
        paths += [f"{directory}/{name}" for name in sorted(files) if not name.startswith(".")]
        if len(paths) > MAX_ENTRIES:
            return [*paths[:MAX_ENTRIES], "[... and more ...]"]
    return sorted(paths)
