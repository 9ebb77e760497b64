"""The part that every agent shares: take tasks from a run's rollout actors, have them solved, say the reward. Ends when
the run has."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

WORKERS = 16
GONE_S = 60.0
"""No rollout actor for so long: the run is over."""

Solve = Callable[[str, str, dict], float | None]
"""(base URL of the session's OpenAI endpoint, API key, task) -> its reward; None leaves it to the run's own."""


def serve(url: str, key: str, solve: Solve) -> None:
    """Take tasks from one rollout actor until it is gone. Ends the program where the actor refuses the key."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=90) as http:
        while True:
            reply = http.post("/agent/tasks", json={"wait_s": 30})
            if reply.status_code == 204:
                continue
            if reply.status_code in (401, 403):
                sys.exit(
                    f"{url} refuses this program's key ({reply.status_code})."
                    " Set TIR_ROLLOUT_TOKEN to what the run has it set to."
                )
            task = reply.raise_for_status().json()
            try:
                end = {"reward": solve(task["base_url"], key, task)}
            except Exception as e:  # the server's fault, the framework's, or ours: never the model's
                end = {"failed": f"{type(e).__name__}: {e}"[:500]}
            http.post(f"/sessions/{task['session_id']}/reward", json=end)


def asked_for() -> Path:
    """The run's directory, from the command line."""
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="--run-dir of a run with --rollout.agent external"
    )
    run_dir: Path = parser.parse_args().run_dir
    if not run_dir.is_dir():
        parser.error(f"there is no directory {run_dir}. Give the --run-dir of a run that was started.")
    return run_dir


def run(solve: Solve, run_dir: Path | None = None) -> None:
    """`run_dir`: of the training run; default: what the command line says."""
    run_dir = run_dir or asked_for()
    own = run_dir / "endpoints" / "token"  # made by the run where there is no $TIR_ROLLOUT_TOKEN

    def work(i: int) -> None:
        """Actors come and go; every worker looks anew which are there, until there has been none for a while."""
        seen = None
        if not i:
            print(f"taking tasks of the rollout actors that {run_dir / 'endpoints'} lists", flush=True)
        while seen is None or time.monotonic() - seen < GONE_S:
            urls = [f.read_text().strip() for f in sorted((run_dir / "endpoints").glob("rollout-*"))]
            try:
                if urls:
                    seen = time.monotonic()
                    key = os.environ.get("TIR_ROLLOUT_TOKEN") or (own.read_text().strip() if own.exists() else "none")
                    serve(urls[i % len(urls)], key, solve)
            except httpx.HTTPError:
                pass
            time.sleep(1)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, range(WORKERS)))
