"""ZeroStrategy without DeepSpeed: one process, plain torch modules and AdamW behind the methods of an engine. What the
learner does around its engines is then tested in seconds; what the engines do, in tests/e2e/test_learner.py."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist

from openrlhf_tir.learner.openrlhf_adapter import PolicyModel, ZeroStrategy


class PlainEngine(torch.nn.Module):
    """`grads`: those of each step; one that is not finite changes nothing, as with DeepSpeed."""

    def __init__(self, module: torch.nn.Module, settings: dict | None) -> None:
        super().__init__()
        self.module, self.grads, self.norm = module, [], 0.0
        self.optimizer = None
        if settings:
            adam = settings["adam"]
            self.max_norm = settings["max_norm"]
            self.optimizer = torch.optim.AdamW(
                module.parameters(),
                lr=adam["lr"],
                betas=adam["betas"],
                eps=adam["eps"],
                weight_decay=adam["weight_decay"],
            )
            self.optimizer.loss_scaler = SimpleNamespace(cur_scale=1.0)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def set_gradient_accumulation_boundary(self, last: bool) -> None:
        self.last = last

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        assert self.last
        for p in self.module.parameters():
            if p.grad is not None:
                p.grad /= self.optimizer.loss_scaler.cur_scale
        self.grads.append(
            {name: p.grad.numpy().copy() for name, p in self.module.named_parameters() if p.grad is not None}
        )
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.max_norm))
        if torch.isfinite(torch.tensor(self.norm)):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def get_global_grad_norm(self) -> float:
        return self.norm

    def destroy(self) -> None:
        pass


class PlainStrategy(ZeroStrategy):
    def setup_distributed(self, rank, world_size, master_addr, master_port) -> None:
        self.world_size = 1
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def prepare(self, asked):
        model, settings = asked if isinstance(asked, tuple) else (asked, None)
        engine = PlainEngine(model.model if isinstance(model, PolicyModel) else model, settings)
        if isinstance(model, PolicyModel):
            model.model = engine
        else:
            model = engine
        return (model, engine.optimizer, None) if settings else model
