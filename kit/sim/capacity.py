"""How much room a world needs for contacts and constraint rows, from the model alone."""

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
_MOST_CONTACTS = 64
"""More at once is rare, and a world may borrow from the others, which share one list."""


class Capacity(NamedTuple):
    contacts: int
    """Contacts per world, on average over all worlds."""
    constraints: int
    """Constraint rows in any one world."""


def capacity(model: mujoco.MjModel) -> Capacity:
    """Enough for every geom that can touch another one to do so at once, up to 64 contacts in a world, with every
    joint at its limit. Custom numerics of the model named "max_contacts" and "max_constraints" say otherwise
    (`MjSpec.add_numeric`). Never silently too small: `WarpSim` raises when a world needs more."""
    pairs = [(a, b, max(model.geom_condim[a], model.geom_condim[b])) for a, b in touching_pairs(model)]
    pairs += zip(model.pair_geom1, model.pair_geom2, model.pair_dim, strict=True)
    contacts = _numeric(model, "max_contacts") or min(sum(_contacts(model, a, b) for a, b, _ in pairs), _MOST_CONTACTS)
    rows = contacts * max((_rows(model, dim) for _, _, dim in pairs), default=0)
    rows += 2 * int(model.jnt_limited.sum()) + 2 * int(model.tendon_limited.sum()) + 6 * model.neq
    rows += int((model.dof_frictionloss > 0).sum()) + int((model.tendon_frictionloss > 0).sum())
    return Capacity(max(contacts, 1), max(_numeric(model, "max_constraints") or rows, 1))


def _numeric(model: mujoco.MjModel, name: str) -> int | None:
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_NUMERIC, name)
    return int(model.numeric(number).data[0]) if number >= 0 else None


def touching_pairs(model: mujoco.MjModel) -> list[tuple[int, int]]:
    """The geom pairs (a, b) that MuJoCo tests for contact: by type and affinity, not of one body or of parent and
    child (unless the parent is the world), not excluded."""
    a, b = pairs = np.stack(np.triu_indices(model.ngeom, 1))
    types, affinity = model.geom_contype, model.geom_conaffinity
    meet = (types[a] & affinity[b] | types[b] & affinity[a]) != 0
    one, two = np.sort(model.geom_bodyid[pairs], axis=0)
    excluded = np.isin((one << 16) + two, model.exclude_signature)
    weld = model.body_weldid
    up = weld[model.body_parentid[weld]]
    moving = (weld[one] != 0) & (weld[two] != 0)
    related = (weld[one] == weld[two]) | moving & ((weld[one] == up[two]) | (weld[two] == up[one]))
    return [(a, b) for a, b in pairs[:, meet & ~excluded & ~related].T.tolist()]


def _contacts(model: mujoco.MjModel, a: int, b: int) -> int:
    low, high = sorted((int(model.geom_type[a]), int(model.geom_type[b])))
    return _CONTACTS.get((low, high), _CONTACTS_OF_OTHERS)


def _rows(model: mujoco.MjModel, condim: int) -> int:
    """Constraint rows of one contact: of a friction pyramid's edges, or of an elliptic cone's axes."""
    pyramid = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    return int(2 * (condim - 1) if pyramid and condim > 1 else condim)
