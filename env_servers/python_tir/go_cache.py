"""python -m env_servers.python_tir.go_cache: compile go's standard library once, so that servers can offer go.

Go is installed without it, and compiling it takes longer than a request may. The result is kept on the host (root's in
/var/cache, otherwise in the user's cache directory), and every sandbox reads it. The compiler of a request writes
nothing there: a package that is not in it is compiled with the request.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from env_servers.flags import command_parser

PACKAGES = """
    bufio bytes cmp container/heap container/list container/ring context encoding/base64 encoding/binary encoding/hex
    encoding/json errors fmt io iter maps math math/big math/bits math/cmplx math/rand os path/filepath reflect regexp
    runtime slices sort strconv strings sync sync/atomic text/tabwriter text/template time unicode unicode/utf8 unsafe
"""
"""Packages of the standard library that are compiled in advance."""
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin"
"""Directories in which a sandbox sees what the host has installed."""
SETTINGS = {
    "GOTOOLCHAIN": "local",
    "GOPROXY": "off",
    "GOTELEMETRY": "off",
    "GOFLAGS": "-p=2",
    "CGO_ENABLED": "0",
    "GOMAXPROCS": "2",
}
"""Environment variables of every compilation. They must always be the same, so that one compilation finds the results
of another. Nothing is downloaded, and on machines with many cores the threads stay within the process limit of a
sandbox."""
VERSION_TIMEOUT_S = 10.0
_READY = "compiled-by"
"""Name of the file in the cache directory that holds the version of go."""


def directory() -> Path:
    """Return the directory of the cache. Root's is where the sandbox's user can enter."""
    if os.geteuid() == 0:
        home = Path("/var/cache")
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return home / "openrlhf-tir" / "go"


def is_ready(go: str) -> bool:
    """Return True if the cache was compiled by this version of go."""
    try:
        return (directory() / _READY).read_text() == _version(go)
    except OSError:
        return False


def fill(go: str) -> None:
    """Compile the packages into the cache.

    Args:
        go: Path of the go command.

    Raises:
        OSError: The cache cannot be written.
        CalledProcessError: Go does not compile the packages.
    """
    cache = directory()
    cache.mkdir(parents=True, exist_ok=True, mode=0o755)
    source = "package main\n" + "".join(f'import _ "{package}"\n' for package in PACKAGES.split()) + "func main() {}\n"
    with tempfile.TemporaryDirectory(prefix="tir-go-") as scratch:
        (Path(scratch) / "main.go").write_text(source)
        env = {"PATH": "/usr/bin:/bin", "HOME": scratch, **SETTINGS, "GOCACHE": str(cache)}
        subprocess.run(
            [go, "build", "-o", "main", "main.go"], cwd=scratch, env=env, capture_output=True, text=True, check=True
        )
    (cache / _READY).write_text(_version(go))


def _version(go: str) -> str:
    try:
        return subprocess.run(
            [go, "version"], capture_output=True, text=True, check=False, timeout=VERSION_TIMEOUT_S
        ).stdout
    except subprocess.TimeoutExpired:
        return ""


def main() -> None:
    """Fill the cache, or exit with the reason."""
    command_parser("env_servers.python_tir.go_cache", __doc__).parse_args()
    go = shutil.which("go", path=SEARCH_PATH)
    if go is None:
        sys.exit(f"There is no go in {SEARCH_PATH}. Install it there: a sandbox shows nothing else of the host.")
    try:
        fill(go)
    except OSError as e:
        sys.exit(f"Go's library cannot be kept in {directory()}: {e.strerror}.")
    except subprocess.CalledProcessError as e:
        sys.exit(f"{go} does not compile its library: {e.stderr[-1000:]}")
    print(f"go's library is in {directory()}; python_tir servers that start from now on serve go")


if __name__ == "__main__":
    main()
