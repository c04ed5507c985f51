"""The override autocast="bf16": close to float32, on the general path, refused where no card has it."""

import pytest
import torch
from fake_env import trainer

from kit.config import RunConfig
from kit.errors import UserError
from kit.measure.auto import resolve


@pytest.mark.parametrize("algo", ["PPO", "A2C"])
def test_it_trains_close_to_float32(algo):
    models = [trainer(algo, autocast=kind) for kind in (None, "bf16")]
    obs = models[0]._last_obs
    models[1].policy.load_state_dict(models[0].policy.state_dict())
    with torch.no_grad():
        (values, full), (half_values, half) = (
            (model.policy.predict_values(obs), model.policy.get_distribution(obs).distribution.mean) for model in models
        )
    assert half.dtype == half_values.dtype == torch.float32
    assert not torch.equal(values, half_values), "it was computed in fewer bits"
    assert torch.allclose(values, half_values, atol=0.02) and torch.allclose(full, half, atol=0.02)
    for model in models:
        model.learn(6000)
    returns = [sum(e["r"] for e in model.ep_info_buffer) / len(model.ep_info_buffer) for model in models]
    fresh = trainer(algo)
    fresh.learn(400)
    begun = sum(e["r"] for e in fresh.ep_info_buffer) / len(fresh.ep_info_buffer)
    assert returns[1] > begun + 0.5 * (returns[0] - begun), (begun, returns)
    assert all(parameter.dtype == torch.float32 for parameter in models[1].policy.parameters())


def test_a_saved_model_is_plain_sb3(tmp_path):
    import stable_baselines3 as sb3

    model = trainer("PPO", autocast="bf16")
    model.save(tmp_path / "model.zip")
    obs = model._last_obs.numpy()
    plain = sb3.PPO.load(tmp_path / "model.zip", device="cpu")
    assert abs(plain.predict(obs, deterministic=True)[0] - model.predict(obs, deterministic=True)[0]).max() < 0.02


@pytest.mark.parametrize(
    ("overrides", "algo", "said"),
    [
        ({"autocast": "bf16"}, "PPO", "autocast='bf16' needs an NVIDIA card from Ampere .* device='cpu' is not"),
        ({"autocast": "fp8"}, "PPO", "autocast='fp8' is unknown; write bf16"),
        ({"autocast": "bf16"}, "SAC", "is not one of SAC's"),
    ],
)
def test_what_cannot_be_is_refused(overrides, algo, said):
    with pytest.raises(UserError, match=said):
        resolve(RunConfig(algo=algo, device="cpu", overrides=overrides))
