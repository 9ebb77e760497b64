"""python docker.py ...: a stand-in for the `docker` command, for tests: run, port, inspect, logs and rm, over processes
in namespaces of bubblewrap.

$STAND_IN_DOCKER is a directory: images/NAME is what is /testbed in containers of NAME, containers/NAME the process id
and address of one that runs, and `calls` what was asked.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from tests.contract.runtime_stand_in.processes import killed, started

TOP = Path(os.environ["STAND_IN_DOCKER"])


def run(words: list[str]) -> None:
    # --detach, then names and values, the image, and a command of one word
    flags = dict(zip(words[1:-2:2], words[2:-2:2], strict=False))
    image, name = TOP / "images" / words[-2], flags["--name"]
    if not image.is_dir():
        sys.exit(
            f"Unable to find image '{words[-2]}' locally\ndocker: Error response from daemon:"
            f" pull access denied for {words[-2]}"
        )
    assert (flags["--publish"], flags["--env"]) == ("127.0.0.1::60000", "SESSION_API_KEY")
    process, address = started(TOP / "work" / name, image, os.environ["SESSION_API_KEY"])
    (TOP / "containers" / name).write_text(json.dumps([process.pid, address]))
    print(name)


def main() -> None:
    verb, *words = sys.argv[1:]
    with (TOP / "calls").open("a") as f:
        f.write(f"{verb} {' '.join(words)}\n")
    if verb == "run":
        return run(words)
    file = TOP / "containers" / next((word for word in words if word.startswith("tir-")), "")
    if not file.is_file():
        sys.exit(f"Error: No such container: {file.name}")
    pid, address = json.loads(file.read_text())
    if verb == "port":
        print(address)
    elif verb == "inspect":
        print(
            "running"
            if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_text()
            else "exited"
        )
    elif verb == "logs":
        print("no log")
    elif verb == "rm":
        killed(pid)
        file.unlink()
        shutil.rmtree(TOP / "work" / file.name)
    return None


if __name__ == "__main__":
    main()
