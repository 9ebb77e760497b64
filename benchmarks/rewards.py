"""Seconds to score 10,000 trajectories by each rule reward, as a rollout actor does: python -m benchmarks.rewards
[--trajectories N] [--workers 2]

Sixteen responses have a problem in common, as in a group. A maths response is some 3,000 characters of words with two
programs, their output and a boxed fraction, of which half are right, half of them in another form than the gold answer
(unreduced, an equation), so that the symbolic check is asked; a response with calls has one or two of them in JSON,
half of them exact. Workers are up before. The last line is one JSON object: seconds by reward, and the `slowest` (bar
20 for 10,000 on two cores).

Labels and texts are generated; conformance is tests/golden's."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from random import Random

import numpy as np

from benchmarks.command import command_parser
from openrlhf_tir.config import Reward
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.types import Segment, Task, ToolCall, Trajectory

Made = Callable[[Random, Random], tuple[Trajectory, Task]]
"""(of the response, of the problem) -> both."""
GROUP = 16
AT_ONCE = 256
"""Scored at once: what a full actor has."""
WORDS = [
    "so", "we", "let", "sum", "terms", "be", "written", "as", "product", "then", "check", "case", "by", "hand", "once",
]  # fmt: skip


def trajectory(*parts: tuple[str, str], calls: int = 0) -> Trajectory:
    """("model" | "env", text); four characters are a token."""
    segments = []
    for source, text in parts:
        n = max(1, len(text) // 4)
        made = (np.zeros(n, np.int32), np.zeros(n, np.float32), np.zeros(n, np.int32))
        segments.append(Segment("model" if source == "model" else "env", *made, text))
    done = [ToolCall("print(1)", "1\n", "ok") for _ in range(calls)]
    return Trajectory(0, np.zeros(1, np.int32), segments, done, finish_reason="stop")


def words(rng: Random, n: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(n))


def forms(rng: Random, top: int, bottom: int) -> str:
    k = rng.randint(2, 9)
    return rng.choice(
        [
            rf"\frac{{{top}}}{{{bottom}}}",
            rf"\frac{{{top}}}{{{bottom}}}",
            rf"\frac{{{top * k}}}{{{bottom * k}}}",
            rf"x = {top}/{bottom}",
        ]
    )


def maths(before: str, after: str) -> Made:
    """`before` and `after` stand around the final answer."""

    def made(rng: Random, problem: Random) -> tuple[Trajectory, Task]:
        top, bottom = problem.randint(1, 9999), problem.choice([10007, 10009, 10037])
        said = forms(rng, top if rng.random() < 0.5 else top + 1, bottom)
        parts = []
        for _ in range(2):
            parts.append(("model", f"{words(rng, 200)}\n```python\nprint({top} * {bottom})\n```\n"))
            parts.append(("env", f"```output\n{top * bottom}\n```\n"))
        parts.append(("model", f"{words(rng, 100)} {before}\\boxed{{{said}}}{after}"))
        return trajectory(*parts, calls=2), Task("", rf"\frac{{{top}}}{{{bottom}}}")

    return made


def answers(rng: Random, problem: Random) -> tuple[Trajectory, Task]:
    gold = f"{problem.choice(WORDS).title()} {problem.randint(1, 99)}"
    said = gold if rng.random() < 0.5 else "Nobody"
    parts = []
    for _ in range(2):
        parts.append(("model", f"<think>{words(rng, 150)}</think>\n<search>{words(rng, 5)}</search>"))
        parts.append(("env", f"<information>{words(rng, 200)}</information>"))
    parts.append(("model", f"<think>{words(rng, 100)}</think>\n<answer>{said}</answer>"))
    return trajectory(*parts, calls=2), Task("", gold)


def one_call(rng: Random) -> dict:
    return {"name": f"find_{rng.choice(WORDS)}", "arguments": {w: rng.randint(1, 99) for w in rng.sample(WORDS, 3)}}


def tool_n1(rng: Random, problem: Random) -> tuple[Trajectory, Task]:
    gold = [one_call(problem) for _ in range(problem.randint(1, 2))]
    said = gold if rng.random() < 0.5 else [one_call(rng)]
    text = f"<think>{words(rng, 300)}</think>\n<tool_call>{json.dumps(said)}</tool_call>"
    return trajectory(("model", text)), Task("", json.dumps(gold))


def tool_rl(rng: Random, problem: Random) -> tuple[Trajectory, Task]:
    gold = [{"name": c["name"], "parameters": c["arguments"]} for c in (one_call(problem), one_call(problem))]
    said = gold if rng.random() < 0.5 else gold[:1]

    def lines(think: str, calls: list[dict]) -> str:
        return f"<think> {think} </think>\n<tool_call>\n" + "\n".join(map(json.dumps, calls)) + "\n</tool_call>"

    return trajectory(("model", lines(words(rng, 300), said))), Task("", lines("x", gold))


MADE: dict[str, Made] = {
    "math": maths("<answer>", "</answer>"),
    "zerotir": maths("</think> <answer> ", " </answer>"),
    "torl": maths("The final answer is ", "."),
    "retool": maths("<answer>\n", "\n</answer>"),
    "artist": maths("<answer>", "</answer>"),
    "searchr1": answers,
    "tooln1": tool_n1,
    "toolrl": tool_rl,
}


async def seconds(name: str, n: int, workers: int) -> tuple[float, float]:
    """-> seconds, and the share with a reward above 0. The workers are up before."""
    rng = Random(f"{name}/{n}")
    rows = [MADE[name](rng, Random(f"{name}/{i // GROUP}")) for i in range(n)]
    pool = RewardPool(Reward(name=name, workers=workers))
    room = asyncio.Semaphore(AT_ONCE)

    async def one(t: Trajectory, task: Task) -> float:
        async with room:
            return (await pool.score(t, task)).reward

    await pool.workers.warm()
    start = time.perf_counter()
    rewards = await asyncio.gather(*[one(*row) for row in rows])
    took = time.perf_counter() - start
    await pool.stop()
    return took, sum(r > 0 for r in rewards) / n


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2, help="reward.workers")
    args = parser.parse_args()
    took: dict[str, float] = {}
    for name in MADE:
        found, above = asyncio.run(seconds(name, args.trajectories, args.workers))
        took[name] = round(found, 2)
        print(f"{name}: {found:.2f} s for {args.trajectories}, {above:.0%} with a reward above 0", flush=True)
    print(json.dumps({"trajectories": args.trajectories, "seconds": took, "slowest": max(took.values())}))


if __name__ == "__main__":
    main()
