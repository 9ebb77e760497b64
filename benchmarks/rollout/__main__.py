"""python -m benchmarks.rollout [--quick] [--only PART ...]: what rollout serving costs and gains. The last line is
JSON.

    schedule    one 128 x 16 rollout of the seed workload, tool latency stretched to median 300 ms, p99 5 s: ours beside
                its critical path,
                OpenRLHF's per-trajectory executor, the reference's full-batch barrier and the serial loop
                (schedule.py)
    overhead    `--live` (2,000) trajectories on one actor, 100,000 turns: our CPU per turn, queue waits, memory
                (overhead.py)
    http        the same with the tools in a server of their own: the environment client's CPU included
                (overhead.py)
    vllm        real vLLM on this machine: the episode path beside bare AsyncLLM, interleaved pairs
                (vllm.py)
    per_token   what a sampled token costs the actor beside bare AsyncLLM, 300 and 1,000 live, a model of one layer
                (per_token.py)
    waiting     when it pays that ready trajectories wait for each other
                (waiting.py)

Engines and tools are emulated (they sleep) in all parts but `vllm` and `per_token`; in `schedule` the tools are a real
environment server that sleeps, by HTTP. `--scale` is the wall-clock seconds of an emulated second there: this
machine's two cores
do the work of a cluster's many, and what they do is not scaled, so the smaller it is the more our code weighs. Critical
path and serial loop run on the virtual clock, where code takes no time. Speed-ups are of the measured wall-clock; the
machine should have nothing else to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import command_parser, end_as_at_ctrl_c
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Lognormal, Workload

from ..envs.load import started
from . import overhead as overhead_part
from . import per_token as per_token_part
from . import schedule as schedule_part
from . import vllm as vllm_part
from . import waiting as waiting_part

WORKLOAD = SEED_WORKLOAD
SCALE = 0.3


def schedule(w: Workload, quick: bool, scale: float) -> dict[str, float]:
    """Seconds are emulated ones."""
    from miniatures.toy.tokenizer import build_tokenizer
    from openrlhf_tir.engines.codec import HfCodec

    w = w.with_batch(16, 8, engines=2) if quick else w
    codec = HfCodec(build_tokenizer())
    ideal, serial = schedule_part.ideal_s(w), schedule_part.serial_virtual_s(w)

    async def on_the_wall(url: str) -> dict[str, float]:
        found = {}
        for name, work in {
            "ours": lambda envs: schedule_part.ours(w, scale, envs, codec),
            "openrlhf": lambda envs: schedule_part.openrlhf(w, scale, envs, codec)(),
            "barrier": lambda envs: schedule_part.by_rounds(w, scale, envs),
        }.items():
            if name == "openrlhf":
                schedule_part.openrlhf(w, scale, [], codec)  # its import
            envs = schedule_part.clients(w, url)
            found[name] = await schedule_part.timed(work(envs)) / scale
            for client in envs:
                await client.close()
        return found

    flags = ("--workers", str(w.env_capacity), "--max-queue", "100000", "--max-sessions", "100000")
    with started("benchmarks.pipeline.env", *flags) as (url, _):
        wall = asyncio.run(on_the_wall(url))
    print(
        f"\none rollout of {w.prompts} x {w.samples_per_prompt} on {w.engine.count} engines,"
        f" emulated seconds (scale {scale:g})"
    )
    for name, seconds in {"critical path": ideal, **wall, "serial": serial}.items():
        print(f"  {name:14s}{seconds:8.1f}   {seconds / ideal:5.2f} x")
    return {
        "critical_path_ratio": wall["ours"] / ideal,
        "speedup_vs_serial": serial / wall["ours"],
        "speedup_vs_full_batch_barrier": wall["barrier"] / wall["ours"],
        "speedup_vs_openrlhf_executor": wall["openrlhf"] / wall["ours"],
        "critical_path_s": ideal,
    }


def overhead(w: Workload, quick: bool, scale: float, live: int = overhead_part.LIVE) -> dict[str, float]:
    found = overhead_part.measure(w, 12_000 if quick else 100_000, live)
    print(f"\n{live:,} live trajectories on one actor")
    for name, value in found.items():
        print(f"  {name:34s}{value:12.3f}")
    wanted = (
        "overhead_ms_per_turn",
        "cpu_share",
        "queue_wait_p50_ms",
        "queue_wait_p99_ms",
        "memory_growth_mib",
        "turns",
    )
    return {name: found[name] for name in wanted} | {"live": live}


def http(w: Workload, quick: bool, scale: float) -> dict[str, float]:
    found = overhead_part.measure_http(w, 2_000 if quick else 10_000)
    print(f"\nthe same with tools by HTTP: {found}")
    return found


def vllm(w: Workload, quick: bool, scale: float) -> dict[str, float]:
    found = vllm_part.measure(3 if quick else 9)
    print(f"\nvLLM: {found}")
    return found


def per_token(w: Workload, quick: bool, scale: float) -> dict[str, float]:
    return per_token_part.measure(1 if quick else 5)


def waiting(w: Workload, quick: bool, scale: float) -> dict[str, float]:
    rows = waiting_part.table(w, seeds=1 if quick else waiting_part.SEEDS)
    print("\none actor's rollout, emulated seconds")
    waiting_part.show(rows)
    return {f"best_wait_ms_{where}": waiting_part.best_wait_ms(rows, where) for where in waiting_part.WHERE}


PARTS: dict[str, Callable[[Workload, bool, float], dict[str, Any]]] = {
    "schedule": schedule,
    "overhead": overhead,
    "http": http,
    "waiting": waiting,
    "vllm": vllm,
    "per_token": per_token,
}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--workload", type=Path, default=WORKLOAD, help="TOML file (default: the seed workload)")
    parser.add_argument(
        "--scale",
        type=float,
        default=SCALE,
        help="wall-clock seconds per emulated second in `schedule` (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: small, and of no value as a measurement")
    parser.add_argument(
        "--live",
        type=int,
        default=overhead_part.LIVE,
        help="trajectories at a time in `overhead` (default: %(default)s)",
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=f"some of {', '.join(PARTS)}"
    )
    args = parser.parse_args()
    end_as_at_ctrl_c()
    seed = Workload.read(args.workload)
    w = replace(seed, env_latency_s=Lognormal(0.3, 5.0, seed.env_latency_s.max))
    found: dict[str, float] = {}
    parts = PARTS | {"overhead": partial(overhead, live=args.live)}
    for part in args.only:
        found |= parts[part](w, args.quick, 0.02 if args.quick else args.scale)
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


if __name__ == "__main__":
    main()
