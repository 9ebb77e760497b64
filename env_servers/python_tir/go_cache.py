"""python -m env_servers.python_tir.go_cache: compile go's standard library once, for python_tir servers to serve go.

Go is installed without it, and compiling it takes longer than a request may. It is kept on the host (root's in
/var/cache, else in the user's cache directory), and every sandbox reads it. The compiler of a request writes nothing
there: a package that is not in it is compiled with the request.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = """
    bufio bytes cmp container/heap container/list container/ring context encoding/base64 encoding/binary encoding/hex
    encoding/json errors fmt io iter maps math math/big math/bits math/cmplx math/rand os path/filepath reflect regexp
    runtime slices sort strconv strings sync sync/atomic text/tabwriter text/template time unicode unicode/utf8 unsafe
"""
PLACES = "/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin"
"""Where a sandbox sees what the host has installed."""
SETTINGS = {
    "GOTOOLCHAIN": "local",
    "GOPROXY": "off",
    "GOTELEMETRY": "off",
    "GOFLAGS": "-p=2",
    "CGO_ENABLED": "0",
    "GOMAXPROCS": "2",
}
"""The environment of every compilation, so that one finds what another made. Nothing is downloaded, and on machines
with many cores threads stay within a sandbox's processes."""
ASK_S = 10.0
_READY = "compiled-by"
"""A file in the directory that names the version."""


def directory() -> Path:
    """Where the cache is; that of root's server is where the sandbox's user can enter."""
    home = (
        Path("/var/cache")
        if os.geteuid() == 0
        else Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    )
    return home / "openrlhf-tir" / "go"


def is_ready(go: str) -> bool:
    """Whether it was compiled by this version."""
    try:
        return (directory() / _READY).read_text() == _version(go)
    except OSError:
        return False


def fill(go: str) -> None:
    """Raises OSError, CalledProcessError."""
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
        return subprocess.run([go, "version"], capture_output=True, text=True, check=False, timeout=ASK_S).stdout
    except subprocess.TimeoutExpired:
        return ""


def main() -> None:
    argparse.ArgumentParser(prog="python -m env_servers.python_tir.go_cache", description=__doc__).parse_args()
    go = shutil.which("go", path=PLACES)
    if go is None:
        sys.exit(f"There is no go in {PLACES}. Install it there: a sandbox shows nothing else of the host.")
    try:
        fill(go)
    except OSError as e:
        sys.exit(f"Go's library cannot be kept in {directory()}: {e.strerror}.")
    except subprocess.CalledProcessError as e:
        sys.exit(f"{go} does not compile its library: {e.stderr[-1000:]}")
    print(f"go's library is in {directory()}; python_tir servers that start from now on serve go")


if __name__ == "__main__":
    main()
