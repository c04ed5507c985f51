"""Perceptrons of one shape side by side: each layer one batched product of (k, out, in) weights, gradients by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kit.trainers.flat import FlatVector

Net = Sequence[Sequence[nn.Linear]]
"""A perceptron's layers; each a list of linear maps of the same input, whose outputs lie side by side."""

ACTIVATIONS = {nn.Tanh: torch.tanh_, nn.ReLU: torch.relu_}


def linears(sequential: nn.Module) -> list[nn.Linear]:
    """The linear maps of SB3's perceptrons, which alternate them with activations."""
    return [module for module in sequential.children() if isinstance(module, nn.Linear)]


def activation(*sequentials: nn.Module) -> type[nn.Module] | None:
    """The activation between the linear maps of `sequentials`, if it is one and the same that we know."""
    kinds = {type(module) for net in sequentials for module in net.children()} - {nn.Linear}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in ACTIVATIONS else None


def widths(sequential: nn.Module) -> list[int]:
    """Outputs of each linear map."""
    return [module.out_features for module in linears(sequential)]


def layout(nets: Sequence[Net]) -> list[torch.Tensor | int]:
    """An order of parameters that lets `Perceptrons` see them stacked. Where nets differ in outputs (in the last layer,
    at most), the narrower are padded; the padding's gradients are always zero."""
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
    return sum(m.out_features for m in maps)


class Perceptrons:
    """`k` nets on the memory of `vector`, which has their parameters in the order of `layout`."""

    def __init__(self, vector: FlatVector, nets: Sequence[Net], kind: type[nn.Module]) -> None:
        self.weights: list[torch.Tensor] = []  # (k, out, in)
        self.biases: list[torch.Tensor] = []  # (k, 1, out)
        self._weight_grads: list[torch.Tensor] = []
        self._bias_grads: list[torch.Tensor] = []
        for layer in zip(*nets, strict=True):
            out, first = max(_outputs(maps) for maps in layer), layer[0][0]
            weight, weight_grad = vector.span(first.weight, len(nets), out, first.in_features)
            bias, bias_grad = vector.span(first.bias, len(nets), 1, out)
            self.weights.append(weight)
            self.biases.append(bias)
            self._weight_grads.append(weight_grad)
            self._bias_grads.append(bias_grad)
        self.k, self.outputs, self._tanh = len(nets), self.weights[-1].shape[1], kind is nn.Tanh
        self._activate_ = ACTIVATIONS[kind]

    def one(self, net: int, rows: torch.Tensor) -> torch.Tensor:
        """Outputs (B, out) of net number `net` for `rows` (B, in)."""
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            rows = torch.addmm(bias[net, 0], rows, weight[net].t())
            if layer < last:
                self._activate_(rows)
        return rows

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Outputs (k, B, out) for `rows` (B, in), the same to each, and what `backward` needs: each layer's input."""
        inputs, last = [rows.unsqueeze(0).expand(self.k, -1, -1)], len(self.weights) - 1  # (k, B, in), no copy
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = torch.baddbmm(bias, inputs[-1], weight.mT)
            if layer < last:
                inputs.append(self._activate_(out))
        return out, inputs

    def backward(self, grad: torch.Tensor, inputs: list[torch.Tensor]) -> None:
        """Fill the gradients of weights and biases, given the loss's by the outputs, `grad` (k, B, out)."""
        for layer in range(len(self.weights) - 1, -1, -1):
            torch.bmm(grad.mT, inputs[layer], out=self._weight_grads[layer])
            torch.sum(grad, 1, keepdim=True, out=self._bias_grads[layer])
            if layer:
                grad = self._through(torch.bmm(grad, self.weights[layer]), inputs[layer])

    def input_grad(
        self, net: int, grad: torch.Tensor, inputs: list[torch.Tensor], rows: torch.Tensor, columns: slice
    ) -> torch.Tensor:
        """The loss's gradient by some `columns` of the input of `rows` (R,) that net number `net` saw, given its
        gradient by the net's outputs there, `grad` (R, out)."""
        for layer in range(len(self.weights) - 1, 0, -1):
            grad = self._through(grad @ self.weights[layer][net], inputs[layer][net].index_select(0, rows))
        return grad @ self.weights[0][net, :, columns]

    def _through(self, grad: torch.Tensor, activated: torch.Tensor) -> torch.Tensor:
        if self._tanh:
            return torch.ops.aten.tanh_backward(grad, activated)
        return torch.ops.aten.threshold_backward(grad, activated, 0)
