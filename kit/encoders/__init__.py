"""Encoders: named SB3 features extractors that turn images and clips into features for a policy.

kit.RunConfig(env="ReachVision", encoder="simple2dcnn",
              overrides={"policy_kwargs": {"features_extractor_kwargs": {"features": 64}}})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from gymnasium import Space, spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from kit import trust
from kit.envs.obs import CRITIC, POLICY, Groups, PolicyView, is_image, pick_space
from kit.errors import UserError, check_names

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from kit.encoders.extractor import ImageExtractor

ASYMMETRIC = "AsymmetricPolicy"
"""Policy name for an actor and a critic with different observation groups, `kit.encoders.asymmetric`."""
OF_DICTS = {"cnn_output_dim", "normalized_image"}
"""Options of SB3's `CombinedExtractor`, for Dict observations without images."""
OPTIONS = "features_extractor_kwargs"
"""Key of SB3's policy_kwargs that holds an encoder's options."""


class Encoder(NamedTuple):
    """An encoder as arguments of an SB3 algorithm: policy name and policy_kwargs.

    Parameters with requires_grad=False are stored once per run, not in every checkpoint.
    """

    policy: str
    policy_kwargs: dict[str, Any]
    make_view: Callable[[], PolicyView] | None = None
    """Makes a `PolicyView` that applies a frozen encoder or drops entries that no network reads; None: not needed."""

    @property
    def extractor(self) -> type[BaseFeaturesExtractor] | None:
        """Class of the policy's features extractor; None: SB3's default."""
        return self.policy_kwargs.get("features_extractor_class")


class EncoderInfo(NamedTuple):
    """Description of an encoder, to help choose one."""

    where: str
    """module:Class, imported when the encoder is chosen."""
    does: str
    """Architecture, in one phrase."""
    costs: str
    """Multiply-adds of one forward pass over three cameras with 4 frames of 64×64 each, and number of parameters."""
    use_when: str
    """When to choose it."""


ENCODERS = {
    "nature_cnn": EncoderInfo(
        "kit.encoders.convolutions:NatureEncoder",
        "three convolutions (32, 64, 64) over all frames as channels, one network per camera",
        "22 M, 0.7 M",
        "images are simple and motion matters; the network of Atari agents",
    ),
    "multi_camera": EncoderInfo(
        "kit.encoders.convolutions:MultiCameraEncoder",
        "nature_cnn with half the channels (16, 32, 32); shared=True uses one network for all cameras",
        "10 M, 0.3 M",
        "there are several cameras and few cores",
    ),
    "simple2dcnn": EncoderInfo(
        "kit.encoders.convolutions:Simple2DEncoder",
        "2D convolutions (16, 32, 32) of each frame, the first over patches of 4×4; gives the newest frame's features "
        "and their difference from the mean over the clip",
        "6 M, 0.3 M",
        "in doubt, with frame stacks: positions come from one frame, motion from the difference",
    ),
    "clip_cnn": EncoderInfo(
        "kit.encoders.convolutions:ClipEncoder",
        "nature_cnn over 3 frames of a clip: the newest, and older ones at growing distances; option frames",
        "20 M, 0.9 M",
        "clips are long and positions matter; the default of Distill and BC",
    ),
    "simple3dcnn": EncoderInfo(
        "kit.encoders.convolutions:Simple3DEncoder",
        "3D convolutions over time and space (16, 32, 32)",
        "15 M, 0.3 M",
        "the task is about motion, in clips of 8 frames and more; learning takes five times as long as with clip_cnn",
    ),
    "r3d18": EncoderInfo(
        "kit.encoders.r3d18:R3D18Encoder",
        "3D residual network (R3D-18); options weights (kinetics, or a file) and frozen",
        "10,600 M, 33 M",
        "there is a GPU and clips look like real video; on one core, inference "
        "runs at 5 clips/s and a gradient step on 128 clips takes 83 s",
    ),
    "timesformer": EncoderInfo(
        "kit.encoders.timesformer:TimesformerEncoder",
        "attention over time and space; options weights (a checkpoint's name or folder) and frozen",
        "112 M, 0.6 M (random weights; published ones have 121 M)",
        "there is a GPU and much data; on one core, learning from 128 clips takes 2 s",
    ),
}  # fmt: skip


def choose(
    encoder: str,
    observation_space: Space,
    options: Mapping[str, Any] | None = None,
    obs_groups: Groups = MappingProxyType({}),
) -> Encoder:
    """Return the encoder for an observation space; its network is not built yet.

    `encoder` is auto, mlp, one of `ENCODERS` or module:Class; `options` are parameters of its constructor; `obs_groups`
    declares which entries actor and critic read. Raises `UserError` if the encoder or an option does not fit.
    """
    options = options or {}
    _check_prefix(observation_space, obs_groups)
    actor = obs_groups.get(POLICY)
    critic = obs_groups.get(CRITIC, actor)
    if actor is not None and critic is not None and set(actor) != set(critic):
        return _asymmetric(encoder, observation_space, options, actor, critic)
    space = PolicyView(observation_space, actor).space
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy" if _images(space) else "MlpPolicy"
    extractor = _extractor(encoder, space, options)
    if extractor is None:
        return Encoder(policy, {}, _selecting_view(observation_space, actor))
    if is_image_extractor(extractor) and options.get("frozen"):
        return Encoder("MlpPolicy", {}, partial(_frozen_view, extractor, observation_space, options, actor))
    kwargs = {"features_extractor_class": extractor, "normalize_images": not is_image_extractor(extractor)}
    return Encoder(policy, kwargs, _selecting_view(observation_space, actor))


def _asymmetric(
    encoder: str, observation_space: Space, options: Mapping[str, Any], actor: Sequence[str], critic: Sequence[str]
) -> Encoder:
    """Return the encoder for an `actor` and a `critic` that read different entries."""
    used = {*actor, *critic}
    space = PolicyView(observation_space, used).space
    assert isinstance(space, spaces.Dict)
    entries = [_flat(space, names) for names in (actor, critic)]
    actor_space, critic_space = (spaces.Dict({name: space[name] for name in names}) for names in entries)
    kwargs: dict[str, Any] = {"actor_entries": entries[0], "critic_entries": entries[1]}
    if options.get("frozen"):
        raise UserError(
            f"{OPTIONS} frozen=True stores features instead of observations, and a critic with its own group needs the "
            "observations; leave out frozen, or the critic's group from env_options obs_groups."
        )
    extractor = _extractor(encoder, actor_space, options, own=True)
    if extractor is None and _images(critic_space):
        raise UserError(
            f"obs_groups let the critic see images ({', '.join(critic)}) and the policy none; give it vectors only."
        )
    if extractor is not None:
        if _images(critic_space) and is_image_extractor(extractor):
            extractor.check(critic_space, **options)
        kwargs |= {"features_extractor_class": extractor, "normalize_images": not is_image_extractor(extractor)}
    return Encoder(ASYMMETRIC, kwargs, _selecting_view(observation_space, used))


def _extractor(
    encoder: str, space: Space, options: Mapping[str, Any], own: bool = False
) -> type[BaseFeaturesExtractor] | None:
    """Return the features extractor class for a policy's input `space`; None means SB3's default.

    `own`: actor and critic read different entries; then images get an encoder of kit's, never SB3's default.
    """
    images = _images(space)
    if ":" in encoder:
        custom = load(encoder)
        _check_options(encoder, custom, options)
        if is_image_extractor(custom):
            if not images:
                raise UserError(f"encoder={encoder!r} needs images and this env gives {space}; use mlp or auto.")
            custom.check(space, **options)
        return custom
    if encoder in ENCODERS and not images:
        raise UserError(f"encoder={encoder!r} needs images and this env gives {space}; use mlp or auto.")
    if encoder == "mlp" and images:
        raise UserError(f"encoder={encoder!r} needs vectors and this env gives images; use nature_cnn or auto.")
    stacks = any(len(image.shape) == 4 for image in images)
    sb3_default = not stacks and not options and not own and encoder in ("auto", "nature_cnn")
    if not images and not set(options) <= (OF_DICTS if isinstance(space, spaces.Dict) else set()):
        raise UserError(
            f"{OPTIONS}={dict(options)!r}: encoder={encoder!r} takes none of these options for {space}; "
            "leave them out, or set encoder to a module:Class of yours."
        )
    if not images or sb3_default:
        from kit.encoders.convolutions import NatureEncoder

        NatureEncoder.check(space)  # SB3's NatureCNN requires the same minimum image size
        return None
    name = encoder if encoder in ENCODERS else "simple2dcnn" if stacks else "nature_cnn"
    extractor = load(name)
    assert is_image_extractor(extractor)
    _check_options(name, extractor, options)
    extractor.check(space, **options)
    return extractor


def _selecting_view(space: Space, names: Collection[str] | None) -> Callable[[], PolicyView] | None:
    """Return a function that makes a view of the entries `names`; None if `names` are all entries of `space`."""
    if names is None or not isinstance(space, spaces.Dict) or set(space) <= set(names):
        return None
    return partial(PolicyView, space, tuple(names))


def _flat(space: spaces.Dict, names: Sequence[str]) -> tuple[str, ...]:
    """Return the entries of the flattened `space` that belong to the top-level entries `names`."""
    return tuple(flat for flat in space if any(flat == name or flat.startswith(f"{name}/") for name in names))


def _check_prefix(space: Space, obs_groups: Groups) -> None:
    """Raise `UserError` for entries named critic_* without obs_groups; kit 0.2 and older hid them from the actor."""
    if isinstance(space, spaces.Dict) and not obs_groups:
        hidden = [name for name in space if name.startswith("critic_")]
        if hidden:
            raise UserError(
                f"the entry {hidden[0]!r} is no longer hidden from the actor by its name; declare who sees what: "
                f"obs_groups = {{'policy': ..., 'critic': {tuple(hidden)!r}}}."
            )


def _frozen_view(
    extractor: type[ImageExtractor], observation_space: Space, options: Mapping[str, Any], names: Collection[str] | None
) -> PolicyView:
    from kit.encoders.frozen import FrozenView

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # so that random weights are the same in every run and after every resume
        return FrozenView(observation_space, extractor(PolicyView(observation_space, names).space, **options), names)


def load(encoder: str) -> type[BaseFeaturesExtractor]:
    """Import an encoder class: one of `ENCODERS` or a user's module:Class. Raises `UserError`."""
    where = ENCODERS[encoder].where if encoder in ENCODERS else encoder
    extractor = trust.load("encoder", encoder, where, "module:Class")
    if not isinstance(extractor, type) or not issubclass(extractor, BaseFeaturesExtractor):
        raise UserError(
            f"encoder={encoder!r} is not a features extractor class; derive it from "
            "kit.encoders.extractor.ImageExtractor, or from stable_baselines3's BaseFeaturesExtractor."
        )
    return extractor


def is_image_extractor(extractor: type[BaseFeaturesExtractor] | None) -> TypeIs[type[ImageExtractor]]:
    """Return whether `extractor` takes images as they are: uint8, or float from 0 to 255, single or stacked."""
    from kit.encoders.extractor import ImageExtractor

    return extractor is not None and issubclass(extractor, ImageExtractor)


def sees_images(observation_space: Space, names: Collection[str] | None = None) -> bool:
    """Return whether observations of this space contain images, in the flattened entries `names`; None: in any."""
    space = PolicyView(observation_space).space
    return bool(_images(pick_space(space, names, bare=False)))


def sees_clips(observation_space: Space, obs_groups: Groups = MappingProxyType({})) -> bool:
    """Return whether the policy's observations contain frame stacks of images."""
    return any(len(image.shape) == 4 for image in _images(PolicyView(observation_space, obs_groups.get(POLICY)).space))


def _check_options(encoder: str, extractor: type, options: Mapping[str, Any]) -> None:
    """Raise `UserError` for an option that is not a parameter of the encoder's constructor."""
    known = [name for name in inspect.signature(extractor).parameters if name != "observation_space"]
    check_names(OPTIONS, options, encoder, known)


def _images(space: Space) -> list[spaces.Box]:
    entries = space.values() if isinstance(space, spaces.Dict) else [space]
    return [entry for entry in entries if isinstance(entry, spaces.Box) and is_image(entry)]
