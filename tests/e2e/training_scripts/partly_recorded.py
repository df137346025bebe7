"""Three ranks, of which the second's agent cannot start, and the third's cannot even say so."""

import os

rank = int(os.environ["RANK"])
if rank == 1:
    os.environ["RANKMEM_TAP_CACHE"] = "/proc/nothing"
if rank == 2:
    os.environ["RANKMEM_AGGREGATOR"] = "nowhere"

import torch  # noqa: E402

held = torch.zeros(1 << 20)
