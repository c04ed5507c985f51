"""Which of SB3's policies goes with which observations."""

import numpy as np
import pytest
from gymnasium import Space, spaces

from kit.encoders import policy_name
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
        ("auto", BOTH, "MultiInputPolicy"),
        ("nature_cnn", BOTH, "MultiInputPolicy"),
        ("mlp", spaces.Dict({"numbers": NUMBERS}), "MultiInputPolicy"),
    ],
)
def test_choice(encoder: str, space: Space, name: str) -> None:
    assert policy_name(encoder, space) == name


@pytest.mark.parametrize(("encoder", "space"), [("nature_cnn", NUMBERS), ("mlp", PICTURES), ("mlp", BOTH)])
def test_what_does_not_fit_is_refused(encoder: str, space: Space) -> None:
    with pytest.raises(UserError, match=f"encoder='{encoder}'"):
        policy_name(encoder, space)
