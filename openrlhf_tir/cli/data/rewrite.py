"""The `data rewrite` command: have a model behind a server rewrite worked solutions as ReTool's demonstrations with
code."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...config.numbers import real, whole
from .rows import MAX_LISTED, add_row_arguments, counted, counting, data_of, files_of, tell

EXAMPLES = """examples:
  openrlhf-tir data rewrite worked.jsonl --url http://127.0.0.1:8000/v1 --model deepseek-r1 --out retool_sft.jsonl
  openrlhf-tir data rewrite worked.jsonl --url URL --model M --judge-url URL --judge-model J --out retool_sft.jsonl
  openrlhf-tir sft --recipe retool_sft_32b --sft.dataset retool_sft.jsonl
A row has a problem, a label, and a solution in words with its answer in a box. If the server requires a token, put it
into the environment variable that --token-env names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    add_row_arguments(parser)
    add = parser.add_argument
    add("--solution-key", default="solution", metavar="COLUMN", help="column of the solution in words [solution]")
    add(
        "--url", required=True, metavar="URL", help="OpenAI-compatible server of the model that rewrites, http://.../v1"
    )
    add("--model", required=True, metavar="NAME", help="the model that rewrites")
    add("--judge-url", metavar="URL", help="server of the second verifier [the rule alone verifies]")
    add("--judge-model", metavar="NAME", help="the second verifier")
    add("--token-env", default="OPENAI_API_KEY", metavar="NAME", help="environment variable of the token [%(default)s]")
    add("--out", type=Path, required=True, metavar="FILE", help="file to write: .jsonl, .json or .parquet")
    add(
        "--replies", type=Path, metavar="FILE", help="keep the models' replies: a second run continues from them [none]"
    )
    add("--workers", type=whole(at_least=1), default=16, metavar="N", help="rows rewritten at once [16]")
    add(
        "--max-tokens",
        type=whole(at_least=1),
        default=16384,
        metavar="N",
        help="tokens of a rewritten solution [16384]",
    )
    add(
        "--timeout",
        type=real(above=0),
        default=1800.0,
        metavar="S",
        help="deadline of one reply, retries included [1800]",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ...data.bad_rows import BadRows
    from ...data.prepare.code_traces import Replies, demonstrations
    from ...data.prepare.files import check_apart, check_target, write_rows
    from ...errors import ConfigError, DataError
    from ...rewards.checking.model_verdict import chat

    if bool(args.judge_url) != bool(args.judge_model):
        raise ConfigError("--judge-url and --judge-model go together. Give both, or neither.")
    input_files = files_of(args)
    check_target(args.out, input_files)
    if args.replies:
        check_target(args.replies, input_files, "--replies", suffixes=())
        check_apart(args.out, args.replies, "--replies")
    bad = BadRows(args.on_bad_row, MAX_LISTED)
    left_out = Counter[str]()
    replies = Replies(args.replies)

    def asker(url: str, model: str, tokens: int):
        def ask(prompt: str) -> str:
            return chat(url, model, args.token_env, prompt, args.timeout, tokens, "the URL and the model", "--timeout")

        return replies.of(f"{url} {model}", ask)

    rewrite = asker(args.url, args.model, args.max_tokens)
    judge = asker(args.judge_url, args.judge_model, args.max_tokens) if args.judge_url else None

    def check(count: int) -> None:
        if not count:
            reasons = ", ".join(f"{reason} {number}" for reason, number in left_out.most_common()) or "no rows"
            raise DataError(
                f"{', '.join(args.sources)}: no demonstration is left ({reasons}). Give solutions that end in a box."
            )

    with counting("rewrite") as tick:
        rows = demonstrations(_worked(args, bad, tick), rewrite, judge, args.workers, left_out)
        count = write_rows(args.out, counted(rows, at_end=check))
    print(f"{count} demonstrations in {args.out}")
    for reason, rows_left_out in left_out.most_common():
        print(f"  {rows_left_out} left out: {reason}")
    tell(bad)
    return 0


def _worked(args: argparse.Namespace, bad: Any, tick: Any) -> Iterator[Any]:
    """Yield the rows with their solutions; a row without one is a bad row."""
    from ...data.fields import kind
    from ...data.prepare.code_traces import Worked
    from ...data.prompts import rows_and_problems
    from ...errors import DataError

    for row, problem in rows_and_problems(data_of(args), bad):
        tick()
        solution = row.get(args.solution_key)
        question = problem.input if isinstance(problem.input, str) else problem.input[-1]["content"]
        if isinstance(solution, str) and solution.strip():
            yield Worked(problem.where, question, solution, problem.label)
        else:
            bad(
                DataError(
                    f"{problem.where}: the solution in column {args.solution_key!r} is {kind(solution)}, no text. Name"
                    " its column with --solution-key, or correct the row."
                )
            )
