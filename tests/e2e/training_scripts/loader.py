"""A DataLoader whose workers allocate tensors and start a subprocess each. Argument: fork or spawn."""

import subprocess
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            subprocess.run([sys.executable, "-c", "import torch; torch.ones(1000)"], check=True)
        return torch.full((1000,), float(index)) @ torch.ones(1000, 2)


if __name__ == "__main__":
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1])
    print(sum(batch.sum().item() for batch in loader))
