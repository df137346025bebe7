"""A GAN: two models, two optimizers, three steps of the critic for one of the generator."""

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(5)
generator = nn.Sequential(nn.Linear(8, 37), nn.Tanh(), nn.Linear(37, 21))
critic = nn.Sequential(nn.Linear(21, 43), nn.LeakyReLU(0.2), nn.Linear(43, 1))
of_generator = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.9))
of_critic = torch.optim.Adam(critic.parameters(), betas=(0.5, 0.9))
for _ in range(3):
    for _ in range(3):
        of_critic.zero_grad()
        real, fake = torch.randn(16, 21), generator(torch.randn(16, 8)).detach()
        (critic(fake).mean() - critic(real).mean()).backward()
        of_critic.step()
    of_generator.zero_grad()
    loss = -critic(generator(torch.randn(16, 8))).mean()
    loss.backward()
    of_generator.step()
    print(loss.item().hex())
bits("weights", [*generator.parameters(), *critic.parameters()])
del loss
declare(model=critic)
