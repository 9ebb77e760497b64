"""Plain evaluation: an exported toy model under nothing but transformers, as a check on the stack that trained it.

    python -m benchmarks.plain_eval runs/quickstart [--samples N]

Own sampling loop (no cache, no vLLM, no Ray, no sandbox server): sample at temperature 1 until "</answer>" or the
budget; after a closing fence run the code with `python -I` and append the block as the ZeroTIR protocol writes it. Last
line: one JSON object, beside the figures that the run itself reported. Runs model-written code without isolation: for
the toy model only."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

MAX_NEW_TOKENS, MAX_CALLS, BATCH = 140, 2, 64
BOXED = re.compile(r"<answer>\\boxed\{([^{}]*)\}</answer>$")
CODE = re.compile(r"```python\n(.*)\n?```$", re.DOTALL)


def run_code(code: str) -> str:
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=10)
    return done.stdout if done.returncode == 0 else done.stderr


class Sample:
    def __init__(self, row: dict) -> None:
        self.label, self.prompt, self.text = row["label"], f"User: {row['prompt']}\nAssistant:", ""
        self.calls, self.done = 0, False

    def extend(self, char: str) -> None:
        self.text += char
        if self.text.endswith(("</answer>", "User:", "Human:", "Assistant:")) or len(self.text) >= MAX_NEW_TOKENS:
            self.done = True
        elif (
            self.text.endswith("```")
            and self.calls < MAX_CALLS
            and (code := CODE.search(self.text.rpartition("```output")[2]))
        ):
            self.calls += 1
            self.text += f"\n```output\n{run_code(code.group(1))}\n```\n\n\n"

    @property
    def correct(self) -> bool:
        found = BOXED.search(self.text)
        return found is not None and found.group(1) == self.label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--samples", type=int, default=256, help="problems, one sample each [256]")
    args = parser.parse_args()
    rows = [json.loads(line) for line in (args.run_dir / "data/test.jsonl").read_text().splitlines()][: args.samples]
    samples = [Sample(r) for r in rows]
    answer(samples, args.run_dir / "model")
    reported = json.loads((args.run_dir / "summary.json").read_text())["trained"]
    n = len(samples)
    accuracy, code = sum(s.correct for s in samples) / n, sum(s.calls > 0 for s in samples) / n
    print(json.dumps({"plain_accuracy": accuracy, "plain_code_ratio": code, "samples": n, "reported": reported}))


def answer(samples: list[Sample], model_dir: Path) -> None:
    """All of them to their ends."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    while active := [s for s in samples if not s.done]:
        for start in range(0, len(active), BATCH):
            batch = active[start : start + BATCH]
            ids = [tokenizer(s.prompt + s.text, add_special_tokens=False)["input_ids"] for s in batch]
            width = max(map(len, ids))
            padded = torch.tensor([i + [tokenizer.pad_token_id] * (width - len(i)) for i in ids])
            last = torch.tensor([len(i) - 1 for i in ids])
            hidden = model.model(padded).last_hidden_state[torch.arange(len(ids)), last]
            tokens = torch.multinomial(model.lm_head(hidden).softmax(-1), 1)[:, 0].tolist()
            for s, token in zip(batch, tokens, strict=True):
                if token == tokenizer.eos_token_id:
                    s.done = True
                else:
                    s.extend(tokenizer.decode([token]))


if __name__ == "__main__":
    main()
