"""Bodies for :func:`tap_kineto.profiled`: storages made in every way that torch has, and a training.

They run in any torch from 2.6 on, so also under ``tests/tools/matrix.py``.
"""

from __future__ import annotations

DIRECT = """
import copy, pickle
kept = [torch.UntypedStorage(1000), torch.ones(300).untyped_storage().clone()]
kept.append(torch.FloatStorage(77))
kept.append(torch.storage.TypedStorage(55, dtype=torch.float64))
plain = torch.arange(500.0)
kept.append(copy.deepcopy(plain))
model = torch.nn.Linear(31, 17)
kept.append(copy.deepcopy(model.state_dict()))
kept.append(copy.deepcopy(model))
kept.append(pickle.loads(pickle.dumps(plain)))
del kept[1], kept[0]
grown = torch.UntypedStorage(64)
grown.resize_(4096)
grown.resize_(0)
del grown, kept
model(torch.ones(3, 31)).sum().backward()
"""

STEPS = """
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(3, 31)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept = [copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())]
"""

MAPPED = """
torch.multiprocessing.set_sharing_strategy("{strategy}")
shared = torch.ones(1000).share_memory_()
model = torch.nn.Linear(50, 40).share_memory()
del model
again = torch.zeros(3000).share_memory_()
empty = torch.ones(0).share_memory_()
del shared
queue = torch.multiprocessing.get_context("fork").SimpleQueue()
queue.put(again)
received = queue.get()
del again, received
mapped = torch.UntypedStorage.from_file(str(folder.parent / "numbers"), shared=True, nbytes=8192)
torch.save(dict(weight=torch.ones(5000)), folder.parent / "saved.pt")
loaded = torch.load(folder.parent / "saved.pt", mmap=True, weights_only=True)
total = loaded["weight"].sum()
del mapped, loaded, total
made = torch.UntypedStorage._new_shared(999)
del made
"""
