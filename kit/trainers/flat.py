"""All parameters as one vector, with an optimizer that clips and steps them by a few GPU kernels.

SB3's save and load keep working, because parameters and the moments in SB3's optimizer become views of flat vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from kit.trainers.recorded import Recorded, Tensors

Layout = Sequence[torch.Tensor | int]
"""Parameters in memory order; an integer stands for that many elements of padding, which stay zero."""


class FlatVector:
    """Flat vectors `data` (P,) and `grad` (P,): the parameters in `layout` and their gradients become views of them."""

    def __init__(self, layout: Layout) -> None:
        parameters = [p for p in layout if not isinstance(p, int)]
        size = sum(p if isinstance(p, int) else p.numel() for p in layout)
        self.data = torch.zeros(size, device=parameters[0].device, dtype=parameters[0].dtype)
        self.grad = torch.zeros_like(self.data)
        self.spans: list[tuple[torch.Tensor, int]] = []
        offset = 0
        for p in layout:
            if not isinstance(p, int):
                self.spans.append((p, offset))
            offset += p if isinstance(p, int) else p.numel()
        self.attach()

    def attach(self) -> None:
        """Make every parameter a view of `data`, with its value kept. Call this again if `p.data` was replaced."""
        for p, offset in self.spans:
            view = self.view(self.data, p, offset)
            if p.data_ptr() != view.data_ptr():
                view.copy_(p.detach())
                p.data = view
            if p.requires_grad and (p.grad is None or p.grad.data_ptr() != self.grad.data_ptr() + 4 * offset):
                p.grad = self.view(self.grad, p, offset)

    def zero_grad(self) -> None:
        self.grad.zero_()

    def span(self, first: torch.Tensor, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of `data` and `grad` with `shape`; they start at parameter `first` and may span later ones."""
        offset = next(offset for p, offset in self.spans if p is first)
        size = torch.Size(shape).numel()
        return self.data[offset : offset + size].view(shape), self.grad[offset : offset + size].view(shape)

    @staticmethod
    def view(vector: torch.Tensor, p: torch.Tensor, offset: int) -> torch.Tensor:
        return vector[offset : offset + p.numel()].view(p.shape)


class FlatOptimizer(FlatVector):
    """Flat version of `optimizer`: the same update rule on one vector."""

    def __init__(self, optimizer: torch.optim.Optimizer, layout: Layout | None = None) -> None:
        parameters = optimizer.param_groups[0]["params"]
        layout = list(parameters) if layout is None else list(layout)
        assert {id(p) for p in layout if not isinstance(p, int)} == {id(p) for p in parameters}
        self.optimizer = optimizer
        self._rate = torch.zeros((), device=parameters[0].device)
        super().__init__(layout)
        self._initial_moment = 1.0 if isinstance(optimizer, RMSpropTFLike) else 0.0
        self._moments = {name: torch.full_like(self.data, self._initial_moment) for name in _MOMENTS[type(optimizer)]}
        self._steps = torch.zeros((), device=self.data.device)
        self._one, self._epsilon = torch.ones_like(self._steps), torch.full_like(self._steps, 1e-6)
        optimizer.register_state_dict_pre_hook(lambda _: self._export_moments())
        optimizer.register_load_state_dict_post_hook(lambda _: self._import_moments())
        self._import_moments()
        self._recorded = Recorded(self.apply, self.data.device, self.changes) if self.data.is_cuda else None

    def attach(self) -> None:
        super().attach()
        self._rate.fill_(self.optimizer.param_groups[0]["lr"])

    @property
    def changes(self) -> list[torch.Tensor]:
        """The tensors that `step` and `apply` change in place."""
        return [self.data, self.grad, self._steps, *self._moments.values()]

    @torch.no_grad()
    def step(self, max_norm: float | None = None) -> None:
        """Clip `grad` to `max_norm` (None: no clipping) and take one optimizer step. Overwrites `grad`.

        `attach` reads the learning rate; call it after a change.
        """
        arguments = () if max_norm is None else (max_norm,)
        if self._recorded is None:
            self.apply(*arguments)
        else:
            self._recorded(*arguments)

    def apply(self, max_norm: float | torch.Tensor | None = None) -> Tensors:
        """Do what `step` does, but without a CUDA graph of its own, so that a larger graph can capture this call."""
        group = self.optimizer.param_groups[0]
        excess = None
        if max_norm is not None:  # divide by max(1, (|g| + 1e-6) / max_norm), as torch's clip_grad_norm_
            excess = torch.linalg.vector_norm(self.grad).add_(self._epsilon).div_(max_norm).clamp_(min=1.0)
        self._steps.add_(self._one)
        if isinstance(self.optimizer, torch.optim.Adam):
            beta1, beta2 = group["betas"]
            torch._fused_adam_(
                [self.data], [self.grad], [self._moments["exp_avg"]], [self._moments["exp_avg_sq"]], [], [self._steps],
                lr=self._rate, beta1=beta1, beta2=beta2, weight_decay=0.0, eps=group["eps"],
                amsgrad=False, maximize=False, grad_scale=excess, found_inf=None,
            )  # fmt: skip
            return ()
        if excess is not None:
            self.grad.div_(excess)
        square = self._moments["square_avg"]  # v ← α v + (1 - α) g²
        square.mul_(group["alpha"]).addcmul_(self.grad, self.grad, value=1 - group["alpha"])
        inside = isinstance(self.optimizer, RMSpropTFLike)  # θ ← θ - lr g / (√v + ε), or / √(v + ε) as in TensorFlow
        root = square.add(group["eps"]).sqrt_() if inside else square.sqrt().add_(group["eps"])
        self.data.sub_(self.grad.div_(root).mul_(self._rate))
        return ()

    def _export_moments(self) -> None:
        if not self._steps.item():
            return
        for p, offset in self.spans:
            steps: Any = int(self._steps.item()) if isinstance(self.optimizer, RMSpropTFLike) else self._steps.clone()
            moments = {name: self.view(moment, p, offset) for name, moment in self._moments.items()}
            self.optimizer.state[p] = {"step": steps, **moments}

    def _import_moments(self) -> None:
        """Copy the moments from the torch optimizer's state: at construction, and after each `load_state_dict`."""
        self._steps.zero_()
        for p, offset in self.spans:
            loaded = self.optimizer.state.get(p)
            for name, moment in self._moments.items():
                self.view(moment, p, offset).copy_(loaded[name] if loaded else torch.full_like(p, self._initial_moment))
            if loaded:
                self._steps.fill_(float(loaded["step"]))
        self._export_moments()


class PlainOptimizer:
    """`FlatOptimizer`'s interface for optimizers that it does not support."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def attach(self) -> None:
        pass

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def step(self, max_norm: float | None = None) -> None:
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], max_norm)
        self.optimizer.step()


def can_flatten(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether `FlatOptimizer` supports `optimizer`: Adam or RMSprop, torch's or SB3's, without rare options."""
    if type(optimizer) not in _MOMENTS or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    rare = ("weight_decay", "amsgrad", "maximize", "centered", "momentum", "capturable")
    uniform = {(p.device, p.dtype) for p in group["params"]} == {(group["params"][0].device, torch.float32)}
    return uniform and not any(group.get(option) for option in rare)


def flatten(optimizer: torch.optim.Optimizer) -> FlatOptimizer | PlainOptimizer:
    """Wrap `optimizer` in a `FlatOptimizer` if supported, else in a `PlainOptimizer`."""
    return FlatOptimizer(optimizer) if can_flatten(optimizer) else PlainOptimizer(optimizer)


_MOMENTS: dict[type, tuple[str, ...]] = {
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.RMSprop: ("square_avg",),
    RMSpropTFLike: ("square_avg",),
}
