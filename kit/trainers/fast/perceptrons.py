"""Stacked perceptrons of one shape: one batched matrix product per layer, with hand-written gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from kit.trainers.flat import FlatVector

Net = Sequence[Sequence[nn.Linear]]
"""Layers of a perceptron. A layer is a list of linear maps of the same input, whose outputs are concatenated."""


@dataclass(frozen=True)
class Activation:
    """Elementwise activation h = apply_(gain · x), in place. Its backward pass needs only the output h."""

    apply_: Callable[[torch.Tensor], torch.Tensor]
    backward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """(gradient w.r.t. h, h) -> gradient w.r.t. x."""
    gain: float = 1.0


def _tanh_(twice: torch.Tensor) -> torch.Tensor:
    return torch.add(_MINUS_ONE, twice.sigmoid_(), alpha=2, out=twice)  # tanh x = 2 σ(2x) - 1, in place on 2x


_MINUS_ONE = torch.tensor(-1.0)
_tanh_backward = torch.ops.aten.tanh_backward

ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: Activation(torch.tanh_, _tanh_backward),
    nn.ReLU: Activation(torch.relu_, lambda grad, h: torch.ops.aten.threshold_backward(grad, h, 0)),
    nn.ELU: Activation(nn.functional.elu_, lambda grad, h: torch.ops.aten.elu_backward(grad, 1.0, 1, 1, True, h)),
}
TANH_ON_CPU = Activation(_tanh_, _tanh_backward, gain=2.0)
"""tanh by the sigmoid, within 1e-7 of torch's tanh: 0.4 ns per element instead of 2.7 (AVX-512, torch 2.13)."""


def linears(sequential: nn.Module) -> list[nn.Linear]:
    """The linear layers of an SB3 perceptron, which alternates them with activations."""
    return [module for module in sequential.children() if isinstance(module, nn.Linear)]


def activation(*sequentials: nn.Module) -> type[nn.Module] | None:
    """The activation of all layers of `sequentials`; None if layers differ or `ACTIVATIONS` does not have it."""
    kinds = {type(module) for net in sequentials for module in net.children()} - {nn.Linear}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in ACTIVATIONS else None


def widths(sequential: nn.Module) -> list[int]:
    return [module.out_features for module in linears(sequential)]


def layout(nets: Sequence[Net]) -> list[torch.Tensor | int]:
    """Order the parameters so that `Perceptrons` can view them as stacked tensors.

    An int in the order stands for that many padding elements: the last layers may differ in output size, and narrower
    ones are padded. The padding has zero gradients.
    """
    order: list[torch.Tensor | int] = []
    for layer in zip(*nets, strict=True):
        widest = max(_outputs(maps) for maps in layer)
        for maps in layer:
            order += [m.weight for m in maps]
            order += [(widest - _outputs(maps)) * maps[0].in_features]
        for maps in layer:
            order += [m.bias for m in maps]
            order += [widest - _outputs(maps)]
    return [p for p in order if not isinstance(p, int) or p]


def _outputs(maps: Sequence[nn.Linear]) -> int:
    return sum(m.weight.shape[0] for m in maps)


class Perceptrons:
    """`k` stacked perceptrons, as views of `vector`, which holds their parameters in the order of `layout`."""

    def __init__(self, vector: FlatVector, nets: Sequence[Net], kind: type[nn.Module]) -> None:
        self._weights: list[torch.Tensor] = []  # (k, out, in)
        self._maps: list[tuple[torch.Tensor, torch.Tensor]] = []  # biases (k, 1, out) and weights (k, in, out)
        self._weight_grads: list[torch.Tensor] = []
        self._bias_grads: list[torch.Tensor] = []
        for layer in zip(*nets, strict=True):
            out, first = max(_outputs(maps) for maps in layer), layer[0][0]
            weight, weight_grad = vector.span(first.weight, len(nets), out, first.in_features)
            bias, bias_grad = vector.span(first.bias, len(nets), 1, out)
            self._weights.append(weight)
            self._maps.append((bias, weight.mT))
            self._weight_grads.append(weight_grad)
            self._bias_grads.append(bias_grad)
        self.k = len(nets)
        self._maps_by_net = [[(bias[net, 0], weight[net]) for bias, weight in self._maps] for net in range(self.k)]
        on_cpu = vector.data.device.type == "cpu"
        self._activation = TANH_ON_CPU if on_cpu and kind is nn.Tanh else ACTIVATIONS[kind]

    def forward_one(self, net: int, rows: torch.Tensor) -> torch.Tensor:
        """Outputs (B, out) of the single net number `net` for `rows` (B, in)."""
        *hidden, (bias, weight) = self._maps_by_net[net]
        apply_, gain = self._activation.apply_, self._activation.gain
        for b, w in hidden:
            rows = apply_(torch.addmm(b, rows, w, beta=gain, alpha=gain))
        return torch.addmm(bias, rows, weight)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Outputs (k, B, out) of all nets for the same `rows` (B, in), and each layer's input for `backward`."""
        *hidden, (bias, weight) = self._maps
        apply_, gain = self._activation.apply_, self._activation.gain
        inputs = [rows.unsqueeze(0).expand(self.k, -1, -1)]  # (k, B, in), no copy
        for b, w in hidden:
            inputs.append(apply_(torch.baddbmm(b, inputs[-1], w, beta=gain, alpha=gain)))
        return torch.baddbmm(bias, inputs[-1], weight), inputs

    def backward(self, grad: torch.Tensor, inputs: list[torch.Tensor]) -> None:
        """Fill the gradients of weights and biases from `grad` (k, B, out), the loss's gradient w.r.t. the outputs."""
        for layer in range(len(self._weights) - 1, -1, -1):
            torch.bmm(grad.mT, inputs[layer], out=self._weight_grads[layer])
            torch.sum(grad, 1, keepdim=True, out=self._bias_grads[layer])
            if layer:
                grad = self._activation.backward(torch.bmm(grad, self._weights[layer]), inputs[layer])

    def input_grad_all(self, grad: torch.Tensor, inputs: list[torch.Tensor], columns: slice) -> torch.Tensor:
        """Return the loss's gradients w.r.t. some `columns` of each net's input, (k, B, columns), for all rows.

        `grad` (k, B, out) is the gradient w.r.t. the outputs.
        """
        for layer in range(len(self._weights) - 1, 0, -1):
            grad = self._activation.backward(torch.bmm(grad, self._weights[layer]), inputs[layer])
        return torch.bmm(grad, self._weights[0][..., columns])

    def input_grad_rows(
        self, net: int, grad: torch.Tensor, inputs: list[torch.Tensor], rows: torch.Tensor, columns: slice
    ) -> torch.Tensor:
        """Return the loss's gradient w.r.t. some `columns` of the input of net number `net`, for `rows` (R,) only.

        `grad` (R, out) is the gradient w.r.t. that net's outputs in those rows.
        """
        for layer in range(len(self._weights) - 1, 0, -1):
            hidden = inputs[layer][net].index_select(0, rows)
            grad = self._activation.backward(grad @ self._weights[layer][net], hidden)
        return grad @ self._weights[0][net, :, columns]
