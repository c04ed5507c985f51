"""Warp kernels of the mission game: step and reset. One thread per game, the same code on CPU and CUDA."""

from __future__ import annotations

from kit.sim.kernels import wp
from kit.tasks.mission.rules import OBSTACLES
from kit.tasks.mission.state import (
    BASE_Y,
    CELL_M,
    EPISODE,
    NEAR,
    NOWHERE,
    Constants,
    Discs,
    Four,
    Games,
    Three,
    base,
    compass,
    inside,
    nearest,
    place,
    seen_by_attacker,
    seen_by_defender,
    stopped,
    turned,
    within_reach,
)

wp.set_module_options({"enable_backward": False, "max_unroll": OBSTACLES, "optimization_level": 3})

PCG_FACTOR, PCG_STEP, PCG_MIX = (wp.constant(wp.uint32(x)) for x in (747796405, 2891336453, 277803737))


@wp.func
def look(
    w: int, c: Constants, s: Games, attackers: Four, defenders: Three, minds: Three, discs: Discs,
    f: wp.vec4, g: wp.vec4,
):  # fmt: skip
    """Write the attackers' observation, 42 numbers in the order of `kit.tasks.mission.task.SEES`."""
    zone = place(f)
    for i in range(4):
        a = attackers[i]
        s.obs[w, 3 * i] = (a[0] - zone[0]) * NEAR
        s.obs[w, 3 * i + 1] = (a[1] - zone[1]) * NEAR
        s.obs[w, 3 * i + 2] = a[2] / c.out
        if i < 2:
            disc = nearest(discs, place(a))
            s.near[w, i] = disc
            there = wp.where(disc[2] > 0.0, 1.0, 0.0)
            s.obs[w, 32 + 3 * i] = there * (disc[0] - a[0]) * 0.02
            s.obs[w, 33 + 3 * i] = there * (disc[1] - a[1]) * 0.02
            s.obs[w, 34 + 3 * i] = disc[2] * 0.1
        else:
            s.obs[w, 10 + i] = a[3] / c.endurance
    for j in range(3):
        d = defenders[j]
        s.near[w, 2 + j] = within_reach(discs, place(d))
        seen = bool(False)
        for k in range(4):  # air units first, because they see further
            if not seen:
                seen = seen_by_attacker(wp.where(k < 2, c.air_sight, c.ground_sight), discs, attackers[3 - k], d, k > 1)
        known = wp.where(seen, 1.0, 0.0)
        s.obs[w, 14 + 6 * j] = known
        s.obs[w, 15 + 6 * j] = known * (d[0] - zone[0]) * NEAR
        s.obs[w, 16 + 6 * j] = known * (d[1] - zone[1]) * NEAR
        s.obs[w, 17 + 6 * j] = known * d[2]
        s.obs[w, 18 + 6 * j] = known * d[3]
        s.obs[w, 19 + 6 * j] = known * minds[j, 0] / wp.max(c.busy, 1.0)
    s.obs[w, 38] = zone[0] * 0.01
    s.obs[w, 39] = zone[1] * 0.01
    s.obs[w, 40] = g[0] / c.hold
    s.obs[w, 41] = g[1] / EPISODE


@wp.func
def look_out(
    w: int, c: Constants, s: Games, attackers: Four, defenders: Three, minds: Three, discs: Discs,
    f: wp.vec4, g: wp.vec4,
):  # fmt: skip
    """Write the defenders' observation, 40 numbers in the order of `kit.tasks.mission.task.SEES`."""
    zone = place(f)
    for j in range(3):
        d = defenders[j]
        s.guard[w, 5 * j] = (d[0] - zone[0]) * NEAR
        s.guard[w, 5 * j + 1] = (d[1] - zone[1]) * NEAR
        s.guard[w, 5 * j + 2] = d[2]
        s.guard[w, 5 * j + 3] = d[3]
        s.guard[w, 5 * j + 4] = minds[j, 0] / wp.max(c.busy, 1.0)
        disc = nearest(discs, place(d))
        there = wp.where(disc[2] > 0.0, 1.0, 0.0)
        s.guard[w, 27 + 3 * j] = there * (disc[0] - d[0]) * 0.02
        s.guard[w, 28 + 3 * j] = there * (disc[1] - d[1]) * 0.02
        s.guard[w, 29 + 3 * j] = disc[2] * 0.1
    for i in range(4):
        a = attackers[i]
        seen = bool(False)
        for j in range(3):
            if not seen:
                seen = seen_by_defender(c.sight, c.sight_cos, discs, defenders[j], a, i < 2)
        known = wp.where(seen, 1.0, 0.0)
        s.guard[w, 15 + 3 * i] = known
        s.guard[w, 16 + 3 * i] = known * (a[0] - zone[0]) * NEAR
        s.guard[w, 17 + 3 * i] = known * (a[1] - zone[1]) * NEAR
    s.guard[w, 36] = zone[0] * 0.01
    s.guard[w, 37] = zone[1] * 0.01
    s.guard[w, 38] = g[0] / c.hold
    s.guard[w, 39] = g[1] / EPISODE


@wp.func
def post(round_: wp.vec2, j: int) -> wp.vec2:
    """Return the direction from the zone to the patrol position of defender `j`; the three positions are 120° apart."""
    found = round_
    if j == 1:
        found = turned(round_, -0.5, 0.8660254037844386)
    if j == 2:
        found = turned(round_, -0.5, -0.8660254037844386)
    return found


@wp.kernel
def step(c: Constants, s: Games, attack: wp.array2d(dtype=wp.int64), defend: wp.array2d(dtype=wp.int64)):
    """Step all games: one command per unit, held for five ticks of motion.

    `attack` (n, 4) and `defend` (n, 3) are the commands of attackers and defenders. A command of -1 marks a stock
    defender, which this kernel controls by fixed rules.
    """
    w = wp.tid()
    attackers = Four()
    defenders = Three()
    minds = Three()
    for i in range(4):
        attackers[i] = s.attackers[w, i]
    for j in range(3):
        defenders[j] = s.defenders[w, j]
        minds[j] = s.minds[w, j]
    discs = Discs()
    for k in range(OBSTACLES):
        discs[k] = s.discs[w, k]
    f = s.field[w, 0]
    g = s.field[w, 1]
    zone = place(f)
    round_ = wp.vec2(g[2], g[3])
    held = g[0]
    lost = float(0.0)
    there = float(0.0)
    far = wp.vec4()
    for i in range(4):
        far[i] = wp.length(place(attackers[i]) - zone)

    for j in range(3):  # stock defenders choose an attacker to chase, or patrol
        d = defenders[j]
        if defend[w, j] < wp.int64(0):
            least = float(1.0e9)
            goal = wp.vec2(minds[j, 2], minds[j, 3])
            alert = wp.max(minds[j, 1] - float(c.ticks), 0.0)
            for i in range(4):
                a = attackers[i]
                if far[i] <= c.leash:
                    cost = wp.length(place(a) - place(d)) + c.threat * far[i]
                    if cost < least:
                        if seen_by_defender(c.sight, c.sight_cos, discs, d, a, i < 2):
                            least = cost
                            goal = place(a)
                            alert = c.memory + float(c.ticks)
            if least == 1.0e9 and wp.length(goal - place(d)) < 2.0:
                alert = 0.0
            if alert == 0.0:
                goal = inside(zone + c.patrol * post(round_, j))
            minds[j] = wp.vec4(minds[j, 0], alert, goal[0], goal[1])

    for _tick in range(c.ticks):
        if held < s.hold[0]:
            for i in range(4):
                a = attackers[i]
                if a[2] > 0.0:
                    attackers[i, 2] = a[2] - 1.0
                else:
                    k = int(attack[w, i])
                    p = place(a)
                    endurance = a[3]
                    if i < 2:
                        if k > 0:
                            p = stopped(inside(p + c.ground_step * compass(k)), s.near[w, i])
                    else:
                        if k > 0:
                            p = inside(p + c.air_step * compass(k))
                            endurance -= 1.0
                        else:
                            endurance -= c.hover_share
                    attackers[i] = wp.vec4(p[0], p[1], 0.0, endurance)
                    if endurance <= 0.0:
                        b = base(f, i)
                        attackers[i] = wp.vec4(b[0], b[1], c.out, c.endurance)
                        lost += 1.0
            for j in range(3):
                if minds[j, 0] > 0.0:
                    minds[j, 0] = minds[j, 0] - 1.0
                else:
                    d = defenders[j]
                    p = place(d)
                    h = wp.vec2(d[2], d[3])
                    k = int(defend[w, j])
                    wish = compass(k)
                    pace = c.chase_step
                    if k < 0:
                        wish = wp.vec2(minds[j, 2], minds[j, 3]) - p
                        left = wp.length(wish)
                        wish = wp.where(left > 0.5, wish / wp.max(left, 0.5), wp.vec2(0.0, 0.0))
                        if minds[j, 1] == 0.0:
                            pace = c.patrol_step
                    if wish[0] != 0.0 or wish[1] != 0.0:
                        if wp.dot(h, wish) >= c.turn_cos:
                            h = wish
                        else:
                            side = wp.where(h[0] * wish[1] - h[1] * wish[0] >= 0.0, c.turn_sin, -c.turn_sin)
                            h = wp.normalize(turned(h, c.turn_cos, side))
                        if wp.dot(h, wish) > 0.0:
                            p = stopped(inside(p + pace * h), s.near[w, 2 + j])
                    defenders[j] = wp.vec4(p[0], p[1], h[0], h[1])
                    for i in range(4):
                        to = place(attackers[i]) - p
                        square = wp.dot(to, to)
                        if square <= c.tag * c.tag and attackers[i, 2] == 0.0 and minds[j, 0] == 0.0:
                            if wp.dot(to, h) >= c.tag_cos * wp.sqrt(square):
                                b = base(f, i)
                                attackers[i] = wp.vec4(b[0], b[1], c.out, c.endurance)
                                minds[j, 0] = c.busy
                                lost += 1.0
            holders = int(0)
            for i in range(4):
                to = place(attackers[i]) - zone
                if attackers[i, 2] == 0.0 and wp.dot(to, to) <= c.zone * c.zone:
                    holders += 1
            held = wp.where(holders >= c.hold_units, held + 1.0, wp.max(held - 1.0, 0.0))
            there += c.presence * float(holders) + c.holding * float(holders * (holders - 1))

    nearer = float(0.0)
    for i in range(4):
        if attackers[i, 2] == 0.0:  # no progress term for attackers that are out
            nearer += wp.max(far[i] - c.zone, 0.0)
            nearer -= wp.max(wp.length(place(attackers[i]) - zone) - c.zone, 0.0)
        s.attackers[w, i] = attackers[i]
    for j in range(3):
        s.defenders[w, j] = defenders[j]
        s.minds[w, j] = minds[j]
    round_ = wp.normalize(turned(round_, c.patrol_cos, c.patrol_sin))
    captured = wp.where(held >= s.hold[0], 1.0, 0.0)
    s.terms[w] = wp.cw_mul(c.pay, wp.vec4(nearer, there, captured, lost))
    g = wp.vec4(held, g[1] + 1.0, round_[0], round_[1])
    s.field[w, 1] = g
    look(w, c, s, attackers, defenders, minds, discs, f, g)
    if c.guarded != 0:
        look_out(w, c, s, attackers, defenders, minds, discs, f, g)


@wp.func
def mixed(x: wp.uint32) -> wp.uint32:
    """Return a hash of the 32 bits `x`, by the permutation PCG-RXS-M-XS (O'Neill, 2014)."""
    state = x * PCG_FACTOR + PCG_STEP
    word = ((state >> ((state >> wp.uint32(28)) + wp.uint32(4))) ^ state) * PCG_MIX
    return (word >> wp.uint32(22)) ^ word


@wp.func
def uniform(seed: wp.uint32, k: int) -> float:
    """Return random number `k` of the map `seed`, in [0, 1)."""
    return float(mixed(seed + wp.uint32(k)) >> wp.uint32(8)) * 5.960464477539063e-08  # 2 ** -24


@wp.kernel
def reset(c: Constants, s: Games, mask: wp.array(dtype=bool), seeds: wp.array(dtype=wp.int64)):
    """Start a new game, with a new map, in each env of `mask` (n,).

    The arena has 4 × 4 cells of 50 m. Attackers start in the southern row. The zone lies in one of the two northern
    rows. Obstacles lie in other cells of the three northern rows, at least 3 m from the border of their cell.
    """
    w = wp.tid()
    if not mask[w]:
        return
    number = int(seeds[w])
    if c.maps > 0:
        number = number % c.maps
    seed = mixed(wp.uint32(number))
    home = wp.min(int(uniform(seed, 0) * 8.0), 7) + 4  # the zone's cell: 4 to 11 of the 12 northern cells
    f = wp.vec4(
        (float(home % 4) - 1.5) * CELL_M + 20.0 * uniform(seed, 1) - 10.0,
        (float(home // 4) - 0.5) * CELL_M + 20.0 * uniform(seed, 2) - 10.0,
        150.0 * uniform(seed, 3) - 75.0,
        BASE_Y,
    )
    s.field[w, 0] = f
    angle = 6.283185307179586 * uniform(seed, 4)
    round_ = wp.vec2(wp.cos(angle), wp.sin(angle))
    g = wp.vec4(0.0, 0.0, round_[0], round_[1])
    s.field[w, 1] = g
    discs = Discs()
    for k in range(OBSTACLES):
        s.discs[w, k] = NOWHERE
    placed = int(0)
    for cell in range(12):
        left = float(11 - cell)
        if cell > home:
            left += 1.0
        if cell != home and uniform(seed, 5 + cell) * left < float(c.obstacles - placed):
            r = 6.0 + 8.0 * uniform(seed, 20 + 3 * cell)
            free = 22.0 - r
            s.discs[w, placed] = wp.vec4(
                (float(cell % 4) - 1.5) * CELL_M + free * (2.0 * uniform(seed, 21 + 3 * cell) - 1.0),
                (float(cell // 4) - 0.5) * CELL_M + free * (2.0 * uniform(seed, 22 + 3 * cell) - 1.0),
                r,
                0.0,
            )
            placed += 1
    for k in range(OBSTACLES):
        discs[k] = s.discs[w, k]
    attackers = Four()
    defenders = Three()
    minds = Three()
    for i in range(4):
        b = base(f, i)
        attackers[i] = wp.vec4(b[0], b[1], 0.0, c.endurance)
        s.attackers[w, i] = attackers[i]
    for j in range(3):
        away = post(round_, j)
        p = inside(place(f) + c.patrol * away)
        p = stopped(p, nearest(discs, p))
        defenders[j] = wp.vec4(p[0], p[1], away[0], away[1])
        minds[j] = wp.vec4(0.0, 0.0, p[0], p[1])
        s.defenders[w, j] = defenders[j]
        s.minds[w, j] = minds[j]
    look(w, c, s, attackers, defenders, minds, discs, f, g)
    if c.guarded != 0:
        look_out(w, c, s, attackers, defenders, minds, discs, f, g)
