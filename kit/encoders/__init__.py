"""Encoders: from what a robot sees to the features its policy uses. Each is an SB3 features extractor with a name.

kit.RunConfig(env="ReachVision", encoder="simple2dcnn",
              overrides={"policy_kwargs": {"features_extractor_kwargs": {"features": 64}}})
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from gymnasium import Space, spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from kit import trust
from kit.envs.obs import CRITIC, POLICY, Groups, PolicyView, is_image
from kit.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from kit.encoders.extractor import ImageExtractor

ASYMMETRIC = "AsymmetricPolicy"
"""A policy whose actor and critic see different groups, `kit.encoders.asymmetric`."""
OPTIONS = "features_extractor_kwargs"
"""Where SB3's policy_kwargs hold an encoder's own settings."""


class Encoder(NamedTuple):
    """What an encoder means for an algorithm: SB3's name of a policy class, and the arguments that make it this one. Of
    a features extractor that learns nothing, freeze the parameters: they are stored once per run."""

    policy: str
    policy_kwargs: dict[str, Any]
    make_view: Callable[[], PolicyView] | None = None
    """Builds the view of observations, where an encoder whose weights never change sees them in the policy's place, or
    where they hold what neither actor nor critic sees."""


class EncoderInfo(NamedTuple):
    """What to know of an encoder before choosing it."""

    where: str
    """module:Class, imported when it is chosen."""
    does: str
    costs: str
    """Multiply-adds of one forward pass over three cameras with 4 frames of 64×64 each, and parameters."""
    use_when: str


ENCODERS = {
    "nature_cnn": EncoderInfo(
        "kit.encoders.convolutions:NatureEncoder",
        "three convolutions (32, 64, 64) of all frames at once, an eye for each camera",
        "22 M, 0.7 M",
        "pictures are simple and how things move matters; what Atari agents use",
    ),
    "multi_camera": EncoderInfo(
        "kit.encoders.convolutions:MultiCameraEncoder",
        "the same at half the width (16, 32, 32); shared=True gives all cameras one eye",
        "10 M, 0.3 M",
        "there are several cameras and few cores",
    ),
    "simple2dcnn": EncoderInfo(
        "kit.encoders.convolutions:Simple2DEncoder",
        "each frame by itself in patches of 4×4 (16, 32, 32); the newest, and how it differs from the mean",
        "6 M, 0.3 M",
        "in doubt, with stacks: where things are is read from one frame, little from the others",
    ),
    "simple3dcnn": EncoderInfo(
        "kit.encoders.convolutions:Simple3DEncoder",
        "convolutions of time and space (16, 32, 32)",
        "15 M, 0.3 M",
        "the task is about motion, in clips of 8 frames and more",
    ),
    "r3d18": EncoderInfo(
        "kit.encoders.r3d18:R3D18Encoder",
        "a residual network in time and space; options weights (kinetics, or a file) and frozen",
        "10,600 M, 33 M",
        "clips of 8 frames or more look like what people film; frozen on a CPU, fine-tuned on a GPU",
    ),
    "timesformer": EncoderInfo(
        "kit.encoders.timesformer:TimesformerEncoder",
        "attention over time and space; options weights (a checkpoint's name or folder) and frozen",
        "112 M, 0.6 M (random ones; the published are 121 M)",
        "there is a GPU and much data",
    ),
}  # fmt: skip


def choose(
    encoder: str,
    observation_space: Space,
    options: Mapping[str, Any] | None = None,
    obs_groups: Groups = MappingProxyType({}),
) -> Encoder:
    """The `encoder` (auto, mlp, one of `ENCODERS` or module:Class) for observations of this kind, of which `obs_groups`
    say what actor and critic see. Nothing is built. Raises `UserError` if it, or one of its `options`, does not fit."""
    options = options or {}
    _check_prefix(observation_space, obs_groups)
    actor = obs_groups.get(POLICY)
    critic = obs_groups.get(CRITIC, actor)
    if actor is not None and critic is not None and set(actor) != set(critic):
        return _asymmetric(encoder, observation_space, options, actor, critic)
    space = PolicyView(observation_space, actor).space
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy" if _pictures(space) else "MlpPolicy"
    made = _extractor(encoder, space, options)
    if made is None:
        return Encoder(policy, {}, _narrowed(observation_space, actor))
    if _is_ours(made) and options.get("frozen"):
        return Encoder("MlpPolicy", {}, partial(_frozen_view, made, observation_space, options, actor))
    kwargs = {"features_extractor_class": made, "normalize_images": not _is_ours(made)}
    return Encoder(policy, kwargs, _narrowed(observation_space, actor))


def _asymmetric(
    encoder: str, observation_space: Space, options: Mapping[str, Any], actor: Sequence[str], critic: Sequence[str]
) -> Encoder:
    """For an actor and a critic that see different entries."""
    used = {*actor, *critic}
    space = PolicyView(observation_space, used).space
    assert isinstance(space, spaces.Dict)
    entries = [_flat(space, names) for names in (actor, critic)]
    seen, known = (spaces.Dict({name: space[name] for name in names}) for names in entries)
    kwargs: dict[str, Any] = {"actor_entries": entries[0], "critic_entries": entries[1]}
    if options.get("frozen"):
        raise UserError(
            f"{OPTIONS} frozen=True keeps features in place of observations, of which a critic with a group of its own "
            "could read nothing; leave out frozen, or the critic's group from env_options obs_groups."
        )
    made = _extractor(encoder, seen, options, own=True)
    if made is None and _pictures(known):
        raise UserError(
            f"obs_groups let the critic see images ({', '.join(critic)}) and the policy none; give the critic numbers."
        )
    if made is not None:
        if _pictures(known) and _is_ours(made):
            made.check(known, **options)
        kwargs |= {"features_extractor_class": made, "normalize_images": not _is_ours(made)}
    return Encoder(ASYMMETRIC, kwargs, _narrowed(observation_space, used))


def _extractor(
    encoder: str, space: Space, options: Mapping[str, Any], own: bool = False
) -> type[BaseFeaturesExtractor] | None:
    """The class for observations of `space`, as policies take them; None where SB3's will do, unless it must be one's
    `own` for pictures."""
    if ":" in encoder:
        anybodys = load(encoder)
        _check(encoder, anybodys, options)
        if _is_ours(anybodys):
            anybodys.check(space, **options)
        return anybodys
    pictures = _pictures(space)
    if encoder in ENCODERS and not pictures:
        raise UserError(f"encoder={encoder!r} wants pictures and this env gives {space}; use mlp or auto.")
    if encoder == "mlp" and pictures:
        raise UserError(f"encoder={encoder!r} wants numbers and this env gives pictures; use nature_cnn or auto.")
    stacks = any(len(picture.shape) == 4 for picture in pictures)
    plain = not stacks and not options and not own and encoder in ("auto", "nature_cnn")
    if not pictures or plain:
        for picture in pictures:
            _enlarged(encoder, picture)
        return None
    name = encoder if encoder in ENCODERS else "simple2dcnn" if stacks else "nature_cnn"
    made = load(name)
    assert _is_ours(made)
    _check(name, made, options)
    made.check(space, **options)
    return made


def _narrowed(space: Space, names: Collection[str] | None) -> Callable[[], PolicyView] | None:
    """The view of those entries alone, where there are others; None where the whole observation is seen."""
    others = names is not None and isinstance(space, spaces.Dict) and not set(space) <= set(names)
    return partial(PolicyView, space, tuple(names)) if others and names is not None else None


def _flat(space: spaces.Dict, names: Sequence[str]) -> tuple[str, ...]:
    """The entries of a flattened `space` that belong to the top-level entries `names`."""
    return tuple(flat for flat in space if any(flat == name or flat.startswith(f"{name}/") for name in names))


def _check_prefix(space: Space, obs_groups: Groups) -> None:
    """Until 0.2 a name hid an entry from the actor; an env that counts on it must not leak it silently."""
    if isinstance(space, spaces.Dict) and not obs_groups:
        hidden = [name for name in space if name.startswith("critic_")]
        if hidden:
            raise UserError(
                f"the entry {hidden[0]!r} is no longer hidden from the actor by its name; declare who sees what: "
                f"obs_groups = {{'policy': ..., 'critic': {tuple(hidden)!r}}}."
            )


def _frozen_view(
    made: type[ImageExtractor], observation_space: Space, options: Mapping[str, Any], names: Collection[str] | None
) -> PolicyView:
    from kit.encoders.frozen import FrozenView

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # random weights are the same in every run and after every resume
        return FrozenView(observation_space, made(PolicyView(observation_space, names).space, **options), names)


def load(encoder: str) -> type[BaseFeaturesExtractor]:
    """The class of one of `ENCODERS`, or module:Class of the user's own. Raises `UserError`."""
    module, _, name = (ENCODERS[encoder].where if encoder in ENCODERS else encoder).partition(":")
    trust.check(encoder, module)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"encoder={encoder!r} cannot be loaded ({error}); write module:Class.") from None
    if not isinstance(found, type) or not issubclass(found, BaseFeaturesExtractor):
        raise UserError(
            f"encoder={encoder!r} is no features extractor; derive it from kit.encoders.extractor.ImageExtractor, or "
            "from stable_baselines3's BaseFeaturesExtractor."
        )
    return found


def _is_ours(extractor: type[BaseFeaturesExtractor]) -> TypeIs[type[ImageExtractor]]:
    """Whether it takes images as kit's encoders do: uint8, or 0 to 255, in any order of frames and channels."""
    from kit.encoders.extractor import ImageExtractor

    return issubclass(extractor, ImageExtractor)


def sees_images(observation_space: Space) -> bool:
    return bool(_pictures(PolicyView(observation_space).space))


def _check(encoder: str, made: type, options: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(made).parameters if name != "observation_space"]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UserError(f"{OPTIONS} {name}={options[name]!r} is not one of {encoder}'s; {hint}valid are "
                            f"{', '.join(known)}.")  # fmt: skip


def _enlarged(encoder: str, picture: spaces.Box) -> None:
    from kit.encoders.convolutions import NATURE_PIXELS
    from kit.encoders.extractor import at_least, clip_shape

    at_least(encoder, clip_shape(picture), NATURE_PIXELS)


def _pictures(space: Space) -> list[spaces.Box]:
    entries = space.values() if isinstance(space, spaces.Dict) else [space]
    return [entry for entry in entries if isinstance(entry, spaces.Box) and is_image(entry)]
