"""A run directory that a node does not share is found out before a model loads, by node and path."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from openrlhf_tir.cluster.shared_dir import check_models, marked, prove
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.simulation.virtual_loop import run


def test_whoever_shares_the_directory_sees_the_mark_and_nothing_is_left_of_it(tmp_path):
    with marked(tmp_path / "run") as mark:
        prove(mark, "rollout-0", "10.0.0.2")
    assert os.listdir(tmp_path / "run") == []


def test_a_directory_of_the_same_name_on_another_file_system_is_told_by_node_and_path(tmp_path):
    (tmp_path / "b").mkdir()
    with (
        marked(tmp_path / "a") as mark,
        pytest.raises(ConfigError, match=r"learner rank 3 .*10\.0\.0\.2 .*/b: .*--run-dir"),
    ):
        prove(tmp_path / "b" / mark.name, "learner rank 3", "10.0.0.2", appears_s=0.0)


def test_one_that_takes_no_files_from_there_is_told(tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    with marked(tmp_path) as mark:
        monkeypatch.setattr(Path, "touch", refuse)
        with pytest.raises(ConfigError, match=r"rollout-0 .* n2 .*Permission denied"):
            prove(mark, "rollout-0", "n2")


@pytest.mark.slow  # importing ray
def test_a_model_that_only_the_controllers_node_has_is_told_by_node_and_setting_before_anything_loads(
    tmp_path, monkeypatch
):
    """transformers would say that its path is no name of the hub."""
    import ray

    from openrlhf_tir.cluster.learner_group import LearnerRank
    from openrlhf_tir.cluster.rollout_actor import RolloutActor
    from openrlhf_tir.cluster.tokens import Tokens

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.2")
    away = str(tmp_path / "model")
    cfg = Config(run_dir=tmp_path, actor={"model_name_or_path": away})
    with pytest.raises(ConfigError, match=rf"rollout-3 .*10\.0\.0\.2 .*{away}") as caught:
        asyncio.run(RolloutActor(3).start(cfg, {}, Tokens(None, None)))
    assert (caught.value.code, caught.value.setting) == ("no_model", "actor.model_name_or_path")
    of_hub = Config(
        run_dir=tmp_path,
        actor={"model_name_or_path": "owner/name"},
        critic={"model_name_or_path": away},
        algo={"advantage": {"estimator": "gae"}},
    )
    for given, section in ((cfg, "actor"), (of_hub, "critic")):
        with pytest.raises(ConfigError, match=rf"learner rank 1 .*10\.0\.0\.2 .*{section}\.model.*{away}"):
            LearnerRank(1, 2).start(given, "10.0.0.1", 1)
    check_models("rollout-0", "10.0.0.2", actor=str(tmp_path), critic="", other="owner/name")


@pytest.mark.slow  # importing ray
def test_an_engine_that_does_not_see_the_directory_loads_nothing_and_leaves_its_room(ray):
    started = []

    async def scenario():
        from ..fake_ray import spawned

        ray.prepare = lambda actor: (
            actor.raises.update(check_node=ConfigError("rollout-0 on node n2 does not see it")) or started.append(actor)
        )
        with pytest.raises(ConfigError, match="does not see it"):
            await spawned()

    run(scenario())
    assert [g.removed for g in ray.groups] == [True] and ray.killed == started


@pytest.mark.slow
def test_nor_does_a_rank(ray):
    async def scenario():
        from openrlhf_tir.cluster.learner_group import LearnerGroup

        ray.prepare = lambda actor: actor.raises.update(
            check_node=ConfigError("learner rank 0 on node n2 does not see it")
        )
        with pytest.raises(ConfigError, match="does not see it"):
            await LearnerGroup.start(Config())

    run(scenario())
    assert [g.removed for g in ray.groups] == [True]
