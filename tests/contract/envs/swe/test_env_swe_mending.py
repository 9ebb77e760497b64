"""The lesson `mending` in the real environment: its sessions say what the lesson has them say, and real hidden tests
judge what it teaches."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from env_servers.env import Env
from env_servers.swe import examine
from env_servers.swe.env import LIMITS, SweEnv
from env_servers.swe.start import new_sandbox, shared
from miniatures.reproduce.methods import skyrl
from miniatures.toy.lessons import mending
from miniatures.toy.tokenizer import encode
from openrlhf_tir.protocol import StepReply
from tests.step_reply import reply_of
from tests.unit.miniatures.toy.mending_episode import episode_of, played

pytestmark = [
    pytest.mark.extended,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]


@pytest.fixture(autouse=True)
def one_copy(monkeypatch):
    """One falsified copy of the tests per judgement; how many it takes is tried in test_swe_patches.py."""
    monkeypatch.setattr(examine, "MAX_COPIES", 1)


class OfRow:
    """A trajectory's session, without HTTP."""

    def __init__(self, env: Env, meta: dict) -> None:
        self.env, self.meta = env, meta

    async def reset(self) -> str:
        return await self.env.reset(self.meta, 0)

    async def step(self, action: str, *, step_id: int) -> StepReply:
        return reply_of(await self.env.step(action, 60), step_id)


async def test_demonstrations_match_real_sessions_and_pass_the_hidden_tests():
    sandbox = new_sandbox(LIMITS, evaluations=1)
    ours = shared(
        sandbox, evaluations=1, command_s=60.0, test_s=60.0, max_turns=9, mirror=None, sessions=4, memory=2 << 30
    )
    try:
        for row in mending.rows(4, "train", 42):
            right = mending.Formula(row["prompt"][-5], int(row["prompt"][-4:-1]))
            (wrong,) = [f for f in _formulas() if f.file == row["meta"]["files"]["f.py"]]
            guess = wrong._replace(number=next(n for n in (201, 202, 203) if n not in (right.number, wrong.number)))
            for trace, verdict in (
                (mending.mending(wrong, right), ("resolved", 1.0, True)),
                (mending.guessing(guess, right), ("patch_empty", 0.0, False)),
            ):
                env = SweEnv(ours)
                try:
                    episode = await played(trace, right.question, OfRow(env, row["meta"]))
                finally:
                    await env.close()
                last = episode.calls[-1]
                assert (last.signals["evaluation"], last.reward, last.signals["viewed_first"]) == verdict and last.done
                assert [call.outcome for call in episode.calls] == (["ok"] * 3 if verdict[2] else ["model_error", "ok"])
    finally:
        await asyncio.shield(sandbox.close())


async def test_a_guess_a_view_and_an_edit_fit_into_the_miniatures_lengths_and_are_judged():
    row = mending.rows(1, "train", 42)[0]
    right = mending.Formula(row["prompt"][-5], int(row["prompt"][-4:-1]))
    (wrong,) = [f for f in _formulas() if f.file == row["meta"]["files"]["f.py"]]
    guess = wrong._replace(number=next(n for n in (201, 202, 203) if n not in (right.number, wrong.number)))
    calls = [mending.edit(guess.text, right.text), mending.READ, mending.edit(wrong.text, right.text)]
    sandbox = new_sandbox(LIMITS, evaluations=1)
    env = SweEnv(
        shared(
            sandbox, evaluations=1, command_s=60.0, test_s=60.0, max_turns=9, mirror=None, sessions=4, memory=2 << 30
        )
    )
    try:
        episode = await episode_of(encode("".join(calls)), right.question, OfRow(env, row["meta"]))
    finally:
        await env.close()
        await sandbox.close()
    last, most = episode.calls[-1], int(skyrl.LENGTHS[skyrl.LENGTHS.index("--rollout.max_new_tokens") + 1])
    assert last.truncated and (last.reward, last.signals["viewed_first"]) == (1.0, False)
    assert sum(len(segment.token_ids) for segment in episode.segments[:-1]) <= most, "the last call is not cut"


async def test_a_wrong_edit_of_a_whole_repository_fails_its_hidden_tests_which_are_not_in_it():
    sandbox = new_sandbox(LIMITS, evaluations=1)
    ours = shared(
        sandbox, evaluations=1, command_s=60.0, test_s=60.0, max_turns=9, mirror=None, sessions=4, memory=2 << 30
    )
    env = SweEnv(ours)
    try:
        await env.reset(mending.rows(1, "train", 42)[0]["meta"], 0)
        listed = await env.step(
            '[{"name": "execute_bash", "arguments": {"command": "ls; sed -i s/return/return\\\\ 1+/ f.py"}}]', 60
        )
        last = await env.step('[{"name": "finish", "arguments": {}}]', 60)
    finally:
        await env.close()
        await sandbox.close()
    assert listed.observation.startswith("f.py\n[Current")
    assert (last.reward, last.signals["evaluation"], last.signals["tests_total"], last.signals["viewed_first"]) == (
        0.0,
        "tests_failed",
        1,
        None,
    )


def _formulas() -> list[mending.Formula]:
    return [mending.Formula(sign, number) for sign in mending.OPERATORS for number in mending.NUMBERS]
