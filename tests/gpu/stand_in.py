"""A GPU that is none, to rehearse the checks on: memory is handed out, and nothing is computed.

``python tests/gpu/stand_in.py TORCH FOLDER [--bytes N]``: TORCH is the folder ``torch`` of an unpacked wheel
for CUDA 13 and this Python, FOLDER is for libraries. Prints what to set in the shell. PyTorch, its allocator
and its history are real; tensors hold whatever was there, so losses mean nothing. There are no graphs, no
NCCL, no NVML and no driver.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from matrix_stand_ins import provide_device

DEVICE_BYTES: Final = 80 * 10**9


def main() -> None:
    """Makes it and prints how to use it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("torch", type=Path, help="folder torch of an unpacked wheel for CUDA 13")
    parser.add_argument("folder", type=Path, help="for the libraries")
    parser.add_argument("--bytes", type=int, default=DEVICE_BYTES, help="the device's memory")
    given = parser.parse_args()
    torch, folder = given.torch.absolute(), given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in provide_device(torch, folder, platform.machine(), given.bytes).items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"export PYTHONPATH={shlex.quote(str(torch.parent))}")


if __name__ == "__main__":
    main()
