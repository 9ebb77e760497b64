"""Restore, in a container, the graders' own files after a patch, and remove links that it made.

keep       before the patch: protected files are copied to ./kept next to this file, and listed in ./kept.json
restore    after it: what differs is removed or restored; its paths are written to ./out/left_out

It looks at the disk, because a patch decides what git ignores, filters or takes for a repository of its own, and may
put a directory where a file was. It runs in the image's own Python, 3.6 or later, with -I and -S (a sitecustomize.py
may be the patch's) and with the repository as current directory.
"""

import json
import os
import re
import shutil
import stat
import sys

COMPILED = re.compile(r"\.py[co]$")
"""Files that are not copied, because Python writes them again."""


def keep(place):
    """Copy and list what is protected."""
    os.mkdir(place + "/kept")
    listed = {}
    for path in watched(place):
        state = look(path)
        listed[path] = state
        if state[0] == "file" and not COMPILED.search(path):
            shutil.copy2(raw(path), raw(f"{place}/kept/{len(listed)}"))
            state.append(len(listed))
    with open(place + "/kept.json", "w") as f:
        json.dump(listed, f)


def restore(place):
    """Remove and restore what the patch has changed of the protected files."""
    with open(place + "/kept.json") as f:
        listed = json.load(f)
    now = {path: look(path) for path in watched(place)}
    changed = {path for path, state in now.items() if path not in listed or listed[path][: len(state)] != state}
    changed |= {path for path in listed if path not in now and not COMPILED.search(path)}
    for path in changed | protected(place)[0]:
        changed |= {
            above
            for above in parents(path)
            if above not in listed and os.path.lexists(raw(above)) and not os.path.isdir(raw(above))
        }
    for path in sorted(changed):
        remove(raw(path))
    for path in sorted(path for path in changed & set(listed) if not COMPILED.search(path)):
        put_back(raw(path), listed[path], place)
    with open(place + "/out/left_out", "w") as f:
        json.dump(sorted(changed), f)


def protected(place):
    """Return the protected paths, and a pattern of further ones."""
    with open(place + "/protected.json") as f:
        settings = json.load(f)
    return set(settings["paths"]), re.compile(settings["pattern"])


def watched(place):
    """Return everything that exists at a protected path, and all links, outside of .git, which no patch can change."""
    paths, pattern = protected(place)
    paths_found = []
    for directory, directories, files in os.walk(b"."):
        if directory == b".":
            directories[:] = [name for name in directories if name != b".git"]
        for name in directories + files:
            path = os.path.join(directory, name)[2:]
            text = path.decode("utf-8", "surrogateescape")
            if text in paths or pattern.search(text) or os.path.islink(path):
                paths_found.append(text)
    return paths_found


def look(path):
    """Return the kind of what is at a path, and what identifies its content."""
    status = os.lstat(raw(path))
    if stat.S_ISLNK(status.st_mode):
        return ["link", os.readlink(raw(path)).decode("utf-8", "surrogateescape")]
    if stat.S_ISREG(status.st_mode):
        return ["file", status.st_mode, status.st_size, status.st_mtime_ns]
    return ["directory" if stat.S_ISDIR(status.st_mode) else "other"]


def put_back(path, state, place):
    """Make a path again what it was."""
    os.makedirs(os.path.dirname(path) or b".", exist_ok=True)
    if state[0] == "file":
        shutil.copy2(raw(f"{place}/kept/{state[-1]}"), path)
    elif state[0] == "link":
        os.symlink(raw(state[1]), path)
    elif state[0] == "directory":
        os.mkdir(path)


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def parents(path):
    """Return the directories above a path."""
    names = path.split("/")[:-1]
    return ["/".join(names[: i + 1]) for i in range(len(names))]


def raw(path):
    """Return a name as bytes, whatever this Python considers the encoding of file names."""
    return path.encode("utf-8", "surrogateescape")


def main(place):
    """Run the command in argv. `place` is the directory of this file."""
    {"keep": keep, "restore": restore}[sys.argv[1]](place)
