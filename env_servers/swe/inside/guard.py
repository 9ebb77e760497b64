"""Guard: after a patch, in a container: what the graders' own files were is put back, and links that the patch made go. The new paths that do not stay
are written to ./out/left_out. Runs in the image's own Python, 3.6 or later, with the repository as current directory.
"""

import json
import os
import re
import stat
import subprocess


def main(place):
    with open(place + "/protected.json") as f:
        protected = json.load(f)
    paths, pattern = set(protected["paths"]), re.compile(protected["pattern"])
    git("add", "-A")
    changed = [path for path in git("diff", "--cached", "--no-renames", "--name-only", "-z", "HEAD").split("\0") if path]
    before = {path for path in git("ls-tree", "-r", "--name-only", "-z", "HEAD").split("\0") if path}
    left_out = sorted(path for path in changed if path in paths or pattern.search(path) or is_link(path))
    for path in left_out:
        if os.path.lexists(path):
            os.unlink(path)
        if path in before:
            git("checkout", "-q", "HEAD", "--", path)
    with open(place + "/out/left_out", "w") as f:
        json.dump(left_out, f)


def is_link(path):
    return os.path.lexists(path) and stat.S_ISLNK(os.lstat(path).st_mode)


def git(*arguments):
    return subprocess.run(["git", *arguments], stdout=subprocess.PIPE, check=True).stdout.decode("utf-8", "surrogateescape")
