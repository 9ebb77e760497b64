"""Weight pushes by file at the shapes of Qwen2.5-1.5B in bf16 (3 GB, random weights, std 0.02): today's way, as it was
before, and what changed only.

    before      the way of the version before, kept here: tensor by tensor, write, SHA-256; fsync; then the engine
                hashes the file
    full        the learner's threads hash and write chunks while tensors are gathered; the node hashes the file with
                XXH3-128
    delta       the learner compares with the last push and writes what changed; the node patches its copy and hashes
                all of it
    broadcast   vllm.sync_backend = gloo: to a process beside this one, over loopback; it hashes what arrives
                (weights_broadcast.py)

Between two pushes: one step of torch's AdamW at lr 1e-6 from fp32 masters, with a random gradient in every weight. That
is the worst case of such a step: the first one moves every weight by the whole learning rate. Rounds are interleaved;
times are medians of seconds, from the first tensor until the node has a proved file, the first delta's
(`delta_first_s`) also by itself. Two settings, in each round:

    one node        files in /dev/shm, where the node's copy is the pushed file itself
    several nodes   files on a disk, written through to it, and read from it and not from memory: what a file system
                    that nodes share costs at the disk's speed. A push finds the disk still, as one that comes a
                    learner's step after the last. The node's copy is in /dev/shm. `before` is left out: its threads
                    waited for the disk like those of `full`.

    python -m benchmarks.weights
    python -m benchmarks.weights --quick

The last line is one JSON object. Not in it: an engine's loading of the proved file, the same after all three."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.command import command_parser, end_as_at_ctrl_c
from openrlhf_tir.cluster.process_watch import peak_rss_bytes

from .weights_broadcast import broadcasts

SHAPES = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
}
QUICK = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
}
STD, LR = 0.02, 1e-6


class Policy:
    """bf16 weights in a module, and a step between two versions of them, which is made once: fp32 masters and moments
    exist for one tensor at a time, and what the step changed of its bits is kept."""

    def __init__(self, shapes: dict[str, int]) -> None:
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        with torch.device("meta"):
            module = Qwen2ForCausalLM(Qwen2Config(**shapes, tie_word_embeddings=True))
        self.module = module.to(torch.bfloat16).to_empty(device="cpu")
        self.module.tie_weights()
        self.flips = [self._step_of(p, i) for i, p in enumerate(self.module.parameters())]

    def _step_of(self, p: Any, seed: int) -> tuple[Any, Any]:
        """`p` gets its weights. -> which of them the step changes, and which bits of each."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        master = torch.nn.Parameter(torch.empty(p.shape).normal_(0, STD, generator=generator))
        p.data.copy_(master.detach())
        master.grad = torch.empty(p.shape).normal_(0, 1, generator=generator)
        torch.optim.AdamW([master], lr=LR, betas=(0.9, 0.95), weight_decay=0.0).step()
        flips = bits(p) ^ bits(master.detach().bfloat16())
        at = flips.nonzero().flatten().int()
        return at, flips[at]

    def step(self) -> None:
        """From the weights before the step to those after it, or back."""
        for p, (at, flips) in zip(self.module.parameters(), self.flips, strict=True):
            bits(p)[at] ^= flips

    def digest(self) -> str:
        from openrlhf_tir.learner.lora import hf_weights
        from openrlhf_tir.weights.digest import tensors_digest

        return tensors_digest((w.name, w.value()) for w in hf_weights(self.module))


def write_before(module: Any, path: Path) -> str:
    """How a push was written: one thread, tensor by tensor, each written and then hashed."""
    import torch

    from openrlhf_tir.learner.lora import hf_weights
    from openrlhf_tir.learner.weights_file import _header

    weights, hashes = hf_weights(module), {}
    with open(path, "wb") as out:
        out.write(_header(weights))
        for weight in weights:
            host = weight.value().cpu().contiguous()
            data = host.flatten().view(torch.uint8).numpy()
            out.write(data)
            hashes[weight.name] = sha_of("BF16", list(host.shape), data)
        out.flush()
        os.fsync(out.fileno())
    return combined(hashes)


def read_before(path: Path) -> str:
    """How an engine proved it: the whole file, one thread, once per engine."""
    import numpy as np

    data = np.memmap(path, np.uint8, mode="r")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + length].tobytes())
    header.pop("__metadata__")
    start = 8 + length
    return combined(
        {
            name: sha_of(h["dtype"], h["shape"], data[start + h["data_offsets"][0] : start + h["data_offsets"][1]])
            for name, h in header.items()
        }
    )


def sha_of(dtype: str, shape: list[int], data: Any) -> str:
    h = hashlib.sha256(f"{dtype} {shape} ".encode())
    h.update(data)
    return h.hexdigest()


def combined(hashes: dict[str, str]) -> str:
    return hashlib.sha256("".join(f"{name} {h}\n" for name, h in sorted(hashes.items())).encode()).hexdigest()


class Site:
    """Where files are pushed to, and the node that takes them. `through`: to the disk and from it, as between nodes."""

    def __init__(self, policy: Policy, directory: Path, memory: Path, *, through: bool) -> None:
        from openrlhf_tir.learner.pushes.last_push import LastPush
        from openrlhf_tir.weights.node_copy import NodeCopy

        self.policy, self.directory, self.through = policy, directory, through
        directory.mkdir()
        self.last, self.plain = LastPush(), NodeCopy(keep=False, root=memory / "plain")
        self.keeping = NodeCopy(keep=True, root=memory)
        self.found: dict[str, list[float]] = {}
        self.exact, self.version = True, 0

    def before(self) -> None:
        def prove(path: Path, announced: str) -> None:
            assert read_before(path) == announced

        self._timed("before", lambda path: write_before(self.policy.module, path), prove, "before.safetensors")

    def full(self) -> None:
        """As without deltas: nobody keeps a copy."""
        from openrlhf_tir.learner.weights_file import write_weights

        def write(path: Path) -> str | None:
            return write_weights(self.policy.module, path, rank=0)

        self._timed("full", write, lambda path, digest: self.plain.full(path, self.version, digest), "full.safetensors")

    def begin(self) -> None:
        """The push that deltas continue; not timed. What it leaves to be compiled is compiled before the next, as
        during a learner's step, which takes longer."""
        from openrlhf_tir.learner.weights_file import write_weights
        from openrlhf_tir.weights.delta import COMPILING

        path = self.directory / "v0.safetensors"
        digest = write_weights(self.policy.module, path, rank=0, last=self.last)
        assert digest is not None
        self.keeping.full(path, 0, digest)
        path.unlink()
        for thread in threading.enumerate():
            if thread.name == COMPILING:
                thread.join()

    def delta(self, name: str) -> None:
        from openrlhf_tir.learner.pushes.delta import write_delta

        self.version += 1

        def write(path: Path) -> Any:
            return write_delta(self.policy.module, path, self.last, base_version=self.version - 1, rank=0)

        def prove(path: Path, changes: Any) -> Path:
            return self.keeping.delta(path, self.version, *changes)

        copy = self._timed(name, write, prove, f"v{self.version}.delta")
        self.exact &= same(self.policy.module, copy)

    def medians(self) -> dict[str, float]:
        return {what: round(median(values), 4) for what, values in self.found.items() if not what.startswith("back")}

    def _timed(self, name: str, write: Callable[[Path], Any], prove: Callable[[Path, Any], Any], file: str) -> Any:
        from openrlhf_tir.weights.push_files import SPARE

        path = self.directory / file
        if self.through:
            os.sync()
        start = time.perf_counter()
        made = write(path)
        written = time.perf_counter() - start
        if self.through:  # no longer in this machine's memory, as if another had written it
            with open(path, "rb") as f:
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        size, start = path.stat().st_size, time.perf_counter()
        proved = prove(path, made)
        seconds = time.perf_counter() - start
        if name == "full":  # as FileTransport does without deltas
            path.replace(self.directory / SPARE)
        else:
            path.unlink()
        for what, value in {
            "write_s": written,
            "prove_s": seconds,
            "s": written + seconds,
            "bytes": float(size),
        }.items():
            self.found.setdefault(f"{name}_{what}", []).append(value)
        return proved


def one_node(site: Site, rounds: int) -> None:
    """The copies that deltas need are made after the full pushes: not everything is in memory at once."""
    for _ in range(rounds):
        site.before()
        site.full()
    site.begin()
    for _ in range(rounds):
        step_and_back(site)


def several_nodes(site: Site, rounds: int) -> None:
    site.begin()
    for _ in range(rounds):
        site.full()
        step_and_back(site)


def step_and_back(site: Site) -> None:
    site.policy.step()
    site.delta("delta")
    site.policy.step()
    site.delta("back")


def bits(tensor: Any) -> Any:
    """A bf16 tensor's own memory, [n] int16."""
    import torch

    return tensor.data.view(torch.int16).flatten()


def same(module: Any, path: Path) -> bool:
    """Whether the file holds the module's bits, tensor by tensor."""
    import torch
    from safetensors import safe_open

    from openrlhf_tir.learner.lora import hf_weights

    weights = hf_weights(module)
    with safe_open(path, framework="pt") as f:
        names = set(f.keys())
        equal = all(torch.equal(f.get_tensor(w.name).view(torch.int16), w.value().view(torch.int16)) for w in weights)
    return equal and names == {w.name for w in weights}


def hash_speed(policy: Policy) -> float:
    """GiB/s of a digest of all weights in memory."""
    n = sum(p.numel() * p.element_size() for p in policy.module.parameters())
    times = []
    for _ in range(3):
        start = time.perf_counter()
        policy.digest()
        times.append(time.perf_counter() - start)
    return n / 2**30 / median(times)


def alone() -> None:
    """One learner rank without a process group."""
    from openrlhf_tir.learner import weights_file

    def agree(fault: OSError | None) -> None:
        if fault:
            raise fault

    weights_file.agree = agree


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--layers",
        type=int,
        default=SHAPES["num_hidden_layers"],
        help="fewer make it shorter: 0.23 G parameters and 0.047 G for each",
    )
    parser.add_argument(
        "--disk",
        type=Path,
        default=None,
        help="a directory on a disk, for the setting of several nodes; the temporary one if not given",
    )
    parser.add_argument("--quick", action="store_true", help="6 million parameters")
    args = parser.parse_args()
    end_as_at_ctrl_c()
    alone()
    policy = Policy(QUICK if args.quick else {**SHAPES, "num_hidden_layers": args.layers})
    out: dict[str, Any] = {"parameters": sum(p.numel() for p in policy.module.parameters()), "rounds": args.rounds}
    memory = Path(tempfile.mkdtemp(prefix="benchmark_weights_", dir="/dev/shm"))
    disk = Path(tempfile.mkdtemp(prefix="benchmark_weights_", dir=args.disk))
    try:
        medians, exact = {}, True
        for rounds, directory in ((one_node, memory), (several_nodes, disk)):
            site = Site(policy, directory / "push", memory, through=directory is disk)
            rounds(site, args.rounds)
            site.keeping.remove()
            medians[rounds.__name__], exact = site.medians(), exact and site.exact
            medians[rounds.__name__]["delta_first_s"] = round(site.found["delta_s"][0], 4)
            print(rounds.__name__, json.dumps(site.found), flush=True)
            del site
        digest_speed = hash_speed(policy)
        by_broadcast, equal = broadcasts(policy.module, args.rounds)
        print("broadcast", json.dumps(by_broadcast), flush=True)
    finally:
        for directory in (memory, disk):
            with suppress(OSError):
                shutil.rmtree(directory)
    one, several = medians["one_node"], medians["several_nodes"]
    out |= {
        "file_stall_speedup": round(one["before_s"] / one["full_s"], 2),
        "delta_bytes_ratio": round(several["delta_bytes"] / several["full_bytes"], 4),
        "delta_seconds_ratio": round(several["delta_s"] / several["full_s"], 3),
        "delta_seconds_ratio_first": round(several["delta_first_s"] / several["full_s"], 3),
        "delta_seconds_ratio_one_node": round(one["delta_s"] / one["full_s"], 3),
        "delta_exact": exact,
        "broadcast_stall_s": round(median(by_broadcast), 3),
        "broadcast_exact": equal,
        "digest_gib_per_s": round(digest_speed, 2),
        "peak_gib": round((peak_rss_bytes(os.getpid()) or 0) / 2**30, 2),
        "median_s": medians,
    }
    print(json.dumps(out))


if __name__ == "__main__":
    main()
