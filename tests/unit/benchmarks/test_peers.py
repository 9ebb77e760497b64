"""benchmarks/peers: what a system wrote -> its line of the table; what keeps one from running -> a sentence."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import torch

from benchmarks.peers import __main__ as program
from benchmarks.peers import openrlhf_own, ours, plain, systems, venvs
from benchmarks.peers.__main__ import names_of, of_recipe, smollm2_of
from benchmarks.peers.chat_rollout import Batched, Chats
from benchmarks.peers.cpu import CpuTrace, at, name_of, spent
from benchmarks.peers.evaluate import first_near
from benchmarks.peers.figures import as_json, figures, markdown, medians, over_trl
from benchmarks.peers.openrlhf_cpu import Worker
from benchmarks.peers.reward import correct
from benchmarks.peers.rollout import Sample, sample
from benchmarks.peers.sandbox import Client
from benchmarks.peers.systems import Ran
from benchmarks.peers.work import STEPS, Recorder, Step, Work, clear, kept, saved, say, steps_of, with_variance
from miniatures import numbers
from miniatures.toy.tokenizer import EOS_ID, PAD_ID, encode, save_tokenizer
from openrlhf_tir.config.settings import load
from openrlhf_tir.types import Sampling

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
TICKS_S = 0.05
"""/proc tells hundredths, of user and system time, of either process."""
NO_WHEEL = "trl cannot be installed here: no wheel"
CPU = [(990.0, {"engine": 5.0}), (1000.0, {"engine": 15.0, "rank": 5.0}), (1010.0, {"engine": 25.0, "rank": 10.0})]
"""Seconds since the epoch, CPU seconds: one and a half cores."""


def work(out: Path, **given) -> Work:
    return Work(
        base="base", data="data", out=str(out), steps=4, save_every=2, seed=1, env_python=sys.executable, **given
    )


def step(number: int, seconds: float, sampled: int = 100, trained: int = 80, **phases: float) -> Step:
    return Step(number, seconds, sampled, trained, 0.5, phases)


def test_seconds_to_85_are_those_of_the_first_weights_that_reach_it():
    found = figures(
        [step(1, 2.0), step(2, 4.0), step(3, 6.0), step(4, 10.0)], {2: 0.84, 4: 0.85}, Ran(1.5, None, CPU), 1000.0
    )
    assert found.seconds_to_bar == 10.0 and found.why is None
    assert (found.cpu_s, found.cpu_s_to_bar) == (15.0, 15.0)
    assert (found.sampled_tokens_per_s, found.trained_tokens_per_s, found.accuracy) == (40.0, 32.0, 0.85)


def test_cpu_seconds_lie_on_lines_between_the_looks():
    assert [sum(at(CPU, when).values()) for when in (0.0, 995.0, 1000.0, 1002.0, 2000.0)] == [
        5.0,
        12.5,
        20.0,
        23.0,
        35.0,
    ]
    assert spent(CPU, 1000.0, 1004.0) == {"engine": 4.0, "rank": 2.0}
    assert spent([], 0.0, 1.0) == {}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["/usr/bin/python", "-m", "env_servers.python_tir", "--workers", "2"], "env_servers.python_tir"),
        (["ray::LearnerRank.step"], "ray::LearnerRank"),
        (["ray::IDLE"], "ray::IDLE"),
        (["python", "-B", "-c", "from multiprocessing.forkserver import main; main(3)"], "multiprocessing.forkserver"),
        (["python", "-u", "/x/ray/dashboard/dashboard.py", "--host=127.0.0.1"], "dashboard.py"),
        (["/x/raylet/raylet --raylet_socket_name=/tmp/ray"], "raylet"),
    ],
)
def test_processes_are_told_apart_by_what_they_run(words, name):
    assert name_of(words) == name


def test_the_cpu_time_of_a_child_counts():
    burn = "import time; x = sum(range(10**6)); print(time.process_time(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        own = float(process.stdout.readline())
        trace = CpuTrace(process.pid)
        trace.look()
        process.communicate("\n")
    assert len(trace.known) == 2
    assert sum(trace.points[-1][1].values()) > own - TICKS_S


def test_a_system_that_never_gets_there_has_no_seconds_but_a_sentence():
    found = figures([step(1, 2.0), step(2, 4.0)], {2: 0.2}, Ran(None, None), 1000.0)
    assert found.seconds_to_bar is None
    assert re.search(r" 85% .* 1 .* 20\.0% ", found.why)


def test_a_system_that_did_not_run_has_nulls_and_its_sentence():
    found = {
        "ours": figures([step(1, 2.0, generate=1.0)], {1: 0.9}, Ran(2.0, None, CPU), 1000.0),
        "trl": figures([], {}, Ran(None, NO_WHEEL), None),
    }
    line = json.loads(json.dumps(as_json(found)))
    assert line["sampled_tokens_per_s"] == {"ours": 50.0, "trl": None}
    assert line["seconds_to_85"] == {"ours": 2.0, "trl": None}
    assert line["cpu_s_by_process"] == {"ours": {"engine": 2.0, "rank": 1.0}, "trl": None}
    assert line["why"] == {"trl": NO_WHEEL}
    table = markdown(found).splitlines()
    assert table[2] == "| ours | 1 | 50 | 40 | - | 2.0 | 1 | 90.0% | 2.0 | 3.0 | 3.0 | 2.00 | generate 50% |"
    assert table[3] == "| trl | 0 | - | - | - | - | - | - | - | - | - | - |  |"
    assert table[-1] == f"- trl: {NO_WHEEL}"


def test_of_several_runs_the_medians_are_told_and_one_that_never_gets_there_took_longest():
    def of(reached: int | None):
        steps = [step(1, 2.0), step(2, 4.0), step(3, 5.0 + (reached or 0))]
        return figures(steps, {1: 0.2, 3: 0.2} | ({reached: 0.9} if reached else {}), Ran(1.0, None, CPU), 1000.0)

    found = medians([of(3), of(None), of(1)])
    assert (found.seconds_to_bar, found.updates_to_bar, found.seconds) == (8.0, 3, 6.0)
    assert found.seconds_to_bar_by_run == (8.0, None, 2.0)
    assert re.search(r" 85% .* 2 .* 20\.0% ", found.why)
    assert markdown({"ours": found}).splitlines()[2].split(" | ")[5:7] == ["8.0 (2.0 to -)", "3"]
    assert medians([of(None), of(1), of(None)]).seconds_to_bar is None
    assert medians([of(2)]) == of(2)


def test_a_run_without_an_update_stands_for_no_other():
    never = figures([], {}, Ran(None, NO_WHEEL), None)
    whole = figures([step(1, 2.0), step(2, 4.0)], {2: 0.9}, Ran(1.0, None, CPU), 1000.0)
    found = medians([never, whole])
    assert (found.updates, found.curve, found.why) == (2, ((4.0, 0.9),), NO_WHEEL)
    assert medians([never, never]).why == NO_WHEEL


def test_a_run_whose_evaluation_failed_is_none_that_missed_the_bar(tmp_path, monkeypatch):
    given = work(clear(tmp_path / "x"))
    Ran(1.0, None).write(Path(given.out))
    steps = [step(1, 2.0), step(2, 4.0)]
    monkeypatch.setattr(program, "steps_of", lambda _: steps)
    monkeypatch.setattr(program, "began", lambda _: 1000.0)
    monkeypatch.setattr(program, "kept", lambda _: [2])
    monkeypatch.setattr(program, "evaluate", lambda *_: "Its evaluation ended with 1.")
    args = SimpleNamespace(evaluate=True, no_eval=False, eval_samples=1)
    failed = program.run("ours", given, args, program.Progress(disable=True))
    reached = figures(steps, {2: 0.9}, Ran(1.0, None), 1000.0)
    found = medians([failed, reached, failed])
    assert (found.seconds_to_bar, found.updates_to_bar, found.why) == (4.0, 2, "Its evaluation ended with 1.")
    assert medians([failed]) == failed and markdown({"ours": failed}).splitlines()[2].split(" | ")[5] == "-"


def test_pips_last_words_are_the_sentence_of_what_cannot_be_installed():
    with pytest.raises(venvs.Skipped, match=r"^trl .*: ERROR: no matching distribution$"):
        venvs._said(
            "trl",
            [
                sys.executable,
                "-c",
                "print('Collecting'); print('ERROR: no matching distribution'); raise SystemExit(1)",
            ],
        )


@pytest.mark.parametrize(
    ("needs", "cpu"),
    [(["filelock", "sympy>=1.13.3"], True), (["filelock", "nvidia-cublas==13.1; platform_system == 'Linux'"], False)],
)
def test_a_cuda_build_of_torch_is_known_by_what_it_requires(needs, cpu):
    assert venvs.is_cpu_build(json.dumps({"install": [{"metadata": {"name": "torch", "requires_dist": needs}}]})) is cpu


def test_a_venv_that_is_complete_is_used_again(tmp_path):
    home = tmp_path / f"trl-{venvs.zlib.crc32(b'trl==1'):08x}"
    home.mkdir()
    (home / venvs.DONE).touch()
    assert venvs.interpreter(tmp_path, "trl", ("trl==1",)) == home / "bin" / "python"


def test_what_ends_a_system_early_is_told(tmp_path):
    given = work(clear(tmp_path / "x"))
    assert re.search(r" 1 ", systems.why(Path(given.out), given, 1, None))
    (tmp_path / "x" / "output.log").write_text("Traceback\nRuntimeError: no GPU\n\n")
    assert re.search(r" 1 .*: RuntimeError: no GPU$", systems.why(Path(given.out), given, 1, None))
    say(tmp_path / "x", "It wants NCCL.")
    assert systems.why(Path(given.out), given, 1, None) == "It wants NCCL."
    assert re.search(r"^It wants NCCL\. .* 600 s ", systems.why(Path(given.out), given, -9, 600.0))


def test_a_system_that_did_all_updates_is_asked_no_questions(tmp_path):
    given = work(tmp_path)
    recorder = Recorder(tmp_path)
    for number in (1, 2, 3, 4):
        recorder.done(number, 10, 10, 0.5)
    assert systems.why(tmp_path, given, 1, None) is None


def test_a_process_that_fails_is_a_sentence_and_not_an_error(tmp_path):
    ran = systems.start(
        systems.System("no_such_module", "nothing"),
        work(clear(tmp_path / "x")),
        tmp_path,
        60.0,
        lambda done: None,
    )
    assert ran.why is not None and "No module named benchmarks.peers.no_such_module" in ran.why


def test_a_learning_rate_has_no_venv_of_its_own_and_what_is_skipped_can_be_evaluated_later(tmp_path, monkeypatch):
    asked = []

    def cannot(venvs_dir: Path, name: str, requirements: tuple[str, ...]) -> Path:
        asked.append(name)
        raise venvs.Skipped(NO_WHEEL)

    monkeypatch.setattr(systems, "interpreter", cannot)
    given = work(clear(tmp_path / "trl@1e-05"))
    ran = systems.start(systems.SYSTEMS["trl"], given, tmp_path, 1.0, lambda done: None)
    assert (asked, ran.why) == (["trl"], NO_WHEEL)
    assert program.earlier([Path(given.out)]) == [given]


def test_evaluating_what_was_not_trained_names_all_that_is_missing(tmp_path):
    work(tmp_path / "ours").write()
    with pytest.raises(SystemExit, match=r"--evaluate .*ours/ran\.json.*trl/work\.json.*--only"):
        program.earlier([tmp_path / "ours", tmp_path / "trl"])


@pytest.mark.slow
def test_an_evaluation_that_fails_costs_one_system_its_accuracy(tmp_path):
    given = work(clear(tmp_path / "x"), model="no such model")
    given.write()
    (tmp_path / "x" / "accuracy.json").write_text('{"2": 0.99}')
    assert re.search(r"ended with 1: .*Error.*evaluation\.log", program.evaluate(given, 1) or "")
    assert not (tmp_path / "x" / "accuracy.json").exists()


def test_what_an_evaluation_started_ends_with_it(tmp_path, monkeypatch):
    class Stopped(Exception):
        """As the handler of a signal raises it."""

    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    wait = process.wait

    def stopped(timeout: float | None = None) -> int:
        if timeout is None:
            raise Stopped
        return wait(timeout)

    monkeypatch.setattr(process, "wait", stopped)
    begun = {}

    def popen(words: list[str], **given: object) -> subprocess.Popen:
        begun.update(given)
        return process

    monkeypatch.setattr(program.subprocess, "Popen", popen)
    with pytest.raises(Stopped):
        program.evaluate(work(clear(tmp_path / "x")), 1)
    assert begun["start_new_session"] and process.returncode == -15


@pytest.mark.long
def test_what_a_variant_of_ours_is_told_reaches_the_training_command(tmp_path):
    misspelt = replace(systems.SYSTEMS["ours_one_rank"], words=("--actor.num_gpu", "1"))
    systems.start(misspelt, work(clear(tmp_path / "x")), tmp_path, 600.0, lambda done: None)
    assert "'actor.num_gpu'" in (tmp_path / "x/output.log").read_text()


def test_every_variant_of_ours_is_the_recipe_with_what_it_says():
    def of(name: str):
        words = iter(systems.SYSTEMS[name].words)
        return load(
            "quickstart_cpu", {flag.removeprefix("--"): value for flag, value in zip(words, words, strict=True)}
        )

    recipe, one, on_policy, dr_grpo = map(of, ("ours", "ours_one_rank", "ours_on_policy", "ours_dr_grpo"))
    assert (recipe.actor.world_size, recipe.pipeline.requested_staleness) == (2, 1)
    assert {c.actor.world_size for c in (one, on_policy, dr_grpo)} == {1}
    assert (on_policy.pipeline.mode, on_policy.pipeline.requested_staleness, one.pipeline.requested_staleness) == (
        "sync",
        0,
        1,
    )
    assert dr_grpo.algo.advantage.estimator == "dr_grpo"


def test_weights_from_before_the_first_batch_near_the_bar_are_not_evaluated():
    rewards = (0.3, 0.69, 0.7, 0.6, 0.9)
    steps = [replace(step(i, float(i)), reward=r) for i, r in enumerate(rewards, 1)]
    assert first_near(steps, 0.85) == 3
    assert first_near(steps[:2], 0.85) == 3
    assert first_near(steps, 0.8) == 2


def test_a_half_written_line_is_no_step(tmp_path):
    Recorder(tmp_path).done(1, 10, 9, 0.25)
    with (tmp_path / STEPS).open("a") as file:
        file.write('{"step": 2, "seco')
    assert [(s.step, s.sampled, s.trained, s.reward) for s in steps_of(tmp_path)] == [(1, 10, 9, 0.25)]


def test_progress_is_told_of_peers_and_of_ours(tmp_path):
    assert systems.updates_so_far(tmp_path) == 0
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(
        '{"step": 0, "eval/accuracy": 0.3}\n{"step": 1, "wall_s": 2.0}\n{"step": 2, "wa'
    )
    assert systems.updates_so_far(tmp_path) == 1
    recorder = Recorder(tmp_path)
    for number in (1, 2, 3):
        recorder.done(number, 10, 9, 0.25)
    assert systems.updates_so_far(tmp_path) == 3


def test_weights_count_once_their_config_is_there(tmp_path):
    for number in (10, 2):
        saved(tmp_path, number).mkdir()
    assert kept(tmp_path) == {}
    for number in (10, 2):
        (saved(tmp_path, number) / "config.json").touch()
    assert list(kept(tmp_path)) == [2, 10]


def test_work_is_read_as_it_was_written(tmp_path):
    given = work(tmp_path / "x", calls=0)
    assert Work.read(given.write()) == given
    # every second, and the last
    assert [replace(given, steps=3).due(n) is not None for n in (1, 2, 3)] == [False, True, True]


def test_the_learning_rate_falls_to_a_tenth_at_the_last_update(tmp_path):
    assert [round(work(tmp_path).lr_factor(n), 3) for n in (0, 1, 2, 3)] == [1.0, 0.7, 0.4, 0.1]


def test_ours_is_timed_from_the_beginning_of_its_first_step_and_counts_what_it_filtered_as_sampled():
    metrics = [
        {"step": 0, "time": 90.0, "eval/accuracy": 0.3},
        {
            "step": 1,
            "time": 103.0,
            "wall_s": 3.0,
            "trained_tokens": 60.0,
            "reward_mean": 0.5,
            "step_s": 1.0,
            "gate_wait_s": 0.0,
            "selection/env/python_tir/rolled": 9.0,
            "selection/env/python_tir/trained": 8.0,
        },
        {"step": 2, "time": 105.0, "wall_s": 2.0, "trained_tokens": 50.0, "reward_mean": 0.6, "step_s": 1.5},
    ]
    model, env = {"source": "model", "tokens": 30}, {"source": "env", "tokens": 99}
    trajectories = [
        {"update": 0, "runs": [model, env, model]},
        {"update": 1, "runs": [model]},
        {"update": 1, "runs": [model]},
    ]
    assert ours.steps(metrics, trajectories, 4) == [
        Step(1, 3.0, 60, 60, 0.5, {"update": 1.0}, 32, 32),
        Step(2, 5.0, 60, 50, 0.6, {"update": 1.5}),
    ]


def test_the_plain_loops_advantages_are_whitened_over_tokens():
    # Rewards less their group's mean: .5, -.5, 0, 0, over 1, 3, 2, 2 tokens. Mean -1/8, second moment (1/4 + 3/4) / 8 =
    # 1/8, variance 1/8 - 1/64 = 7/64.
    found = plain.advantages(torch.tensor([1.0, 0.0, 1.0, 1.0]), 2, torch.tensor([1, 3, 2, 2]))
    assert torch.allclose(found, torch.tensor([0.625, -0.375, 0.125, 0.125]) / (7 / 64) ** 0.5)


@pytest.mark.parametrize(
    ("text", "ended", "reward"),
    [
        (r"<answer>\boxed{12}</answer>", True, 1.0),
        (r"<answer>\boxed{12}</answer>", False, 0.0),
        (r"<answer>\boxed{13}</answer>", True, 0.0),
        ("12", True, 0.0),
    ],
)
def test_the_reward_is_the_recipes(text, ended, reward):
    assert correct(text, ended, "12") == reward


class Closing(BaseHTTPRequestHandler):
    """A sandbox that answers each request and then closes the connection without a word, as an idle one does."""

    protocol_version = "HTTP/1.1"
    outcome = "ok"

    def reply(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
        of = {name: asked[name] for name in ("session_id", "step_id") if name in asked}
        text = json.dumps({**of, "outcome": self.outcome, "observation": f"ran {asked.get('action')}"}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = True

    do_POST = do_DELETE = reply

    def log_message(self, *_) -> None:
        """Nobody reads it."""


@pytest.fixture
def port():
    with ThreadingHTTPServer(("127.0.0.1", 0), Closing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_connection_that_the_sandbox_has_closed_is_opened_again(port):
    client = Client(port)
    assert client.run(["1", "2", "3"]) == ["ran 1", "ran 2", "ran 3"]
    client.close()


def test_a_sandbox_that_fails_is_no_reward(port, monkeypatch):
    monkeypatch.setattr(Closing, "outcome", "env_error")
    with pytest.raises(RuntimeError, match="'env_error'"):
        Client(port).run(["1"])


class Scripted:
    """A model whose generate writes the given texts, one batch after another, a token at a time as the stopping
    criteria are asked. `fill`: what it writes behind rows that are done."""

    dtype = torch.bfloat16

    def __init__(self, *batches: list[str], fill: int = PAD_ID) -> None:
        self.batches, self.fill = list(batches), fill
        self.seen: list[list[list[int]]] = []

    def generate(self, *, input_ids, stopping_criteria, max_new_tokens, **_):
        self.seen.append(input_ids.tolist())
        texts = [[*encode(t), EOS_ID] for t in self.batches.pop(0)]
        done = torch.zeros(len(texts), dtype=torch.bool)
        for now in range(max_new_tokens):
            following = [self.fill if done[i] or now >= len(t) else t[now] for i, t in enumerate(texts)]
            input_ids = torch.cat([input_ids, torch.tensor(following)[:, None]], dim=1)
            done |= stopping_criteria(input_ids, None) | torch.tensor([f == EOS_ID for f in following])
            if bool(done.all()):
                break
        return input_ids


def rolled(model: Scripted, rows: int, budget: int = 200, calls: int = 2) -> tuple[list[Sample], list[str]]:
    ran: list[str] = []

    def run(codes):
        ran.extend(codes)
        return ["42\n"] * len(codes)

    return sample(
        model,
        [encode("User: q\nAssistant:")] * rows,
        budget=budget,
        calls=calls,
        run=run,
        spent=lambda phase, since: None,
    ), ran


@pytest.fixture
def chats(tmp_path):
    """SmolLM2's task with a token per character."""
    save_tokenizer(tmp_path)
    return Chats(load("smollm2_cpu", {"rollout.max_new_tokens": 200, "data.max_len": 500}), str(tmp_path))


def chatted(chats: Chats, model: Scripted, port: int):
    (row,) = numbers.training_rows(1, 1, ("Use Python.", "{asked}?"))
    client = Client(port)
    tasks = [chats.task(row | {"label": "7"})] * len(model.batches[0])
    made = chats.roll(model, tasks, client, lambda phase, since: None)
    client.close()
    return made, tasks[0].prompt


async def test_a_generation_that_fails_when_another_conversation_ends_is_an_error_and_no_endless_wait(chats):
    def generate(**_):
        raise MemoryError("no room")

    engine = Batched(SimpleNamespace(generate=generate), chats.codec, 2, lambda phase, since: None)
    waiting = asyncio.ensure_future(engine.generate([5], Sampling(max_tokens=3), request_id="0"))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(engine.ended, None)
    with pytest.raises(MemoryError):
        await asyncio.wait_for(waiting, 60.0)


def test_a_chat_stops_behind_its_block_and_goes_on_with_what_python_printed(chats, port):
    """The server of these tests prints "ran CODE"."""
    model = Scripted(["```python\n7\n```\n", "It is 8."], ["It is 7."], fill=EOS_ID)
    (called, said), prompt = chatted(chats, model, port)
    assert [call.action for call in called.calls] == ["7"] and said.calls == []
    assert [s.source for s in called.segments] == ["model", "env", "model"]
    assert called.segments[0].text == "```python\n7\n```\n" and "ran 7" in called.segments[1].text
    assert model.seen[1] == [[*encode(prompt), *(i for s in called.segments[:2] for i in s.token_ids.tolist())]]
    assert (called.reward, said.reward) == (1.0, 0.0)
    assert said.segments[0].token_ids.tolist() == [*encode("It is 8."), EOS_ID] and said.finish_reason == "stop"


def test_a_chat_without_an_end_is_cut_by_its_budget_and_may_still_be_right(chats, port):
    (cut,), _ = chatted(chats, Scripted(["7" + " " * 300], fill=EOS_ID), port)
    assert cut.finish_reason == "length" and cut.response_tokens == 200 and cut.reward == 1.0


def test_a_sandbox_that_fails_ends_a_rollout_of_chats(chats, port, monkeypatch):
    monkeypatch.setattr(Closing, "outcome", "env_error")
    with pytest.raises(RuntimeError, match="'env_error'"):
        chatted(chats, Scripted(["```python\n7\n```\n"], fill=EOS_ID), port)


def test_smollm2_is_trained_by_its_recipe(tmp_path):
    given, cfg = of_recipe(work(tmp_path)), load("smollm2_cpu")
    assert (given.prompts, given.samples, given.max_new_tokens, given.calls) == (8, 8, 80, 1)
    assert (given.lr, given.temperature, given.bar) == (cfg.actor.learning_rate, cfg.rollout.temperature, 0.8)
    words = iter(ours.flags(given, tmp_path / "run"))
    flags = {flag.removeprefix("--"): value for flag, value in zip(words, words, strict=True)}
    recipe = flags.pop("recipe")
    same = load(recipe, {name: value for name, value in flags.items() if name != "run-dir"})
    assert (same.rollout, same.env, same.actor.adam_betas) == (cfg.rollout, cfg.env, cfg.actor.adam_betas)


def test_openrlhf_reads_prompts_by_the_chat_template_where_the_model_has_one(tmp_path):
    toy = openrlhf_own.flags(work(tmp_path), tmp_path, "sync")
    real = openrlhf_own.flags(of_recipe(work(tmp_path)), tmp_path, "sync")
    assert "--data.input_template" in toy and "--data.apply_chat_template" not in toy
    assert "--data.apply_chat_template" in real and "--data.input_template" not in real
    assert [words[words.index("--actor.num_gpus_per_node") + 1] for words in (toy, real)] == ["2", "1"]
    assert real[real.index("--rollout.temperature") + 1] == "0.7"
    for words in (toy, real):
        assert Path(words[words.index("--train.agent_func_path") + 1]).is_file()


def test_trl_is_run_with_each_learning_rate():
    assert names_of(["ours", "trl_tools"], [2e-5, 4e-5]) == ["ours", "trl_tools@2e-05", "trl_tools@4e-05"]
    assert names_of(["ours", "trl_tools"], []) == ["ours", "trl_tools"]


def test_samples_of_groups_that_all_agree_are_counted_apart():
    assert with_variance([0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0], 2) == 4
    assert with_variance([1.0] * 8, 4) == 0


def test_what_is_told_over_trl_is_over_its_best_learning_rate():
    def of(seconds: float, accuracy: dict[int, float], varied: int, peak: float):
        steps = [replace(step(n, n * seconds), samples=64, with_variance=varied) for n in (1, 2)]
        return figures(steps, accuracy, Ran(peak, None), 1000.0, 0.8)

    found = {
        "ours": of(10.0, {1: 0.7, 2: 0.85}, 64, 9.0),
        "trl_tools@1e-05": of(5.0, {2: 0.5}, 32, 1.0),
        "trl_tools@2e-05": of(20.0, {1: 0.6, 2: 0.8}, 32, 6.0),
    }
    told = over_trl(found, 0.8)
    assert (told["trained_samples_per_s_over_trl"], told["varied_samples_per_s_over_trl"]) == (2.0, 4.0)
    assert (told["seconds_to_80_over_trl"], told["peak_memory_over_trl"]) == (0.5, 1.5)
    del found["trl_tools@2e-05"]
    told = over_trl(found, 0.8)
    assert (told["seconds_to_80_over_trl"], told["common_accuracy"], told["seconds_to_common_over_trl"]) == (
        None,
        0.5,
        1.0,
    )
    assert over_trl({"ours": found["ours"]}, 0.8)["trained_samples_per_s_over_trl"] is None


def test_master_weights_take_bf16_gradients_and_give_bf16_weights():
    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    masters = plain.Masters(model)
    (model.weight.sum() * 2).backward()
    masters.take_gradients()
    (copy,) = masters.copies
    assert copy.grad is not None and copy.grad.tolist() == [[2.0, 2.0]] and model.weight.grad is None
    copy.data.fill_(0.5)
    masters.give_weights()
    assert model.weight.tolist() == [[0.5, 0.5]]
    same = torch.nn.Linear(2, 1)
    assert plain.Masters(same).copies[0] is same.weight


ANSWER = r"<answer>\boxed{42}</answer>"


def test_tool_output_is_not_the_models_own():
    model = Scripted(["```python\nprint(6*7)\n``` and more", ANSWER + "tail"], [ANSWER])
    (tool, text), ran = rolled(model, 2)
    assert ran == ["print(6*7)"]
    assert tool.text == "```python\nprint(6*7)\n```" + ANSWER and tool.ended and tool.calls == 1
    inserted = encode("\n```output\n42\n\n```\n\n\n")
    assert len(tool.ids) == len(tool.mine) and tool.mine.count(0) == len(inserted)
    assert text.text == ANSWER and text.ended and text.calls == 0  # stopped at </answer>, its rest was never written
    assert model.seen[1] == [encode("User: q\nAssistant:```python\nprint(6*7)\n```") + inserted]


def test_without_calls_left_a_fence_is_plain_text():
    (only,), ran = rolled(Scripted(["```python\nprint(1)\n```" + ANSWER]), 1, calls=0)
    assert ran == [] and only.calls == 0 and only.ended


def test_a_response_that_its_budget_cuts_has_not_ended():
    (only,), ran = rolled(Scripted(["x" * 50]), 1, budget=20)
    assert len(only.ids) == 20 and not only.ended and ran == []


def test_openrlhfs_worker_holds_weights_until_the_last_is_there():
    """Its own asks for a CUDA tensor. With the last, it loads them; here there is no model."""

    class Group:
        def broadcast(self, tensor, src):
            tensor.fill_(7.0)

    worker = Worker()
    worker._model_update_group, worker._held = Group(), []
    worker.update_weight("a", torch.float32, (2,))
    assert [(name, weight.tolist(), weight.device.type) for name, weight in worker._held] == [("a", [7.0, 7.0], "cpu")]


@pytest.mark.long  # imports openrlhf and vllm, in a process of its own: it changes both
def test_each_of_openrlhfs_trainers_writes_its_updates():
    """Ray wraps all methods of an actor's class when it is decorated, those it inherits too: a change to the base class
    is seen by no actor."""
    code = (
        "from benchmarks.peers import openrlhf_cpu as cpu; cpu.adapt()\n"
        "from openrlhf.trainer.ppo_trainer import PPOTrainer\n"
        "from openrlhf.trainer.ppo_trainer_async import TrainingActor\n"
        "for actor in (PPOTrainer, TrainingActor):\n"
        "    of = actor.__ray_metadata__.modified_class\n"
        "    print(of.init_checkpoint_states.__module__, of.save_logs_and_checkpoints.__module__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-4:] == ["benchmarks.peers.openrlhf_cpu"] * 4


def test_without_the_models_package_or_a_directory_of_it_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("miniatures.packaged_models.find_spec", lambda name: None)
    for base in (None, tmp_path / "empty"):
        with pytest.raises(SystemExit) as refused:
            smollm2_of(base, 42, tmp_path / "out")
        assert isinstance(refused.value.code, str)
    assert not (tmp_path / "out").exists()
