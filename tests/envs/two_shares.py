"""Under torchrun: Ant's worlds in two processes, stepped beside the same worlds in one: the same bits."""

import torch

from kit.envs import make_vec
from kit.machine.group import Group

WORLDS, STEPS = 4, 150

group = Group()
whole = make_vec("Ant", WORLDS, seed=5, threads=1)
shared = make_vec("Ant", WORLDS, seed=5, threads=1, group=group)
generator, ends = torch.Generator().manual_seed(0), []
assert torch.equal(shared.reset(seed=5), whole.reset(seed=5))
for step in range(STEPS):
    action = torch.rand(WORLDS, 8, generator=generator) * 2 - 1
    *ours, our_info = shared.step(action)
    *theirs, their_info = whole.step(action)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), step
    assert our_info.keys() == their_info.keys()
    assert all(torch.equal(our_info[name], their_info[name]) for name in their_info), step
    ends.append((theirs[2] | theirs[3]).tolist())
    if step == STEPS // 2:  # and from a snapshot, taken here or there
        snapshot = shared.snapshot()
        assert snapshot.keys() == whole.snapshot().keys()
        shared.restore(whole.snapshot())
        whole.restore(snapshot)
assert any(sum(end) == 1 for end in ends), "no world ended alone"
print(f"rank {group.rank} agrees")
group.receive() if not group.leads else group.leave(0)
