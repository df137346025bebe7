"""A bidirectional GRU over packed sequences of different lengths."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from witness import bits, declare

torch.manual_seed(4)
rnn = nn.GRU(6, 14, num_layers=2, bidirectional=True, batch_first=True)
optimizer = torch.optim.Adagrad(rnn.parameters())
for _ in range(3):
    packed = pack_sequence([torch.randn(length, 6) for length in (9, 4, 7)], enforce_sorted=False)
    optimizer.zero_grad()
    output, lengths = pad_packed_sequence(rnn(packed)[0], batch_first=True)
    output.square().sum().backward()
    optimizer.step()
    print(lengths.tolist(), output.sum().item().hex())
bits("weights", rnn.parameters())
del output
declare(model=rnn, steps=3)
