"""What a training script knows of itself, independently of who records it; not a script.

``bits`` prints results so that one bit makes a difference. ``declare`` writes to the file that the variable
WITNESS names (with the rank after it) which storages are alive, from a walk over all of Python's objects,
then allocates a block of a size that occurs nowhere else: where that block appears in a recording, the
recorded live set is held against the walk.
"""

import gc
import hashlib
import json
import os
from collections.abc import Iterable

import torch

SENTINEL_BYTES = 1_234_567


def bits(what: str, tensors: Iterable[torch.Tensor]) -> None:
    """Prints a hash of the tensors' bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    # In one write, since ranks share the pipe.
    print(f"{os.environ.get('RANK', '-')} {what} {digest.hexdigest()}\n", end="", flush=True)


def declare(*, model: torch.nn.Module | None = None, steps: int = 0, of: str = "") -> None:
    """Writes down what is alive, the model's parameters by name, and the steps taken.

    Args:
        of: appended to the file's name, for a second testimony.
    """
    gc.collect()
    live: dict[int, int] = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            _add(live, each)
    sentinel = torch.empty(SENTINEL_BYTES, dtype=torch.uint8)
    weights = sorted(name for name, _ in model.named_parameters()) if model is not None else []
    if "WITNESS" in os.environ:
        path = f"{os.environ['WITNESS']}.{os.environ.get('RANK', '0')}{of}"
        with open(path, "w") as file:
            json.dump(
                {"sentinel": sentinel.data_ptr(), "live": live, "weights": weights, "steps": steps}, file
            )


def _add(live: dict[int, int], tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu" or type(tensor).__name__ in ("FakeTensor", "DTensor"):
        return
    if tensor.layout is not torch.strided:
        if tensor.layout is torch.sparse_coo:
            _add(live, tensor._indices())
            _add(live, tensor._values())
        return
    try:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr():
            live[storage.data_ptr()] = storage.nbytes()
    except (RuntimeError, ValueError, NotImplementedError):  # no memory of its own, or not yet
        return
    if tensor.is_leaf and tensor.grad is not None:
        _add(live, tensor.grad)
