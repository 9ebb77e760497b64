"""What the driver says of the GPUs, by what nvidia-smi prints; no GPU is needed."""

from __future__ import annotations

import pytest

from openrlhf_tir.cli.checks.host import Machine, check_cards, check_memory
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.machine.cards import Cards, cards, parse_peers

FOUR_GPUS = """
 \tGPU0\tGPU1\tGPU2\tGPU3\t
 GPU0\tX\tOK\tCNS\tCNS\t
 GPU1\tOK\tX\tCNS\tCNS\t
 GPU2\tCNS\tCNS\tX\tOK\t
 GPU3\tCNS\tCNS\tOK\tX\t

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
"""


def machine(gpus: int = 1, **facts: object) -> Machine:
    return Machine(gpus=gpus, cpus=8, memory=(0, 1 << 42), shm_free=1 << 40, gpu_bytes=80 << 30, cards=Cards(**facts))


def test_the_pairs_of_gpus_without_peer_access_are_read_from_the_matrix():
    assert parse_peers(FOUR_GPUS) == ((0, 2), (0, 3), (1, 2), (1, 3))
    assert parse_peers("GPU0\nGPU0  X\n") == ()
    assert parse_peers("") == ()


def test_the_driver_is_asked_once_and_a_machine_without_gpus_not_at_all():
    asked = []

    def ask(arguments):
        asked.append(arguments[0])
        return "535.183.01\n535.183.01\n" if arguments[0].startswith("--query") else FOUR_GPUS

    found = cards(ask, gpus=2)
    assert (found.driver, len(found.without_peer_access)) == ("535.183.01", 4)
    assert asked == ["--query-gpu=driver_version", "topo"]
    assert cards(ask, gpus=0) == Cards()
    assert len(asked) == 2


@pytest.mark.parametrize("answer", ["", "NVIDIA-SMI has failed because it couldn't communicate\n"])
def test_a_driver_that_does_not_answer_is_not_judged(answer):
    assert cards(lambda arguments: answer, gpus=1).driver is None


@pytest.mark.parametrize(
    ("driver", "cuda", "needed"),
    [
        ("550.54.15", "13.0", 580),
        ("580.65.06", "13.0", None),
        ("550.54.15", "12.8", None),
        ("470.1", "12.8", 525),
        ("550.54.15", None, None),
        (None, "13.0", None),
        ("550.54.15", "14.0", None),
    ],
)
def test_a_driver_is_too_old_for_the_cuda_of_the_installed_torch(driver, cuda, needed):
    assert Cards(driver, torch_cuda=cuda).needed_driver == needed


def test_an_old_driver_ends_the_run_before_a_model_loads():
    with pytest.raises(ConfigError, match=r"550\.54"):
        check_cards(Config(), machine(driver="550.54.15", torch_cuda="13.0"))
    assert check_cards(Config(), machine(driver="580.65.06", torch_cuda="13.0")) == []


def test_gpus_without_peer_access_are_named_with_the_settings_that_help():
    two = Config(vllm={"tensor_parallel_size": 2})
    (fact,) = check_cards(two, machine(4, without_peer_access=((0, 2), (1, 3))))
    assert "0 and 2" in fact and "vllm.tensor_parallel_size" in fact and "vllm.sync_backend" in fact
    assert check_cards(two, machine(4)) == []


def test_an_architecture_list_that_cannot_be_read_is_named_where_an_op_is_compiled(monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a;Hopper")
    (fact,) = check_cards(Config(ds={"adam_offload": True}), machine())
    assert "TORCH_CUDA_ARCH_LIST" in fact and "Hopper" in fact and "9.0a" not in fact.partition("'9.0a;Hopper'")[2]
    assert check_cards(Config(), machine()) == []


def with_model(tmp_path, **sections) -> Config:
    (tmp_path / "config.json").write_text(
        '{"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,'
        ' "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064}'
    )
    base = {
        "actor": {"model_name_or_path": str(tmp_path), "num_gpus_per_node": 1, "gradient_checkpointing_enable": True}
    }
    return Config(**{**base, **sections})


def test_a_card_that_is_too_small_is_told_with_the_settings_before_a_model_loads(tmp_path):
    """7.6 billion parameters on one rank: 2 + 4 + 12 bytes of each are 128 GiB."""
    with pytest.raises(ConfigError) as refused:
        check_memory(with_model(tmp_path), machine(2))
    assert "ds.adam_offload" in str(refused.value)


def test_shares_that_do_not_fit_on_one_card_are_told_with_the_settings(tmp_path):
    shared = {"train": {"share_gpus": True}, "vllm": {"kv_cache_mib": 40960}, "ds": {"adam_offload": True}}
    with pytest.raises(ConfigError) as refused:
        check_memory(with_model(tmp_path, **shared), machine(1))
    assert "vllm.kv_cache_mib" in str(refused.value) and "train.share_gpus" in str(refused.value)
