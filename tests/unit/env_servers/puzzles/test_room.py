"""The room: whose fault it is that a text was not scored. An answer's is a score of 0 with a reason; everything else is
an error and never a score."""

from __future__ import annotations

import json
import signal

import pytest

from env_servers.puzzles.env import PuzzlesEnv
from env_servers.puzzles.gym import Task
from env_servers.puzzles.room import Room
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import Execution, Sandbox, SandboxError
from openrlhf_tir.errors import VerifierError

TASK = Task("chain_sum", 1)


def ended(reply: dict | None = None, code: int | None = 0, killed=None) -> Execution:
    return Execution(json.dumps(reply).encode() if reply else b"", b"it said so", code, 0.1, killed=killed)


class PlayedSandbox(Sandbox):
    """Ends each call as the next of `ends` says."""

    isolation = "played"

    def __init__(self, *ends: Execution | Exception) -> None:
        self.limits, self.ends, self.requests = Limits(code_timeout_s=30.0), list(ends), []

    async def execute(self, snippet, limits):
        self.requests.append(json.loads(snippet.files["request.json"]))
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def scored(*ends: Execution | Exception):
    return Room(PlayedSandbox(*ends), 2.0).score(TASK, "entry", "42")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (ended(code=-signal.SIGPROF), "time_limit"),
        (ended(code=-signal.SIGXCPU), "time_limit"),
        (ended(code=None, killed="memory"), "memory"),
        (ended(code=None, killed="output_flood"), "output_flood"),
        (ended({"score": 0.0, "error": "RecursionError"}), "RecursionError"),
    ],
)
async def test_a_scorer_failure_caused_by_the_answer_scores_0_with_the_reason(end, error):
    assert await scored(end) == (0.0, error)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (
            ended(code=None, killed="time_limit"),
            "--score-deadline 30 s.* 2 s .*--workers",
        ),
        (ended(code=-signal.SIGKILL), r"\(.* -9, "),
        (ended(code=1), "it said so"),
        (ended(code=0), r"\(.* 0, "),
        (ended({"fault": "ImportError: No module named 'zss'"}), "zss.*reasoning-gym"),
    ],
)
async def test_a_scorer_failure_caused_by_the_machine_is_an_error(end, says):
    with pytest.raises(VerifierError, match=says):
        await scored(end)


async def test_a_failed_sandbox_is_an_error_and_not_a_score():
    with pytest.raises(SandboxError):
        await scored(SandboxError("no new slot"))


async def test_a_crash_is_the_answers_fault_only_if_another_answer_can_be_scored():
    crash = ended(code=-signal.SIGSEGV)
    assert await scored(crash, ended({"score": 0.0, "error": None})) == (0.0, "crash")
    with pytest.raises(VerifierError, match=f" {TASK.name} .* 11, "):
        await scored(crash, crash)


async def test_a_puzzle_too_expensive_to_generate_is_the_tasks_fault():
    for end, says in (
        (ended(code=-signal.SIGPROF), f"'{TASK.name}' .* 20 s "),
        (ended(code=None, killed="memory"), f"'{TASK.name}' (?!.* 20 s )"),
        (ended({"refused": "level is -1"}), "level is -1"),
    ):
        with pytest.raises(ValueError, match=says):
            await Room(PlayedSandbox(end), 2.0).make(TASK)
    with pytest.raises(VerifierError):
        await Room(PlayedSandbox(ended(code=None, killed="time_limit")), 2.0).make(TASK)


async def test_answers_can_be_retried_until_the_tries_are_used_up():
    made_puzzle = ended({"question": "1 + 1?", "entry": "e", "solution": ""})
    wrong_answer, broken = ended({"score": 0.0, "error": None}), ended(code=-signal.SIGPROF)
    partly = ended({"score": 0.3, "error": None})
    env = PuzzlesEnv(Room(PlayedSandbox(made_puzzle, wrong_answer, broken, partly), 2.0))
    assert await env.reset({"puzzle": "chain_sum", "tries": 3}, 5) == "1 + 1?"
    first, second, last = [await env.step(f" {i} ", 5.0) for i in range(3)]
    assert (first.outcome, first.reward, first.done) == ("ok", None, False) and first.observation == "Wrong."
    assert (second.outcome, second.signals["error_type"], second.done) == ("model_error", "time_limit", False)
    assert (last.reward, last.done, last.signals["tries"], last.signals["solved"]) == (0.3, True, 3, False)
    assert env._room.sandbox.requests[0]["task"]["seed"] == 5 and env._room.sandbox.requests[1]["answer"] == "0"


async def test_a_fault_while_scoring_uses_up_no_try():
    made_puzzle, fault = ended({"question": "?", "entry": "e", "solution": ""}), ended(code=-signal.SIGKILL)
    right = ended({"score": 1.0, "error": None})
    env = PuzzlesEnv(Room(PlayedSandbox(made_puzzle, fault, right), 2.0))
    await env.reset({"puzzle": "chain_sum"}, 0)
    with pytest.raises(VerifierError):
        await env.step("2", 5.0)
    end = await env.step("2", 5.0)
    assert (end.reward, end.signals["tries"], end.observation) == (1.0, 1, "Correct.")
