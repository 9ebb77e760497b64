"""An environment server's command that ends as UNSTEADY says, once per letter of it: k killed by a signal, e exit code
1. After that it is the echo server."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

starts = Path(os.environ["UNSTEADY_COUNT"])
n = len(starts.read_text()) if starts.exists() else 0
starts.write_text("." * (n + 1))
match os.environ["UNSTEADY"][n : n + 1]:
    case "k":
        os.kill(os.getpid(), signal.SIGKILL)
    case "e":
        sys.exit("I cannot start: no such option.")
runpy.run_module("env_servers.echo", run_name="__main__", alter_sys=True)
