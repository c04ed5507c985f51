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
    per_pair = [
        (_contacts(model, a, b), _rows(model, max(model.geom_condim[a], model.geom_condim[b])))
        for a, b in touching_pairs(model)
    ]
    per_pair += [
        (_contacts(model, a, b), _rows(model, dim))
        for a, b, dim in zip(model.pair_geom1, model.pair_geom2, model.pair_dim, strict=True)
    ]
    contacts = _numeric(model, "max_contacts") or min(sum(count for count, _ in per_pair), _MOST_CONTACTS)
    rows = contacts * max((rows for _, rows in per_pair), default=0)
    rows += 2 * int(model.jnt_limited.sum()) + 2 * int(model.tendon_limited.sum()) + 6 * model.neq
    rows += int((model.dof_frictionloss > 0).sum()) + int((model.tendon_frictionloss > 0).sum())
    return Capacity(max(contacts, 1), max(_numeric(model, "max_constraints") or rows, 1))


def _numeric(model: mujoco.MjModel, name: str) -> int | None:
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_NUMERIC, name)
    return int(model.numeric(number).data[0]) if number >= 0 else None


def touching_pairs(model: mujoco.MjModel) -> list[tuple[int, int]]:
    """The geom pairs (a, b) that MuJoCo tests for contact: by type and affinity, not of one body or of parent and
    child (unless the parent is the world), not excluded."""
    excluded = {int(signature) for signature in model.exclude_signature}
    types, conaffinity = model.geom_contype, model.geom_conaffinity
    weld, parent = model.body_weldid, model.body_parentid
    pairs = []
    for a, b in zip(*np.triu_indices(model.ngeom, 1), strict=True):
        if not (types[a] & conaffinity[b] or types[b] & conaffinity[a]):
            continue
        one, two = sorted((int(model.geom_bodyid[a]), int(model.geom_bodyid[b])))
        if (one << 16) + two in excluded or weld[one] == weld[two]:
            continue
        up_one, up_two = weld[parent[weld[one]]], weld[parent[weld[two]]]
        if weld[one] and weld[two] and (weld[one] == up_two or weld[two] == up_one):
            continue
        pairs.append((int(a), int(b)))
    return pairs


def _contacts(model: mujoco.MjModel, a: int, b: int) -> int:
    low, high = sorted((int(model.geom_type[a]), int(model.geom_type[b])))
    return _CONTACTS.get((low, high), _CONTACTS_OF_OTHERS)


def _rows(model: mujoco.MjModel, condim: int) -> int:
    """Constraint rows of one contact: of a friction pyramid's edges, or of an elliptic cone's axes."""
    pyramid = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    return int(2 * (condim - 1) if pyramid and condim > 1 else condim)
