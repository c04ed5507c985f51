"""Play an exported policy: the ONNX file and the JSON file of `kit.export`, without the run that they came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gymnasium import Space, spaces

from kit.envs.obs import Obs, leaves
from kit.envs.play import HiddenState
from kit.errors import UserError, first_line, need


class ExportedPolicy:
    """A policy from an ONNX file, as a `Player`. It computes on the CPU, also for envs on a GPU.

    `onnx`, `about`: content of the file and of its JSON file.

    `name`: of the file, for errors. Raises `UserError` for a file that onnxruntime cannot load.
    """

    def __init__(self, onnx: bytes, about: str, name: str) -> None:
        onnxruntime = need("onnxruntime", "deploy")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # by default its threads spin on all cores between two calls
        try:
            self._session = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
            described = json.loads(about)
            self.inputs, self._memory, (self.output,) = (described[key] for key in ("inputs", "memory", "outputs"))
            self.is_bare = [entry["name"] for entry in self.inputs] == ["obs"]
            """Whether the observation is a tensor, not a dict."""
            told = {entry["name"]: list(entry["shape"]) for entry in (*self.inputs, *self._memory)}
            _theirs(self.output), [_theirs(entry) for entry in self.inputs]
        except Exception as error:  # onnxruntime has an exception per kind of damage
            raise UserError(f"{name} is not an ONNX file of kit ({first_line(error)}); export it again.") from None
        if told != {entry.name: entry.shape[1:] for entry in self._session.get_inputs()}:
            raise UserError(f"{name} has other inputs than the JSON file beside it says; export it again.")

    def initial_state(self, n: int) -> HiddenState:
        return tuple(torch.zeros(n, *entry["shape"]) for entry in self._memory)

    def __call__(self, obs: Obs, hidden_state: HiddenState, /) -> tuple[torch.Tensor, HiddenState]:
        fields = dict(leaves("obs", obs))
        device = next(iter(fields.values())).device
        names = [entry["name"] for entry in self.inputs]
        feed = {name: fields[name].cpu().numpy() for name in names}
        feed |= {entry["name"]: state.numpy() for entry, state in zip(self._memory, hidden_state, strict=True)}
        action, *after = (torch.from_numpy(array) for array in self._session.run(None, feed))
        return action.to(device), tuple(after)

    def misfit(self, obs_space: Space, action_space: Space) -> str | None:
        """Return what does not fit an env with these spaces, as "its INPUT has ..., the env's ..."; or None."""
        ours = {name: _form(space) for name, space in leaves("obs", obs_space)}
        for entry in self.inputs:
            if _theirs(entry) != ours.get(entry["name"]):
                return f"its {entry['name']} is {_theirs(entry)}, the env's {ours.get(entry['name'], 'is missing')}"
        bounds: dict[str, Any] = {}
        if isinstance(action_space, spaces.Box):
            bounds = {"low": action_space.low.tolist(), "high": action_space.high.tolist()}
        if _theirs(self.output) != _form(action_space) or any(self.output.get(key) != bounds[key] for key in bounds):
            return f"its action is {_theirs(self.output)}, the env's {action_space}"
        return None


def read(path: Path) -> tuple[bytes, str]:
    """Return the content of an ONNX file and of its JSON file. Raises `UserError` if one is missing."""
    for file in (path, path.with_suffix(".json")):
        if not file.is_file():
            raise UserError(f"{str(file)!r} is missing; `kit export RUN --to onnx` writes NAME.onnx and NAME.json.")
    return path.read_bytes(), path.with_suffix(".json").read_text(errors="replace")


def _form(space: Space) -> str:
    return f"{space.dtype} {tuple(space.shape or ())}"


def _theirs(entry: dict[str, Any]) -> str:
    return f"{entry['dtype']} {tuple(entry['shape'])}"
