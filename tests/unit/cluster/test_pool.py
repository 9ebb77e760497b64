"""A pool of rollout actors of which some hang, die or fail: their work is done elsewhere. Fake actors, virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError, EngineError, EngineGone, PayloadLost, VersionGone
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.ledger.ledger import Ledger, audit
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.rollout.group_runner import EvalMode
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import GroupKey, Task
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.publisher import WeightPublisher

from ...pipeline.fakes import FakeLearner, FakePrompts, MemoryMetrics, Silent

pytestmark = pytest.mark.slow  # importing ray


def config(run_dir, engines: int = 3, **sections) -> Config:
    tree = {
        "run_dir": run_dir,
        "actor": {"num_gpus_per_node": 1},
        "vllm": {"num_engines": engines},
        "rollout": {
            "batch_size": 4,
            "n_samples_per_prompt": 2,
            "group_deadline_s": 500,
        },
        "timeouts": {"push_s": 200, "start_s": 200},
        "pipeline": {"mode": "pipeline", "max_staleness": 2, "depth": 12},
        "train": {"max_steps": 12},
        "ckpt": {"save_steps": -1},
    }
    for section, fields in sections.items():
        tree[section] = tree.get(section, {}) | fields
    return Config.model_validate(tree)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    from .fake_actors import FakeCluster

    return lambda **sections: FakeCluster(config(tmp_path, **sections), monkeypatch)


class PushedLearner(FakeLearner):
    """Gives weights, and agrees with every canary."""

    async def publish(self, path):
        path.write_bytes(b"weights")
        return f"digest of {self.version}"

    async def score(self, sequences):
        return [[0.0] * (len(s) - 1) for s in sequences]


async def train(c, cfg: Config) -> tuple[PushedLearner, Pipeline]:
    """The real loop, publisher, fleet and router on the cluster's fake actors."""
    learner = PushedLearner()
    publisher = WeightPublisher(
        learner,
        c.pool.members,
        cfg.run_dir / "push",
        [[1, 2]],
        tolerance=1e-4,
        canary_tokens=2,
        deadline=Deadline.of(cfg, "timeouts.push_s"),
    )
    c.pool.attach_prover(publisher.join)
    pipeline = Pipeline(
        cfg,
        prompts=FakePrompts(1000),
        rollout=c.pool,
        learner=learner,
        publisher=publisher,
        ledger=Ledger(cfg.run_dir / "ledger.jsonl"),
        checkpoints=Checkpoints(cfg.run_dir / "ckpt", 2),
        observer=Observer(MemoryMetrics(), Silent(), Silent()),
    )
    await c.pool.fleet.start()
    try:
        await pipeline.run()
    finally:
        await c.pool.stop()
    return learner, pipeline


EVERYTHING = {
    "heartbeat", "run_group", "run_group_after", "update_weights", "confirm_weights",
    "busy_intervals", "set_env_urls", "stop",
}  # fmt: skip
HANGS = {
    "its whole process": EVERYTHING,
    "its groups only": {"run_group", "run_group_after"},
    "a push": {"update_weights"},
    "a verdict": {"confirm_weights"},
    "its engine, which the heartbeat asks": {"heartbeat", "run_group_after"},
}


@pytest.mark.parametrize("what", HANGS)
def test_one_hung_of_three_costs_its_own_work_and_the_run_goes_on(cluster, tmp_path, what):
    c = cluster()

    async def scenario():
        async def hang() -> None:
            await asyncio.sleep(12)
            c.actors[1].hangs |= HANGS[what]

        hanging = asyncio.create_task(hang())
        learner, _ = await train(c, config(tmp_path))
        await hanging
        return learner

    learner = run(scenario())
    assert learner.version == 12
    assert c.actors[1].killed
    report = audit(tmp_path / "ledger.jsonl")
    trained = Counter(key[:2] for _, key, _ in learner.trained)
    assert report.errors == [] and len(trained) == 12 * 4 and set(trained.values()) == {1}
    if what != "a push" and what != "a verdict":
        reissued = {p for p in c.actors[1].groups if any(p in a.groups for a in c.actors if a is not c.actors[1])}
        assert reissued, "nothing of the hung actor was issued again elsewhere"


def test_a_prompt_that_hung_goes_to_another_actor_though_its_home_was_started_again(cluster, tmp_path):
    c = cluster(engines=2)

    async def scenario():
        await c.pool.fleet.start()
        first = asyncio.create_task(c.pool.run_group(GroupKey(0, 0), Task("p", "0")))
        await asyncio.sleep(1)
        home = next(a for a in c.actors if a.groups)
        home.hangs |= EVERYTHING
        with pytest.raises(EngineGone, match=rf"^rollout-{c.actors.index(home)} "):
            await first
        await asyncio.sleep(200)
        assert c.names == ["rollout-0", "rollout-1"] and home.killed
        meta, _ = await c.pool.run_group(GroupKey(0, 0, 1), Task("p", "0"))
        assert meta.actor != f"rollout-{home.index}"
        await c.pool.stop()

    run(scenario())


def test_an_actor_that_never_comes_up_is_given_up_and_tried_again(cluster, tmp_path):
    c = cluster(engines=2)

    async def scenario():
        await c.pool.fleet.start()
        c.prepare = lambda actor: actor.hangs.update({"start"} if len(c.actors) == 3 else ())
        c.pool.fleet.mark_lost(c.pool.members[0], "killed by a test")
        await asyncio.sleep(150)
        assert c.names == ["rollout-1"] and not c.actors[2].killed
        await asyncio.sleep(100)
        assert c.actors[2].killed and c.names == ["rollout-0", "rollout-1"]
        await c.pool.stop()

    run(scenario())


def ray_error(kind: str) -> Exception:
    import ray

    return {
        "killed for memory": ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory."),
        "lost object": ray.exceptions.ObjectLostError("ab" * 28, None, ""),
        "unreachable": ray.exceptions.ActorUnavailableError("rpc", None),
        "died": ray.exceptions.ActorDiedError(),
    }[kind]


@pytest.mark.parametrize("kind", ["killed for memory", "lost object", "unreachable", "died"])
def test_what_ray_kills_or_loses_is_replaced_like_a_killed_actor(cluster, kind):
    c = cluster(engines=2)

    async def scenario():
        await c.pool.fleet.start()
        c.actors[0].raises["run_group"] = ray_error(kind)
        keys = [GroupKey(0, i) for i in range(2)]
        results = await asyncio.gather(
            *(c.pool.run_group(k, Task(f"p{k.prompt}", "0")) for k in keys), return_exceptions=True
        )
        assert Counter(type(r) for r in results) == {EngineGone: 1, tuple: 1}
        await asyncio.sleep(10)
        assert c.actors[0].killed and c.names == ["rollout-0", "rollout-1"] and len(c.actors) == 3
        await c.pool.stop()

    run(scenario())


def test_a_bug_under_ray_is_raised_as_it_is_and_costs_no_actor(cluster):
    c = cluster(engines=1)

    async def scenario():
        await c.pool.fleet.start()
        c.actors[0].raises["run_group"] = KeyError("a bug")
        with pytest.raises(KeyError):
            await c.pool.run_group(GroupKey(0, 0), Task("p", "0"))
        assert c.names == ["rollout-0"] and not c.actors[0].killed
        await c.pool.stop()

    run(scenario())


def test_a_prompt_that_the_engine_refuses_costs_no_engine_however_often_it_comes(cluster):
    c = cluster(engines=2)

    async def scenario():
        await c.pool.fleet.start()
        for actor in c.actors:
            actor.fails_groups = lambda prompt: "request_refused" if prompt == "too long" else None
        for attempt in range(6):
            meta, _ = await c.pool.run_group(GroupKey(0, 0, attempt), Task("too long", "0"))
            assert meta.failed == "request_refused"
        assert len(c.actors) == 2 and c.names == ["rollout-0", "rollout-1"]
        await c.pool.stop()

    run(scenario())


def test_a_group_that_its_engine_failed_goes_to_another_and_the_engine_is_asked_whether_it_is_well(cluster):
    c = cluster(engines=2)

    async def scenario():
        await c.pool.fleet.start()
        c.actors[0].fails_groups = lambda prompt: "engine_error"
        tried = []
        for attempt in range(2):
            meta, _ = await c.pool.run_group(GroupKey(0, 0, attempt), Task("p", "0"))
            tried.append(meta.actor)
        assert sorted(tried) == ["rollout-0", "rollout-1"] or tried == ["rollout-1", "rollout-1"]
        assert len(c.actors) == 2, "the engine is well: one failed group is no death"
        c.actors[0].raises["heartbeat"] = EngineError("This engine is broken.")
        c.actors[1].hangs.add("run_group")
        with pytest.raises(EngineGone, match="This engine is broken"):
            async with asyncio.timeout(50):
                await asyncio.gather(*(c.pool.run_group(GroupKey(1, i), Task(f"q{i}", "0")) for i in range(2)))
        assert c.actors[0].killed
        await c.pool.stop()

    run(scenario())


def test_an_engine_that_says_it_is_well_and_fails_three_prompts_in_a_row_is_replaced(cluster):
    c = cluster(engines=1)

    async def scenario():
        await c.pool.fleet.start()
        c.actors[0].fails_groups = lambda prompt: "engine_error"
        for attempt in range(5):  # one prompt, again and again: the prompt may be at fault
            await c.pool.run_group(GroupKey(0, 0, attempt), Task("p", "0"))
        await c.pool.run_group(GroupKey(0, 1), Task("q", "0"))
        with pytest.raises(EngineGone, match=r"^rollout-0 .* 3 "):
            await c.pool.run_group(GroupKey(0, 2), Task("r", "0"))
        assert c.actors[0].killed
        await c.pool.stop()

    run(scenario())


def test_a_group_that_succeeds_shows_that_the_failures_before_it_were_the_prompts(cluster):
    c = cluster(engines=1)

    async def scenario():
        await c.pool.fleet.start()
        c.actors[0].fails_groups = lambda prompt: "engine_error" if prompt.startswith("bad") else None
        for number, prompt in enumerate(("bad 1", "bad 2", "good", "bad 3", "bad 4")):
            await c.pool.run_group(GroupKey(0, number), Task(prompt, "0"))
        assert c.names == ["rollout-0"] and not c.actors[0].killed
        with pytest.raises(EngineGone):
            await c.pool.run_group(GroupKey(0, 5), Task("bad 5", "0"))
        await c.pool.stop()

    run(scenario())


def test_an_answer_that_tells_of_another_lost_engine_costs_only_that_one(cluster):
    """As where a response was to move to an engine that is gone: the one that was asked is well."""
    from openrlhf_tir.cluster.rollout_actor import RolloutActor

    c = cluster(engines=1)

    async def scenario():
        await c.pool.fleet.start()
        [engine] = c.pool.members
        c.actors[0].raises["activity"] = EngineGone("rollout-7 is lost")
        with pytest.raises(EngineGone, match="rollout-7"):
            await engine.call(RolloutActor.activity, deadline=engine.unresponsive)
        assert c.names == ["rollout-0"] and not c.actors[0].killed
        await c.pool.stop()

    run(scenario())


def test_a_group_that_nobody_wants_any_more_is_cancelled_at_its_engine_and_runs_nowhere(cluster, monkeypatch):
    c = cluster(engines=1)
    cancelled = []

    async def scenario():
        await c.pool.fleet.start()
        monkeypatch.setattr("ray.cancel", cancelled.append)
        key = GroupKey(0, 0)
        rolling = asyncio.create_task(c.pool.run_group(key, Task("p", "0")))
        await asyncio.sleep(1)
        [engine] = c.pool.members
        assert engine.running == {key} and not cancelled
        rolling.cancel()
        await asyncio.gather(rolling, return_exceptions=True)
        assert not engine.running and len(cancelled) == 1
        await c.pool.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("error", "is_raised"), [(EngineGone("dead"), False), (EngineError("broken"), False), (ConfigError("no"), True)]
)
def test_an_engine_that_is_lost_does_not_stop_a_swap_of_servers_and_a_refusal_does(cluster, error, is_raised):
    c = cluster(engines=2)

    async def scenario():
        await c.pool.fleet.start()
        c.actors[0].raises["set_env_urls"] = error
        with pytest.raises(ConfigError) if is_raised else nullcontext():
            await c.pool.set_env_urls({"echo": ["http://new"]})
        await c.pool.stop()

    run(scenario())


@pytest.mark.parametrize("how", ["answers", "hangs", "fails"])
def test_an_actor_that_is_asked_to_stop_is_killed_whatever_it_answers(cluster, how):
    c = cluster(engines=1)

    async def scenario():
        await c.pool.fleet.start()
        if how == "hangs":
            c.actors[0].hangs.add("stop")
        elif how == "fails":
            c.actors[0].raises["stop"] = EngineError("broken")
        await c.pool.stop()
        assert c.actors[0].killed

    run(scenario())


def test_an_engine_that_was_loading_while_the_servers_were_swapped_has_the_new_ones_before_it_is_proved(cluster):
    from .fake_actors import FakeActor

    c = cluster(engines=1)
    events = []

    class Recording(FakeActor):
        async def do_start(self, *args):
            await asyncio.sleep(60)
            return "http://fake"

        async def do_set_env_urls(self, urls):
            events.append((self.index, urls))

    async def prove(engine, admit):
        events.append("proved")
        admit()

    async def scenario():
        await c.pool.fleet.start()
        c.pool.attach_prover(prove)
        c.actor_class = Recording
        c.pool.resize(2)
        await asyncio.sleep(10)
        await c.pool.set_env_urls({"echo": ["http://new"]})
        assert not events, "it is still loading"
        await asyncio.sleep(100)
        assert events == [(1, {"echo": ["http://new"]}), "proved"]
        await c.pool.stop()

    run(scenario())


def test_an_evaluation_goes_to_the_engines_that_were_proved_to_have_its_weights(cluster):
    """Two of version 1, one that came up with version 3: four groups of an evaluation of version 1, and of training."""

    async def go() -> None:
        c = cluster()
        await c.pool.fleet.start()
        try:
            for member, version in zip(c.pool.members, (1, 3, 1), strict=True):
                member.version = version

            async def where(mode: EvalMode | None) -> set[str]:
                keys = [GroupKey(0, i) for i in range(4)]
                tasks = [Task(f"{mode} {k.prompt}", "0") for k in keys]
                ended = await asyncio.gather(*map(c.pool.run_group, keys, tasks, [mode] * 4))
                return {meta.actor for meta, _ in ended}

            assert await where(EvalMode(2, 1.0, version=1)) == {"rollout-0", "rollout-2"}
            assert await where(None) == {"rollout-0", "rollout-1", "rollout-2"}
            with pytest.raises(VersionGone):
                await where(EvalMode(2, 1.0, version=2))
        finally:
            await c.pool.stop()

    run(go())


def test_an_engine_that_starts_while_the_learner_restarts_joins_once_it_can_be_proved_and_not_before(cluster):
    c = cluster(engines=1)
    proved = []

    async def prove(engine, admit):
        proved.append(engine.name)
        admit()

    async def publisher_before(engine, admit):
        raise AssertionError("it is closed")

    async def scenario():
        await c.pool.fleet.start()
        try:
            c.pool.attach_prover(publisher_before)
            c.pool.hold_new_engines()
            c.pool.detach_prover(publisher_before)  # as the exit of the attempt before does
            c.pool.resize(2)
            await asyncio.sleep(600)
            assert len(c.actors) == 2 and c.names == ["rollout-0"] and not proved
            c.pool.attach_prover(prove)
            await asyncio.sleep(1)
            assert c.names == ["rollout-0", "rollout-1"] and proved == ["rollout-1"]
            c.pool.detach_prover(publisher_before)
            c.pool.resize(3)
            await asyncio.sleep(10)
            assert proved == ["rollout-1", "rollout-2"], "only the attached prover can be taken away"
        finally:
            await c.pool.stop()

    run(scenario())


def test_a_payload_that_is_lost_with_its_node_is_named(cluster):
    c = cluster(engines=1)

    async def scenario():
        error = ray_error("lost object")

        async def payload():
            raise error

        with pytest.raises(PayloadLost) as lost:
            await c.pool.fetch([payload()])
        assert lost.value.__cause__ is error

    run(scenario())


def test_a_payload_that_is_not_handed_over_in_time_is_lost_too_and_names_the_setting(cluster):
    c = cluster(engines=1)

    async def scenario():
        with pytest.raises(PayloadLost, match=r" 1 .*timeouts\.push_s / 2 = "):
            await c.pool.fetch([asyncio.get_running_loop().create_future()])

    run(scenario())


def test_what_the_actors_told_with_their_last_group_is_summed_with_what_they_were_given_since(cluster):
    """Two groups of two on each of two actors, one after the other."""
    c = cluster(engines=2)

    async def scenario():
        await c.pool.fleet.start()
        try:
            assert c.pool.engine_stats() == {"actors": 2.0}
            groups = [asyncio.create_task(c.pool.run_group(GroupKey(0, i), Task(f"p{i}", ""))) for i in range(4)]
            await asyncio.sleep(6)
            later = asyncio.create_task(c.pool.run_group(GroupKey(0, 9), Task("p9", "")))
            evaluated = asyncio.create_task(c.pool.run_group(GroupKey(0, 8), Task("p8", ""), EvalMode(3, 1.0)))
            await asyncio.gather(*groups)
            await asyncio.sleep(1)
            seen = c.pool.engine_stats()
            await asyncio.gather(later, evaluated)
            return seen, c.pool.engine_stats()
        finally:
            await c.pool.stop()

    during, after = run(scenario())
    assert during == {
        "actors": 2.0, "running": 4.0, "waiting": 2.0, "placed": 2.0, "aside": 3.0, "preemptions": 0.0, "open": 2.0,
        "width": pytest.approx(16 * (31 / 32) ** 2),
    }  # fmt: skip
    assert {name: after[name] for name in ("running", "waiting", "placed", "aside")} == dict.fromkeys(
        ("running", "waiting", "placed", "aside"), 0.0
    )
