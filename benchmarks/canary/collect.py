"""Collect the evidence of pushes: a real vLLM engine, a learner that takes real optimizer steps, and faults.

One stage is one precision and learning rate. Every push and every fault is one line of `STAGE.jsonl`, so that a stage
that was interrupted goes on where it was, from the base model and with other data. The lines hold log-probs, not
verdicts: `summary.py` judges them with the code that a run uses, as often as that changes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .faults import COMPUTE_KINDS, Fault, all_faults, applicable_faults, install, packs_head

TEXTS = 8
"""Texts that a push is proved on."""
CONTINUED = 8
"""Tokens that the first engine sampled after each prompt; they belong to the text from then on."""
SAMPLED = 8
"""Tokens that the engine samples at each push, which proves decoding."""
ROWS = 4
"""Sampled responses of one optimizer step."""
RESPONSE = 32
"""Tokens of each."""
OTHER_TEXTS_EVERY = 4
"""Pushes after which the texts of the second round are scored as well."""
FILES = Path("/dev/shm")
FILES_PREFIX = "canary_benchmark_"
"""Weights go to FILES/FILES_PREFIX + process id."""
WORDS = ["river", "stone", "letter", "garden", "winter", "music", "engine", "island", "market", "shadow"]


class Stage(NamedTuple):
    dtype: str
    lr: float
    pushes: int

    @property
    def name(self) -> str:
        return f"{self.dtype}_{self.lr:g}"


@dataclass
class Setup:
    model: str
    out: Path
    seed: int = 0
    faults: bool = True


def prompts(tokenizer: Any, rng: random.Random, count: int) -> list[list[int]]:
    """Return prompts of the kind that a run trains: a problem in the model's chat template, or in plain text."""
    made = []
    for _ in range(count):
        a, b, c, d = (rng.randint(10, 99) for _ in range(4))
        x, y = rng.sample(WORDS, 2)
        problem = rng.choice(
            [
                f"Write one line of Python that prints the value of {a} * {b} - {c} * {d}. Then say the value.",
                f"Tell me in one sentence how the {x} and the {y} met in the year {1900 + a}.",
                f"There are {a} boxes with {b} pens each, and {c} pens are lost. How many pens are left?",
                f"List {a % 5 + 2} things that a {x} and a {y} have in common, and explain one of them.",
            ]
        )
        if getattr(tokenizer, "chat_template", None):
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": problem}], tokenize=False, add_generation_prompt=True
            )
        else:
            text = problem
        made.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    return made


def remove_files_of_killed() -> None:
    """Remove the weights that collecting processes left behind which were killed."""
    for directory in FILES.glob(f"{FILES_PREFIX}*"):
        if not Path("/proc", directory.name.removeprefix(FILES_PREFIX)).exists():
            shutil.rmtree(directory, ignore_errors=True)


def load_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a stage. A last line without its end, which a SIGKILL tore, is no record."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def drop_torn_line(path: Path) -> None:
    """Cut off a last line without its end, so that the next record does not continue it."""
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


class Collector:
    """One stage. `run` returns when it has its pushes, or at `deadline` (monotonic seconds)."""

    def __init__(self, setup: Setup, stage: Stage) -> None:
        from transformers import AutoTokenizer

        from .learner import PlainLearner

        self.setup, self.stage = setup, stage
        self.path = setup.out / f"{stage.name}.jsonl"
        drop_torn_line(self.path)
        self.lines = load_lines(self.path)
        self.part = len({line["part"] for line in self.lines})
        self.rng = random.Random(f"{setup.seed} {stage.name} {self.part}")
        self.tokenizer = AutoTokenizer.from_pretrained(setup.model)
        self.learner = PlainLearner(setup.model, stage.dtype, stage.lr)
        self.files = FILES / f"{FILES_PREFIX}{os.getpid()}"
        self.layers = self.learner.model.config.num_hidden_layers

    async def run(self, deadline: float) -> None:
        from openrlhf_tir.config import Config
        from openrlhf_tir.engines.vllm_engine import VllmEngine

        done = {line["fault"] for line in self.lines if line["fault"]}
        faults = [f for f in all_faults(self.layers) if f.name not in done] if self.setup.faults else []
        pushed = sum(not line["fault"] for line in self.lines)
        if pushed >= self.stage.pushes and not faults:
            return
        remove_files_of_killed()
        self.files.mkdir(parents=True, exist_ok=True)
        cfg = Config(
            vllm={"sync_backend": "file", "kv_cache_mib": 64, "max_num_seqs": 32},
            ds={"param_dtype": self.stage.dtype},
            data={"max_len": 384},
            rollout={"max_new_tokens": 128},
        )
        self.engine = await VllmEngine.start(self.setup.model, cfg)
        try:
            faults = applicable_faults(faults, await self.engine._llm.collective_rpc(packs_head))
            await self._prepare()
            # Faults are spread over the pushes: they must be found early and late in training.
            every = max(1, (self.stage.pushes - pushed) // (len(faults) + 1))
            while time.monotonic() < deadline and (pushed < self.stage.pushes or faults):
                await self._push(other=pushed % OTHER_TEXTS_EVERY == 0)
                pushed += 1
                if faults and (pushed % every == 0 or pushed >= self.stage.pushes):
                    await self._fault(faults.pop(self.rng.randrange(len(faults))))
        finally:
            await self.engine.stop()
            for path in self.files.iterdir():
                path.unlink()
            self.files.rmdir()

    async def _prepare(self) -> None:
        """Make the texts, and take what both sides compute with the weights that both loaded from disk."""
        begun = prompts(self.tokenizer, self.rng, 2 * TEXTS)
        sampled = await self.engine.sample_canary(begun, CONTINUED, 1000 + self.part)
        texts = [[*p, *c.token_ids.tolist()] for p, c in zip(begun, sampled, strict=True)]
        self.texts, self.others = texts[:TEXTS], texts[TEXTS:]
        self.version = 0
        self.file = self.files / "v0.safetensors"
        await self.learner.publish(self.file)
        self.base = self.files / "base.safetensors"
        self.base.write_bytes(self.file.read_bytes())
        completions = await self.engine.sample_canary(self.texts, SAMPLED, 0)
        self.before = await self._record(completions, None, None, 0.0, 0.0)

    async def _push(self, *, other: bool) -> None:
        rows = []
        asked = prompts(self.tokenizer, self.rng, ROWS)
        answers = await self.engine.sample_canary(asked, RESPONSE, self.rng.randrange(1 << 30))
        for prompt, answer in zip(asked, answers, strict=True):
            rows.append(([*prompt, *answer.token_ids.tolist()], len(prompt), self.rng.choice([-1.0, 1.0])))
        start = time.monotonic()
        norm = self.learner.step(rows)
        step_s = time.monotonic() - start
        self.version += 1
        previous, self.file = self.file, self.files / f"v{self.version}.safetensors"
        for path in self.files.glob("v*.safetensors"):
            if path != previous:
                path.unlink()
        self.previous = previous
        digest = await self.learner.publish(self.file)
        self.digest = digest
        start = time.monotonic()
        completions = await self._load(self.file, digest)
        push_s = time.monotonic() - start
        record = await self._record(completions, None, self.before, step_s, push_s)
        record["grad_norm"] = norm
        if other:
            again = await self.engine.sample_canary(self.others, SAMPLED, 500 + self.version)
            record["other"] = await self._scored(again, self.others)
        self._write(record)
        self.before = record

    async def _load(self, path: Path, digest: str, *, canary: bool = True) -> list[Any]:
        from openrlhf_tir.errors import WeightsMisloaded
        from openrlhf_tir.pushes import Canary

        wanted = Canary(self.texts, SAMPLED, self.version) if canary else None
        try:
            completions = await self.engine.update_weights(path, self.version, digest, wanted)
        except WeightsMisloaded:
            # A run would push again. Here the log-probs are wanted as well, so the engine goes on with these weights.
            assert wanted is not None
            await self.engine._resume_after_push(time.monotonic())
            completions = await self.engine.sample_canary(*wanted)
        await self.engine.confirm_weights(self.version)
        return completions

    async def _fault(self, fault: Fault) -> None:
        """Push the same version again with a fault, record what its proof sees, and push it right."""
        from openrlhf_tir.weights.digest import digest_file

        layers = self.layers
        llm = self.engine._llm
        if fault.kind not in COMPUTE_KINDS:
            await self._load(self.previous, digest_file(self.previous), canary=False)
        other = str(self.base) if fault.kind == "weights_of_another_run" else None
        await llm.collective_rpc(install, args=(fault.kind, fault.layer, layers, str(self.previous), other))
        completions = await self._load(self.file, self.digest)
        self._write(await self._record(completions, fault, self._before_push, 0.0, 0.0))
        await llm.collective_rpc(install, args=("none", -1, layers, None, None))
        await self._load(self.file, self.digest, canary=False)

    async def _scored(self, completions: list[Any], texts: list[list[int]]) -> dict[str, Any]:
        """Return what both sides compute for texts and the tokens sampled after them, text by text."""
        learned = await self.learner.score(
            [[*text, *c.token_ids.tolist()] for text, c in zip(texts, completions, strict=True)]
        )
        return {
            "engine": [_short(np.concatenate([c.prompt_logprobs, c.logprobs])) for c in completions],
            "learner": [_short(row) for row in learned],
            "forced": [len(text) - 1 for text in texts],
            "shared": shared_prefixes(texts),
        }

    async def _record(
        self, completions: list[Any], fault: Fault | None, before: dict[str, Any] | None, step_s: float, push_s: float
    ) -> dict[str, Any]:
        start = time.monotonic()
        scored = await self._scored(completions, self.texts)
        score_s = time.monotonic() - start
        record = {
            "part": self.part,
            "version": self.version,
            "fault": fault.name if fault else "",
            **scored,
            "before": before and before["learner"],
            "engine_before": before and before["engine"],
            "read_back": self.engine.read_back.fault,
            "read_back_s": self.engine.read_back.seconds,
            "unread": len(self.engine.read_back.unread),
            "step_s": step_s,
            "push_s": push_s,
            "score_s": score_s,
            "canary_s": self.engine.canary_s,
        }
        if not fault:
            self._before_push = before
        return record

    def _write(self, record: dict[str, Any]) -> None:
        with self.path.open("a") as out:
            out.write(json.dumps(record) + "\n")


def shared_prefixes(texts: list[list[int]]) -> list[int]:
    """Return for each text how many tokens it shares with an earlier one from the start: they say nothing new."""
    shared = []
    for i, text in enumerate(texts):
        longest = 0
        for other in texts[:i]:
            pairs = zip(text, other, strict=False)
            longest = max(longest, next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other))))
        shared.append(longest)
    return shared


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.7g}") for value in values]


def collect(setup: Setup, stage: Stage, minutes: float) -> None:
    """Run one stage for at most `minutes`. However this process ends, its engine's processes end with it."""
    import torch

    from openrlhf_tir.cluster.reaper import end_children_with_us
    from openrlhf_tir.engines.start import prepare_environment

    end_children_with_us()
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    prepare_environment(gpu=False)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    setup.out.mkdir(parents=True, exist_ok=True)

    async def until_stopped() -> None:
        """Run the stage. SIGTERM and SIGINT cancel it, so that its engine and its files go with it."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        await Collector(setup, stage).run(time.monotonic() + 60 * minutes)

    try:
        asyncio.run(until_stopped())
    except asyncio.CancelledError:
        raise SystemExit("stopped by a signal; the same command goes on") from None
