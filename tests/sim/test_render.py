"""Tests of `Renderer`: pinhole geometry by hand, colours, shadows, Gymnasium envs without OpenGL, cached background."""

from __future__ import annotations

import sys

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

from kit.errors import UserError
from kit.sim import make_sim
from kit.sim.render import POSES, Renderer, default_camera, pose_of, render_data
from kit.sim.studio import studio

pytestmark = pytest.mark.timeout(900)  # a first launch on a machine compiles kernels, for minutes on a busy one


def poses(*data: mujoco.MjData) -> dict[str, np.ndarray]:
    return {name: np.stack([getattr(d, name) for d in data]) for name in POSES}


@pytest.fixture(scope="module")
def ball() -> mujoco.MjModel:
    """Red ball of radius 0.1 m, 2 m in front of a camera.

    The camera is at the origin, looks along +x and has a field of view of 90 degrees.
    """
    return mujoco.MjModel.from_xml_string("""
      <mujoco><worldbody>
        <camera name="eye" xyaxes="0 -1 0 0 0 1" fovy="90"/>
        <body name="ball" mocap="true" pos="2 0 0"><geom type="sphere" size="0.1" rgba="1 0 0 1"/></body>
      </worldbody></mujoco>""")


def seen_at(model: mujoco.MjModel, *positions: tuple[float, float, float]) -> list[mujoco.MjData]:
    worlds = [mujoco.MjData(model) for _ in positions]
    for data, position in zip(worlds, positions, strict=True):
        data.mocap_pos[0] = position
        mujoco.mj_forward(model, data)
    return worlds


def red(picture: torch.Tensor) -> np.ndarray:
    """Return rows and columns (k, 2) of the red pixels of an image (h, w, 3)."""
    picture = picture.int()
    return torch.nonzero((picture[..., 0] > 60) & (picture[..., 1] < 20) & (picture[..., 2] < 20)).numpy()


def test_a_ball_is_rendered_where_the_pinhole_model_puts_it(ball):
    worlds = seen_at(ball, (2, 0, 0), (2, 0.5, 0), (2, 0, 1.0))
    pictures = Renderer(ball, 3, ("eye",), 100, 100).render(poses(*worlds))
    assert pictures.shape == (3, 1, 100, 100, 3) and pictures.dtype == torch.uint8
    # 90 degrees over 100 pixels: a metre at a distance of 2 m is 25 pixels; the centre is at 49.5
    centres = [red(picture[0]).mean(0) for picture in pictures]
    assert np.allclose(centres, [[49.5, 49.5], [49.5, 49.5 - 12.5], [49.5 - 25, 49.5]], atol=0.6)
    assert 0.8 < len(red(pictures[0, 0])) / (np.pi * 2.5**2) < 1.2  # a disc of radius 0.1 m = 2.5 pixels


def viewers_camera(lookat: tuple[float, float, float], distance: float, azimuth: float, elevation: float):
    camera = mujoco.MjvCamera()
    camera.lookat, camera.distance, camera.azimuth, camera.elevation = lookat, distance, azimuth, elevation
    return camera


def test_a_free_camera_renders_like_a_model_camera_at_the_same_pose(ball):
    world = seen_at(ball, (2, 0.3, 0.2))[0]
    free = viewers_camera((1, 0, 0), distance=1, azimuth=0, elevation=0)
    ball.vis.global_.fovy = 90
    frames = Renderer(ball, 1, ("eye", free), 40, 60)
    position, rotation = pose_of(free, ball, world)
    fields = poses(world)
    fields["cam_xpos"] = np.concatenate([fields["cam_xpos"], position[None, None]], axis=1)
    fields["cam_xmat"] = np.concatenate([fields["cam_xmat"], rotation[None, None]], axis=1)
    eye, same = frames.render(fields)[0]
    assert eye.shape == (40, 60, 3) and len(red(eye)) > 0
    assert torch.equal(eye, same)


def test_each_env_may_have_its_own_colours(ball):
    worlds = seen_at(ball, (2, 0, 0), (2, 0, 0))
    colours = np.array([[[1.0, 0, 0, 1]], [[0, 1.0, 0, 1]]])
    renderer = Renderer(ball, 2, ("eye",), 40, 40)
    first, second = renderer.render({**poses(*worlds), "geom_rgba": colours})[:, 0, 20, 20]
    assert first[0] > 60 and first[1] < 20 and second[1] > 60 and second[0] < 20
    again = renderer.render(poses(*worlds))[:, 0, 20, 20]  # without geom_rgba: the model's red
    assert torch.equal(again[0], first) and torch.equal(again[1], first)


def test_randomised_colours_are_rendered():
    spec = mujoco.MjSpec()
    spec.worldbody.add_camera(name="eye", fovy=90)
    spec.worldbody.add_geom(pos=[0, 0, -2], size=[0.1, 0, 0], rgba=[1, 0, 0, 1])
    moving = spec.worldbody.add_body(pos=[9, 0, 0])
    moving.add_joint()
    moving.add_geom(size=[0.1, 0, 0])
    sim = make_sim(spec.compile(), 2, "cpu", threads=1)
    plain = sim.render(("eye",), 40, 40)[:, 0]
    assert torch.equal(*plain) and len(red(plain[0])) > 0
    sim.parameter("geom_rgba")[1, 0] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    first, second = sim.render(("eye",), 40, 40)[:, 0]
    assert torch.equal(first, plain[0]) and not len(red(second)) and second[20, 20, 1] > 60


def test_bad_requests_are_refused_in_a_sentence(ball):
    with pytest.raises(UserError, match=r"no camera 'eyes'; its cameras: eye\."):
        Renderer(ball, 1, ("eyes",), 8, 8)
    with pytest.raises(UserError, match="height=0"):
        Renderer(ball, 1, ("eye",), 0, 8)


def test_studio_lights_a_scene_and_casts_a_shadow():
    spec = mujoco.MjSpec()
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.2, 0, 0], pos=[0, 0, 0.5], rgba=[1, 0.2, 0.1, 1])
    studio(spec)
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    view = viewers_camera((0, 0, 0.3), distance=3, azimuth=135, elevation=-15)
    position, rotation = pose_of(view, model, data)
    fields = {**poses(data), "cam_xpos": position[None, None], "cam_xmat": rotation[None, None]}
    plain, shaded = (Renderer(model, 1, (view,), 64, 64, shadows=s).render(fields)[0, 0].float() for s in (False, True))
    assert plain[:8].mean() > plain[-8:].mean() > 60  # the sky is brighter than the ground, and the ground is not dark
    assert 0.003 < (plain - shaded > 10).float().mean() < 0.02  # only the ball's shadow is darker


@pytest.mark.parametrize("name", ["Ant-v5", "InvertedPendulum-v5"])
def test_gymnasium_envs_are_rendered_without_opengl(name):
    env = gymnasium.make(name).unwrapped
    env.reset(seed=0)
    picture = render_data(env.model, env.data, height=64, width=96)
    assert picture.shape == (64, 96, 3)
    assert picture.float().std(dim=(0, 1)).min() > 5  # not one flat colour
    assert not any(module.startswith("OpenGL") for module in sys.modules)


def test_the_default_camera_follows_a_robot_that_has_none():
    model = mujoco.MjModel.from_xml_string("""
      <mujoco><worldbody><body name="ball"><freejoint/><geom type="sphere" size="0.1" rgba="1 0 0 1"/></body>
      </worldbody></mujoco>""")
    assert isinstance(default_camera(model), mujoco.MjvCamera)
    data = mujoco.MjData(model)
    data.qpos[:3] = 30.0, -4.0, 2.0
    mujoco.mj_forward(model, data)
    assert np.allclose(red(render_data(model, data, height=41, width=41)).mean(0), 20.0, atol=0.5)


def test_a_subset_of_envs_renders_like_the_whole_batch(ball):
    worlds = seen_at(ball, (2, 0, 0), (2, 0.5, 0), (2, 0, 1.0))
    renderer = Renderer(ball, 3, ("eye",), 40, 40)
    every = renderer.render(poses(*worlds))
    assert torch.equal(renderer.render(poses(worlds[2], worlds[0])), every[[2, 0]])
    assert torch.equal(renderer.render(poses(*worlds)), every)


def test_cameras_and_geoms_of_the_world_appear_where_poses_put_them():
    model = mujoco.MjModel.from_xml_string("""
      <mujoco><worldbody>
        <camera name="eye" xyaxes="0 -1 0 0 0 1" fovy="90"/>
        <geom name="ball" size="0.1" pos="2 0 0" rgba="1 0 0 1"/>
        <body pos="9 0 0"><joint/><geom size="0.1" rgba="0 0 1 1"/></body>
      </worldbody></mujoco>""")
    sim = make_sim(model, 1, threads=1)

    def ball_at(**moved: tuple[float, float, float]) -> list[float]:
        places = {name: sim.field(name).clone() for name in moved}
        for name, position in moved.items():
            places[name][0, 0] = torch.tensor(position)
        return red(sim.render(("eye",), 100, 100, poses=places)[0, 0]).mean(0).tolist()

    assert ball_at() == pytest.approx([49.5, 49.5], abs=0.6)
    assert ball_at(geom_xpos=(2, 0.5, 0)) == pytest.approx([49.5, 37], abs=0.6)
    assert ball_at(geom_xpos=(2, 0, 1)) == pytest.approx([24.5, 49.5], abs=0.6)
    assert ball_at(cam_xpos=(0, 0.5, 0)) == pytest.approx([49.5, 62], abs=0.6)
    assert ball_at(cam_xpos=(0, 0, 1)) == pytest.approx([74.5, 49.5], abs=0.6)
    sim.close()


def test_a_cached_background_gives_the_same_images():
    """Rendering static geoms once, on two threads, gives the same images as rendering all geoms on one thread."""
    from kit.envs.vec import TensorEnv
    from kit.tasks.reach.task import Reach

    env = TensorEnv(Reach(), 3)
    cameras = ("front", "side", "top")
    plain, quick = (Renderer(env.task.model, 3, cameras, 64, 64, threads=threads) for threads in (1, 2))
    assert quick._static is not None and 0 < quick._static.sum() < env.task.model.ngeom
    plain._static = None
    for _ in range(5):
        fields = {name: env.task.sim.field(name) for name in POSES}
        assert torch.equal(quick.render(fields), plain.render(fields))
        env.step(2 * torch.rand(3, 7) - 1)
