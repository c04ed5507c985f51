"""Buffer sizes for contacts and constraint rows per world, computed from the model alone."""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import numpy as np

_PLANE, _SPHERE, _CAPSULE, _BOX = (
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}")) for name in ("PLANE", "SPHERE", "CAPSULE", "BOX")
)
_CONTACTS = {(_PLANE, _SPHERE): 1, (_SPHERE, _SPHERE): 1, (_SPHERE, _CAPSULE): 1, (_PLANE, _CAPSULE): 2,
             (_CAPSULE, _CAPSULE): 2, (_BOX, _BOX): 8}  # fmt: skip
_CONTACTS_OF_OTHERS = 4
_MAX_CONTACTS = 64
"""Upper limit of contacts per world, more than worlds usually need. It limits the average over all worlds: they share
one buffer, so a few worlds may have more."""


class Capacity(NamedTuple):
    """Buffer sizes of a simulator on CUDA."""

    contacts: int
    """Contacts per world, on average over all worlds."""
    constraints: int
    """Largest number of constraint rows of a world."""


def capacity(model: mujoco.MjModel) -> Capacity:
    """Return sizes that suffice if all `touching_pairs` and explicit pairs touch at once, up to 64 contacts per world.

    The model's custom numerics "max_contacts" and "max_constraints" (`MjSpec.add_numeric`) override the result.
    """
    pairs = [(a, b, max(model.geom_condim[a], model.geom_condim[b])) for a, b in touching_pairs(model)]
    pairs += zip(model.pair_geom1, model.pair_geom2, model.pair_dim, strict=True)
    contacts = _numeric(model, "max_contacts") or min(sum(_contacts(model, a, b) for a, b, _ in pairs), _MAX_CONTACTS)
    rows = contacts * max((_rows(model, dim) for _, _, dim in pairs), default=0)
    rows += 2 * int(model.jnt_limited.sum()) + 2 * int(model.tendon_limited.sum()) + 6 * model.neq
    rows += int((model.dof_frictionloss > 0).sum()) + int((model.tendon_frictionloss > 0).sum())
    return Capacity(max(contacts, 1), max(_numeric(model, "max_constraints") or rows, 1))


def _numeric(model: mujoco.MjModel, name: str) -> int | None:
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_NUMERIC, name)
    return int(model.numeric(number).data[0]) if number >= 0 else None


def touching_pairs(model: mujoco.MjModel) -> list[tuple[int, int]]:
    """Return the geom pairs (a, b) that MuJoCo tests for contact.

    Their contype and conaffinity match, and the pair is not excluded. Two geoms of one body, or of a body and its
    moving parent, are no such pair.
    """
    a, b = pairs = np.stack(np.triu_indices(model.ngeom, 1))
    types, affinity = model.geom_contype, model.geom_conaffinity
    compatible = (types[a] & affinity[b] | types[b] & affinity[a]) != 0
    one, two = np.sort(model.geom_bodyid[pairs], axis=0)
    excluded = np.isin((one << 16) + two, model.exclude_signature)
    weld = model.body_weldid
    up = weld[model.body_parentid[weld]]
    moving = (weld[one] != 0) & (weld[two] != 0)
    related = (weld[one] == weld[two]) | moving & ((weld[one] == up[two]) | (weld[two] == up[one]))
    return [(a, b) for a, b in pairs[:, compatible & ~excluded & ~related].T.tolist()]


def _contacts(model: mujoco.MjModel, a: int, b: int) -> int:
    low, high = sorted((int(model.geom_type[a]), int(model.geom_type[b])))
    return _CONTACTS.get((low, high), _CONTACTS_OF_OTHERS)


def _rows(model: mujoco.MjModel, condim: int) -> int:
    pyramid = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL  # pyramid: a row per edge; elliptic: one per axis
    return int(2 * (condim - 1) if pyramid and condim > 1 else condim)
