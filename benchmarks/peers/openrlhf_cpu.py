"""What is changed under OpenRLHF 0.11.2's own loop so that it runs without a GPU. Its controller, queue, lock, rollout
actors, agents, experience maker, model actors, trainer and command line run as they are; every change is here.

    flash-attn                stubs while it is imported (openrlhf_tir/learner/openrlhf_imports.py)
    torch.cuda                the current device is the CPU; set_device, synchronize, empty_cache and streams do nothing
    the process group         gloo; the device mesh is of "cpu"; one shared-memory op is not built
    FusedAdam                 torch's AdamW: no C++ build
    float32                   learner and engine, as all others here that train the toy; its command line and its
                              engines know bf16 and fp16. SmolLM2 is trained in its bf16
    vLLM's KV cache           as large as the recipe's; its share of a GPU's memory means nothing here
    weights to the engine     through vLLM's own store instead of NCCL, and by vLLM's reload: a bare load_weights fails
                              on layers that CPU kernels have packed

and, so that it is measured, its trainer writes a line after each update.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from pathlib import Path
from typing import Any

from .work import SMOLLM2, TOY, Work

KV_CACHE_BYTES = {TOY: 128 << 20, SMOLLM2: 256 << 20}
SEQUENCES = 128


def model() -> str:
    """Which task it is, in every process of the run."""
    path = os.environ.get("PEERS_WORK")
    return Work.read(path).model if path else TOY


class Device(str):
    """The CPU's name to `tensor.to`, and 0 in an f-string: OpenRLHF writes both `.to(current_device())` and
    f"cuda:{current_device()}"."""

    def __format__(self, spec: str) -> str:
        return "0"


class _Adapting(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Adapts at the first import of openrlhf in a process: Ray's other workers need none of it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "openrlhf":
            return None
        sys.meta_path.remove(self)
        adapt()
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        return sys.modules["openrlhf"]

    def exec_module(self, module: Any) -> None:
        """It has run."""


def on_import() -> None:
    """Ray's worker_process_setup_hook."""
    sys.meta_path.insert(0, _Adapting())


def adapt() -> None:
    from openrlhf_tir.engines.start import prepare_environment

    prepare_environment(gpu=False)
    import vllm
    from torch import cuda

    import openrlhf_tir.learner.openrlhf_adapter  # noqa: F401  imports what must come before the stubs
    from openrlhf_tir.learner.openrlhf_imports import flash_attn_importable

    cuda.current_device = lambda: Device("cpu")
    cuda.set_device = cuda.synchronize = cuda.empty_cache = lambda *_: None
    cuda.current_stream = lambda *_: None
    with flash_attn_importable():
        import openrlhf.trainer.ppo_trainer
        import openrlhf.trainer.ppo_trainer_async
        import openrlhf.trainer.ray.ppo_actor
        import openrlhf.utils
        import openrlhf.utils.agent
        import openrlhf.utils.deepspeed.deepspeed
        import openrlhf.utils.distributed_util
        import openrlhf.utils.utils
    _engine(vllm)
    _learner(openrlhf)
    # Ray has wrapped each method in the actor's own class by now, those it inherits too
    for actor in (openrlhf.trainer.ppo_trainer.PPOTrainer, openrlhf.trainer.ppo_trainer_async.TrainingActor):
        _measured(actor.__ray_metadata__.modified_class)


def _engine(vllm: Any) -> None:
    args = vllm.AsyncEngineArgs
    ours = {
        "dtype": "float32" if model() == TOY else "bfloat16",
        "max_num_seqs": SEQUENCES,
        "kv_cache_memory_bytes": KV_CACHE_BYTES[model()],
        "disable_log_stats": True,
        "worker_extension_cls": f"{__name__}.{Worker.__name__}",
    }

    def engine_args(*given: Any, **more: Any) -> Any:
        more.pop("gpu_memory_utilization", None)
        return args(*given, **{**more, **ours})

    vllm.AsyncEngineArgs = engine_args


def _learner(openrlhf: Any) -> None:
    import deepspeed
    import deepspeed.ops
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    init = deepspeed.init_distributed
    deepspeed.init_distributed = lambda **given: init(**{**given, "dist_backend": "gloo"})
    module = openrlhf.utils.deepspeed.deepspeed
    module.init_device_mesh = lambda kind, *given, **more: init_device_mesh("cpu", *given, **more)
    config = module.DeepspeedStrategy.get_ds_train_config

    def torch_adam(self: Any, optim_dict: dict | None = None, **more: Any) -> dict:
        made = config(self, optim_dict, **more)
        if optim_dict is not None:
            made["optimizer"]["params"]["torch_adam"] = True
        return made

    module.DeepspeedStrategy.get_ds_train_config = torch_adam
    openrlhf.utils.distributed_util.stateless_init_process_group = Store
    openrlhf.trainer.ray.ppo_actor.stateless_init_process_group = Store
    if model() != TOY:
        return
    dtype = openrlhf.utils.utils.convert_to_torch_dtype
    openrlhf.utils.utils.convert_to_torch_dtype = lambda name: torch.float32 if name == "fp32" else dtype(name)
    strategy = openrlhf.utils.get_strategy

    def fp32(args: Any) -> Any:
        args.ds.param_dtype = "fp32"
        return strategy(args)

    openrlhf.utils.get_strategy = fp32


class Store:
    """Where it would make a NCCL communicator: a broadcast through the store that this would be set up by."""

    def __init__(self, address: str, port: int, rank: int, world_size: int, device: Any = None) -> None:
        from vllm.distributed.utils import StatelessProcessGroup

        self.rank = rank
        self.group = StatelessProcessGroup.create(host=address, port=port, rank=rank, world_size=world_size)

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        sent = self.group.broadcast_obj(tensor.detach().clone() if self.rank == src else None, src)
        if self.rank != src:
            tensor.copy_(sent)


class Worker:
    """Its WorkerWrap, on the CPU: what vLLM adds to its worker, by name, in the process of the engine, which `adapt`
    does not reach."""

    _model_update_group: Store
    vllm_config: Any
    model_runner: Any
    model_config: Any

    def init_process_group(
        self, address: str, port: int, rank_offset: int, world_size: int, *_: Any, **__: Any
    ) -> None:
        import torch

        self._model_update_group = Store(address, port, torch.distributed.get_rank() + rank_offset, world_size)
        self._held: list[tuple[str, Any]] = []

    def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None:
        """Collected up to the last, which is told by `empty_cache`, then all loaded at once."""
        import torch

        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        self._held.append((name, weight))
        if not empty_cache:
            return
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model = self.model_runner.model
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(model)
            model.load_weights(iter(self._held))
            finalize_layerwise_reload(model, self.model_config)
        self._held = []
        # tied: it keeps the old packed weights otherwise
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


def _measured(trainer: Any) -> None:
    """The clock starts where its fit does, with all models loaded."""
    from .work import Recorder

    begin, save = trainer.init_checkpoint_states, trainer.save_logs_and_checkpoints

    def started(self: Any) -> Any:
        self.peers_recorder = Recorder(Path(os.environ["PEERS_OUT"]))
        return begin(self)

    def logged(self: Any, global_step: int, status: Any = None, client_states: Any = None) -> None:
        status = status or {}
        recorder, samples = self.peers_recorder, status["rollout/num_samples"]
        recorder.phases = {
            k.removeprefix("timing/"): round(v, 4)
            for k, v in status.items()
            if k.startswith("timing/") and k != "timing/step_total"
        }
        tokens = round(status["written"] * samples)
        recorder.done(global_step, tokens, tokens, status["rollout/reward_mean"], round(samples))
        print(f"peers: step {global_step}, reward {status['rollout/reward_mean']:.3f}", time.strftime("%X"), flush=True)
        save(self, global_step, status, client_states)

    trainer.init_checkpoint_states, trainer.save_logs_and_checkpoints = started, logged
