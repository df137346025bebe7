"""Trains a little, then tells what others of this user could see: command lines, environments, spools."""

import json
import os
from pathlib import Path

import torch

model = torch.nn.Linear(64, 64)
model(torch.ones(8, 64)).sum().backward()
torch.optim.SGD(model.parameters()).step()


def texts(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


spool = {
    str(path): path.read_bytes().decode(errors="replace")
    for path in Path(os.environ["RANKMEM_SPOOL_DIR"]).rglob("*")
    if path.is_file() and path.stat().st_size < 1_000_000
}
mine = [text for text in texts("environ") if "RANKMEM_" in text]
print(json.dumps({"command_lines": texts("cmdline"), "environments": mine, "spool": spool}))
