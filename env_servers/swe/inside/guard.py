"""Guard: around a patch, in a container: the graders' own files are as they were, and links that the patch made go.

keep       before the patch: what is protected is copied to ./kept beside this file, and listed in ./kept.json
restore    after it: what differs goes, or is put back; its paths are written to ./out/left_out

It looks at the disk. What git ignores, filters or takes for a repository of its own is for a patch to say, and a
directory may stand where a file was. It runs in the image's own Python, 3.6 or later, with -I and -S (a
sitecustomize.py may be the patch's) and with the repository as current directory."""

import json
import os
import re
import shutil
import stat
import sys

COMPILED = re.compile(r"\.py[co]$")
"""Files that are not copied: Python makes them anew."""


def keep(place):
    os.mkdir(place + "/kept")
    kept = {}
    for path in watched(place):
        seen = look(path)
        kept[path] = seen
        if seen[0] == "file" and not COMPILED.search(path):
            shutil.copy2(raw(path), raw(f"{place}/kept/{len(kept)}"))
            seen.append(len(kept))
    with open(place + "/kept.json", "w") as f:
        json.dump(kept, f)


def restore(place):
    with open(place + "/kept.json") as f:
        kept = json.load(f)
    now = {path: look(path) for path in watched(place)}
    changed = {path for path, seen in now.items() if path not in kept or kept[path][: len(seen)] != seen}
    changed |= {path for path in kept if path not in now and not COMPILED.search(path)}
    for path in changed | protected(place)[0]:
        changed |= {
            above
            for above in parents(path)
            if above not in kept and os.path.lexists(raw(above)) and not os.path.isdir(raw(above))
        }
    for path in sorted(changed):
        remove(raw(path))
    for path in sorted(path for path in changed & set(kept) if not COMPILED.search(path)):
        put_back(raw(path), kept[path], place)
    with open(place + "/out/left_out", "w") as f:
        json.dump(sorted(changed), f)


def protected(place):
    """(paths, pattern of more)."""
    with open(place + "/protected.json") as f:
        told = json.load(f)
    return set(told["paths"]), re.compile(told["pattern"])


def watched(place):
    """What is there of the protected, whatever it is, and all links. The repository's .git is not the patch's."""
    paths, pattern = protected(place)
    found = []
    for directory, directories, files in os.walk(b"."):
        if directory == b".":
            directories[:] = [name for name in directories if name != b".git"]
        for name in directories + files:
            path = os.path.join(directory, name)[2:]
            text = path.decode("utf-8", "surrogateescape")
            if text in paths or pattern.search(text) or os.path.islink(path):
                found.append(text)
    return found


def look(path):
    told = os.lstat(raw(path))
    if stat.S_ISLNK(told.st_mode):
        return ["link", os.readlink(raw(path)).decode("utf-8", "surrogateescape")]
    if stat.S_ISREG(told.st_mode):
        return ["file", told.st_mode, told.st_size, told.st_mtime_ns]
    return ["directory" if stat.S_ISDIR(told.st_mode) else "other"]


def put_back(path, seen, place):
    os.makedirs(os.path.dirname(path) or b".", exist_ok=True)
    if seen[0] == "file":
        shutil.copy2(raw(f"{place}/kept/{seen[-1]}"), path)
    elif seen[0] == "link":
        os.symlink(raw(seen[1]), path)
    elif seen[0] == "directory":
        os.mkdir(path)


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def parents(path):
    words = path.split("/")[:-1]
    return ["/".join(words[: i + 1]) for i in range(len(words))]


def raw(path):
    """The bytes of a name, whatever this Python takes for the encoding of files' names."""
    return path.encode("utf-8", "surrogateescape")


def main(place):
    {"keep": keep, "restore": restore}[sys.argv[1]](place)
