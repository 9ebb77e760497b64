"""python -m benchmarks.envs [--quick]: the Python sandbox against SandboxFusion's way, hostile code, and search.

    POST /run_code                  trivial and sympy snippets, both servers in turns, at 1, 8 and 64 callers:
                                    throughput, p50, p99, ratios
    POST /step_batch                trivial snippets, and calls of functions, one an action: how many a second
    benchmarks.envs.sessions        2,000 sessions with state open at once: p99 of an answer, memory of each
    POST /verify                    simple numerals at the maths server, one and 500 to a request: answers a second
    POST /step                      hostile snippets, as scripts and in sessions with state: how many were contained
    POST /run_code                  hostile programs in other languages: how many were contained
    env_servers.puzzles.check_all   data sets of puzzles, and whose solution scores 1
    benchmarks.envs.search          time per query
    benchmarks.envs.swe             session start, a patch judged, hostile patches and sessions contained
    benchmarks.envs.swe_overlap     start, agent and evaluate at once against in turn, on emulated durations

Ratios are medians over rounds of one run, ours and theirs next to each other in time: the machine's mood cancels. The
last line is JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys

import aiohttp

from benchmarks.command import command_parser, end_as_at_ctrl_c
from env_servers.functions.make_tasks import make_task
from env_servers.puzzles.gym import MISSING, installed

from .hostile import hostile_languages_suite, hostile_suite
from .load import Load, Server, plain_python, started

TRIVIAL = ["print(6 * 7)"]
SYMPY = [
    "from sympy import *\nx = symbols('x')\nprint(solve(x**3 - 6*x**2 + 11*x - 6, x))",
    (
        "from sympy import *\nn = symbols('n', integer=True, positive=True)\nk ="
        " symbols('k')\nprint(factor(summation(k**2, (k, 1, n))))"
    ),
    (
        "import sympy as sp\nx, y = sp.symbols('x y')\nprint(sp.Poly((x + y)**4).coeffs(), sp.totient(360),"
        " sp.nextprime(1000))"
    ),
    "from sympy import Matrix, Rational\nprint(Matrix([[2, 1], [1, 3]]).inv() * Matrix([Rational(1, 2), 4]))",
    "from sympy import *\nt = symbols('t')\nprint(apart(1 / (t * (t + 1)), t), series(exp(t), t, 0, 4))",
]
"""Snippets as a policy would write them; the sandbox's warm-up has none of them."""
CONCURRENCIES = (1, 8, 64)
Facts = dict[str, float | None]
"""Name -> figure; None where what it needs is not installed."""


async def compare(ours: Server, theirs: Server, rounds: int, seconds: float, *, quick: bool) -> Facts:
    facts: Facts = {}
    for name, snippets in (("trivial", TRIVIAL), ("sympy", SYMPY)):
        ratios = []
        # their 64 sympy calls alone take a quarter of a minute
        for c in CONCURRENCIES[: 2 if quick and name == "sympy" else 3]:
            pairs = [
                (await ours.run_code(snippets, c, seconds), await theirs.run_code(snippets, c, seconds))
                for _ in range(rounds if c == 8 else 1)
            ]
            mine, other = (_median([pair[k] for pair in pairs]) for k in (0, 1))
            _show(f"{name}, {c} at once", ours=mine, theirs=other)
            facts |= {
                f"{name}_p50_ms_c{c}": round(mine.p50_ms, 1),
                f"{name}_p99_ms_c{c}": round(mine.p99_ms, 1),
                f"{name}_failed_c{c}": mine.failed,
            }
            if c == 8:
                ratios = [a.per_s / b.per_s for a, b in pairs]
                facts[f"{name}_per_s_c8"], facts[f"{name}_their_per_s_c8"] = round(mine.per_s, 1), round(other.per_s, 1)
        _show(f"{name}, 8 at once", plain=await plain_python(snippets, seconds))
        facts[f"{name}_speedup"] = round(statistics.median(ratios), 2)
    return facts


async def measure(args: argparse.Namespace) -> Facts:
    rounds, seconds = (1, 1.5) if args.quick else (3, 5.0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
        with started("env_servers.python_tir", "--workers", str(os.cpu_count()), "--max-queue", "512") as (url, _):
            ours = Server(url, http)
            async with http.get(url + "/health") as r:
                print(f"isolation: {(await r.json())['isolation']} (theirs: none)")
            with started("benchmarks.envs.sandboxfusion_like") as (their_url, _):
                facts = await compare(ours, Server(their_url, http), rounds, seconds, quick=args.quick)
            batches = await ours.batches(TRIVIAL[0], 64, 2 * seconds)
            print(f"/step_batch of 64, two at once: {batches.per_s:.0f} executions/s, {batches.failed} failed")
            facts |= {"http_exec_per_s": round(batches.per_s, 1), "http_failed": batches.failed}
        facts |= await function_calls(http, seconds)
        facts |= await numerals(http, seconds)
        for stateful in (False, True):
            facts |= await hostile_suite(http, every=6 if args.quick else 1, stateful=stateful)
        facts |= await hostile_languages_suite(http, every=6 if args.quick else 1)
    quick = ["--quick"] if args.quick else []
    facts |= alone("benchmarks.envs.sessions", *(["--seconds", "5"] if args.quick else [])) | puzzles()
    facts |= alone("benchmarks.envs.swe", *quick) | alone("benchmarks.envs.swe_overlap", *quick)
    return facts | alone("benchmarks.envs.search", "--passages", str(20_000 if args.quick else args.passages))


async def function_calls(http: aiohttp.ClientSession, seconds: float) -> Facts:
    """Calls that change the state, of two domains at once."""
    _, task = make_task(0, domains=2, calls=(2, 4), distractors=4, variant="plain")
    call = {"name": task.gold[0][0].name, "arguments": task.gold[0][0].arguments}
    with started("env_servers.functions") as (url, _):
        load = await Server(url, http).batches(
            json.dumps([call]), 64, 2 * seconds, task.model_dump(exclude_defaults=True)
        )
    print(f"functions, /step_batch of 64, two at once: {load.per_s:.0f} calls/s")
    return {"functions_calls_per_s": round(load.per_s)}


async def numerals(http: aiohttp.ClientSession, seconds: float) -> Facts:
    with started("env_servers.math", "--workers", "1") as (url, _):
        server = Server(url, http)
        one, many = await server.verify(1, 32, seconds), await server.verify(500, 2, seconds)
    _show("numerals, 1 a request", ours=one)
    _show("numerals, 500 a request", ours=many)
    return {
        "verify_per_s": round(one.per_s),
        "verify_batch_per_s": round(many.per_s),
        "verify_failed": one.failed + many.failed,
    }


def puzzles() -> Facts:
    """None where reasoning-gym is not installed."""
    if not installed():
        print(f"puzzles: {MISSING}")
        return {"puzzle_sets": None, "puzzle_sets_ok": None}
    done = subprocess.run(
        [sys.executable, "-m", "env_servers.puzzles.check_all"], capture_output=True, text=True, check=False
    )
    print(f"puzzles: {done.stdout.strip() or done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def alone(module: str, *flags: str) -> Facts:
    """In a process of its own: what it reports of memory, and what it leaves, is then its own."""
    command = [sys.executable, "-m", module, *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _median(loads: list[Load]) -> Load:
    per_s, p50_ms, p99_ms = (statistics.median(load[k] for load in loads) for k in range(3))
    return Load(per_s, p50_ms, p99_ms, sum(load.failed for load in loads))


def _show(what: str, **loads: Load) -> None:
    for who, load in loads.items():
        print(
            f"{what:24s} {who:7s} {load.per_s:7.1f}/s  p50 {load.p50_ms:7.1f} ms  p99"
            f" {load.p99_ms:7.1f} ms  failed {load.failed}",
            flush=True,
        )


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: short rounds, 20,000 passages; the ratios are rough"
    )
    parser.add_argument(
        "--passages", type=int, default=1_000_000, metavar="N", help="of the search (default: %(default)s)"
    )
    args = parser.parse_args()
    end_as_at_ctrl_c()
    print(json.dumps(asyncio.run(measure(args))))


if __name__ == "__main__":
    main()
