"""Tests of `choose`: SB3 policy for each observation space, refused encoders, minimum image size."""

import numpy as np
import pytest
from gymnasium import Space, spaces

from kit.encoders import choose
from kit.errors import UserError

NUMBERS = spaces.Box(-1, 1, (5,))
PICTURES = spaces.Box(0, 255, (3, 64, 64), np.uint8)
BOTH = spaces.Dict({"numbers": NUMBERS, "pictures": PICTURES})


@pytest.mark.parametrize(
    ("encoder", "space", "name"),
    [
        ("auto", NUMBERS, "MlpPolicy"),
        ("mlp", NUMBERS, "MlpPolicy"),
        ("auto", PICTURES, "CnnPolicy"),
        ("nature_cnn", PICTURES, "CnnPolicy"),
        ("auto", spaces.Box(0, 255, (64, 64, 3), np.uint8), "CnnPolicy"),
        ("auto", spaces.Dict({"eyes": spaces.Dict({"left": PICTURES}), "numbers": NUMBERS}), "MultiInputPolicy"),
        ("auto", spaces.Discrete(5), "MlpPolicy"),
        ("auto", BOTH, "MultiInputPolicy"),
        ("nature_cnn", BOTH, "MultiInputPolicy"),
        ("mlp", spaces.Dict({"numbers": NUMBERS}), "MultiInputPolicy"),
    ],
)
def test_policy_for_encoder_and_space(encoder: str, space: Space, name: str) -> None:
    assert choose(encoder, space).policy == name


@pytest.mark.parametrize(("encoder", "space"), [("nature_cnn", NUMBERS), ("mlp", PICTURES), ("mlp", BOTH)])
def test_encoder_that_does_not_fit_the_space_is_refused(encoder: str, space: Space) -> None:
    with pytest.raises(UserError, match=f"encoder='{encoder}'"):
        choose(encoder, space)


@pytest.mark.parametrize(("encoder", "space"), [("auto", NUMBERS), ("mlp", spaces.Dict({"numbers": NUMBERS}))])
def test_options_without_an_encoder_are_refused(encoder: str, space: Space) -> None:
    said = f"features_extractor_kwargs={{'features': 64}}: encoder='{encoder}' takes none of these options"
    with pytest.raises(UserError, match=said):
        choose(encoder, space, {"features": 64})


def test_images_too_small_for_the_network_are_refused() -> None:
    with pytest.raises(UserError, match="at least 36×36 and this env gives 24×32"):
        choose("auto", spaces.Box(0, 255, (24, 32, 3), np.uint8))
