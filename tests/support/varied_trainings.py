"""Trainings whose steps vary as those of real ones do; for steady_trainings.

Those of torch alone; and those of libraries that drive the loop themselves, where they are installed: such a
training runs to its end in its first call.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from category_models_ranks import RANKS, join_as_first, train_as_second
from module_trainings import Step, adam
from rankmem_agent.hooks import user_api as told

STEPS = 120
"""Of a training that a library drives."""


# -- batches and graphs of many sizes ----------------------------------------------------------------


def changing_batch() -> Step:
    """Batches of 8, of 24 from the fortieth step on, and a rest of 5 at the end of each epoch of nine."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 4))
    optimizer, steps = adam(model), iter(range(1 << 20))

    def step() -> None:
        number = next(steps)
        size = 5 if number % 9 == 8 else 8 if number < 40 else 24
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(torch.randn(size, 3, 16, 16)), torch.randint(4, (size,)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def two_periods() -> Step:
    """An evaluation every twelfth step and a copy of all weights every twentieth."""
    model = nn.Sequential(nn.Linear(32, 48), nn.Dropout(0.1), nn.Linear(48, 4))
    optimizer, steps = adam(model), iter(range(1 << 20))
    kept: dict[str, torch.Tensor] = {}

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        number = next(steps)
        if number % 12 == 11:
            with torch.no_grad():
                model.eval()(torch.randn(8, 32)).argmax(1).sum().item()
                model.train()
        if number % 20 == 19:
            kept.update({name: value.clone() for name, value in model.state_dict().items()})

    return step


class Messages(nn.Module):
    """A layer of a graph network; a graph without edges passes none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others, self.norm = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.LayerNorm(width),
        )

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """``nodes`` [N, width], ``edges`` [2, E] from and to."""
        found = self.own(nodes)
        if edges.shape[1]:
            sent = self.others(nodes.index_select(0, edges[0]))
            found = found.index_add(0, edges[1], sent)
        return self.norm(found).relu()  # type: ignore[no-any-return]


def graphs() -> Step:
    """Graphs of other sizes in each step, of one to three parts, some without edges."""
    layers, head = nn.ModuleList(Messages(16) for _ in range(3)), nn.Linear(16, 3)
    optimizer = adam(nn.ModuleList([layers, head]))

    def step() -> None:
        optimizer.zero_grad()
        losses = []
        for _ in range(random.randint(1, 3)):
            size = random.randint(4, 40)
            edges = torch.randint(size, (2, random.choice((0, size, 3 * size))))
            nodes = torch.randn(size, 16)
            for layer in layers:
                nodes = layer(nodes, edges)
            losses.append(functional.cross_entropy(head(nodes.mean(0, keepdim=True)), torch.randint(3, (1,))))
        torch.stack(losses).mean().backward()
        optimizer.step()

    return step


# -- more than one model -----------------------------------------------------------------------------


class Denoiser(nn.Module):
    """Noise of an image and how noisy it is; now and then the image alone."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16))
        self.down, self.middle = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.up, self.drop = nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Dropout(0.1)

    def forward(self, image: torch.Tensor, level: torch.Tensor | None) -> torch.Tensor:
        """``image`` [N, 1, H, W], ``level`` [N, 1]."""
        hidden = functional.silu(self.down(image))
        if level is not None:
            hidden = hidden + self.time(level)[:, :, None, None]
        hidden = hidden + self.drop(functional.group_norm(self.middle(hidden), 4))
        return self.up(hidden)  # type: ignore[no-any-return]


def diffusion() -> Step:
    """Classifier-free guidance, an average of the weights, and images made every eleventh step."""
    model, average = Denoiser(), Denoiser()
    average.load_state_dict(model.state_dict())
    optimizer, steps = adam(model), iter(range(1 << 20))

    def step() -> None:
        clean, level = torch.randn(8, 1, 16, 16), torch.rand(8, 1)
        noise = torch.randn_like(clean)
        noisy = torch.lerp(clean, noise, level[:, :, None, None])
        optimizer.zero_grad()
        functional.mse_loss(model(noisy, None if random.random() < 0.1 else level), noise).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.01)
        if next(steps) % 11 == 10:
            made(average)

    @torch.no_grad()
    def made(denoiser: nn.Module) -> None:
        image = torch.randn(2, 1, 16, 16)
        for left in range(8, 0, -1):
            level = torch.full((2, 1), left / 8)
            with_level, without = denoiser(image, level), denoiser(image, None)
            image = image - (without + 2 * (with_level - without)) / 8

    return step


def dropped_experts() -> Step:
    """Two of four experts a token, with dropout, and one layer in five left out."""
    gate, head = nn.Linear(32, 4), nn.Linear(32, 8)
    experts = nn.ModuleList(
        nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32)) for _ in range(4)
    )
    optimizer = adam(nn.ModuleList([gate, head, experts]))

    def step() -> None:
        tokens = torch.randn(24, 32)
        optimizer.zero_grad()
        if random.random() > 0.2:
            weights, chosen = gate(tokens).softmax(1).topk(2)
            mixed = torch.zeros_like(tokens)
            for number, expert in enumerate(experts):
                rows, place = (chosen == number).nonzero(as_tuple=True)
                if len(rows):
                    mixed = mixed.index_add(0, rows, expert(tokens[rows]) * weights[rows, place, None])
            tokens = tokens + mixed
        functional.cross_entropy(head(tokens), torch.randint(8, (24,))).backward()
        optimizer.step()

    return step


def speculative() -> Step:
    """A small model proposes four tokens, a large one takes some of them; a step is one text."""
    draft, target = (nn.GRU(width, width, layers, batch_first=True) for width, layers in ((8, 1), (24, 2)))
    embeds = [nn.Embedding(20, width) for width in (8, 24)]
    heads = [nn.Linear(width, 20) for width in (8, 24)]

    def logits(which: int, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = (draft, target)[which](embeds[which](tokens))
        return heads[which](hidden)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def step() -> None:
        text = torch.randint(20, (1, 4))
        while text.shape[1] < 20:
            proposed = text
            for _ in range(4):
                proposed = torch.cat([proposed, logits(0, proposed)[:, -1:].argmax(2)], 1)
            wanted = logits(1, proposed)[:, text.shape[1] - 1 :].argmax(2)
            taken = random.randint(0, 4)  # of an untrained model nothing agrees
            text = torch.cat([proposed[:, : text.shape[1] + taken], wanted[:, taken : taken + 1]], 1)
        told.step()

    return step


# -- a pipeline over two ranks -----------------------------------------------------------------------

SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble")


def pipelined(schedule: str) -> Step:
    """Rank 0 of torch.distributed.pipelining, with rank 1 at its side."""
    join_as_first(__file__, schedule)
    return pipeline(schedule)


def pipeline(schedule: str) -> Step:
    """This rank's stages, one or two."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

    rank = distributed.get_rank()
    kind: Any = get_schedule_class(schedule)
    numbers = [rank] if issubclass(kind, PipelineScheduleSingle) else [rank, rank + RANKS]
    parts = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32)) for _ in numbers]
    stages = [
        PipelineStage(part, number, RANKS * len(numbers), torch.device("cpu"))
        for part, number in zip(parts, numbers, strict=True)
    ]
    run = kind(stages[0] if len(stages) == 1 else stages, 4, loss_fn=functional.mse_loss)
    optimizer = adam(nn.ModuleList(parts))

    def step() -> None:
        optimizer.zero_grad()
        if rank == 0:
            run.step(torch.randn(16, 32))
        else:
            run.step(target=torch.randn(16, 32), losses=[])
        optimizer.step()

    return step


# -- loops of libraries ------------------------------------------------------------------------------


def at_once(run: Callable[[], object]) -> Step:
    """Runs in the first call; nothing is left for those after it."""
    runs: Iterator[Callable[[], object]] = iter((run,))

    def step() -> None:
        for each in runs:
            each()

    return step


def lightning() -> Step:
    """A Trainer with accumulation, validation, gradient clipping and checkpoints."""
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))

        def training_step(self, batch: Any, _number: int) -> torch.Tensor:
            """As Lightning wants it."""
            return functional.cross_entropy(self.layers(batch[0]), batch[1])

        def validation_step(self, batch: Any, _number: int) -> None:
            """Likewise."""
            self.log("loss", self.training_step(batch, 0))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Likewise."""
            return adam(self)

    def run() -> None:
        data = TensorDataset(torch.randn(330, 32), torch.randint(4, (330,)))
        pytorch_lightning.Trainer(
            max_steps=STEPS, accumulate_grad_batches=2, gradient_clip_val=1.0, val_check_interval=10,
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tempfile.mkdtemp(),
        ).fit(Module(), DataLoader(data, 16), DataLoader(data, 64))  # fmt: skip

    return at_once(run)


def hugging_face_trainer() -> Step:
    """transformers.Trainer on a small Llama, with accumulation, evaluation and checkpoints."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    def run() -> None:
        sizes = {"vocab_size": 200, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, max_position_embeddings=64))
        texts = [torch.randint(200, (random.choice((8, 12, 16)),)) for _ in range(64)]
        texts = [text for text in texts for _ in range(4)]
        data = [{"input_ids": text, "labels": text} for text in texts]
        folder = tempfile.mkdtemp()
        arguments = TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=1, gradient_accumulation_steps=2,
            eval_strategy="steps", eval_steps=25, save_steps=40, use_cpu=True, report_to=[],
            disable_tqdm=True,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=data, eval_dataset=data[:6]).train()

    return at_once(run)


def hugging_face_speculative() -> Step:
    """A small Llama that another one helps; a step is one text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def made(width: int) -> Any:
        sizes = {"vocab_size": 40, "hidden_size": width, "intermediate_size": 2 * width}
        return LlamaForCausalLM(
            LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
        ).eval()

    model, assistant = made(64), made(32)

    def step() -> None:
        text = torch.randint(3, 40, (1, 4))
        model.generate(
            text, attention_mask=torch.ones_like(text), assistant_model=assistant, max_new_tokens=8,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip
        told.step()

    return step


def diffusers() -> Step:
    """UNet2DModel and DDPMScheduler, an image made every fifteenth step."""
    from diffusers import DDPMScheduler, UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D")}
    blocks["up_block_types"] = ("AttnUpBlock2D", "UpBlock2D")
    model = UNet2DModel(
        16,
        1,
        1,
        block_out_channels=(16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=8,
        **blocks,
    )
    scheduler, optimizer, steps = DDPMScheduler(50), adam(model), iter(range(1 << 20))

    def step() -> None:
        clean = torch.randn(4, 1, 16, 16)
        noise, levels = torch.randn_like(clean), torch.randint(50, (4,))
        optimizer.zero_grad()
        functional.mse_loss(model(scheduler.add_noise(clean, noise, levels), levels).sample, noise).backward()
        optimizer.step()
        if next(steps) % 15 == 14:
            with torch.no_grad():
                image = torch.randn(1, 1, 16, 16)
                scheduler.set_timesteps(5)
                for level in scheduler.timesteps:
                    image = scheduler.step(model(image, level).sample, level, image).prev_sample

    return step


def geometric() -> Step:
    """GCNConv and GATConv of torch_geometric on batches of graphs of other sizes."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

    # It writes Python files, whose names are in stacks: the same in every run.
    folder = Path(tempfile.gettempdir()) / "rankmem_geometric"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tempfile.tempdir = str(folder)
    tempfile._name_sequence = map(str, itertools.count())  # type: ignore[attr-defined]
    first, second, head = GCNConv(16, 16), GATConv(16, 8, heads=2), nn.Linear(16, 3)
    optimizer = adam(nn.ModuleList([first, second, head]))

    def graph() -> Any:
        size = random.randint(3, 20)
        return Data(x=torch.randn(size, 16), edge_index=torch.randint(size, (2, random.randint(0, 40))))

    def step() -> None:
        batch = Batch.from_data_list([graph() for _ in range(4)])
        optimizer.zero_grad()
        hidden = second(first(batch.x, batch.edge_index).relu(), batch.edge_index)
        pooled = global_mean_pool(hidden, batch.batch)
        functional.cross_entropy(head(pooled), torch.randint(3, (4,))).backward()
        optimizer.step()

    return step


HERE: tuple[Callable[[], Step], ...] = (
    changing_batch, two_periods, graphs, diffusion, dropped_experts, speculative,
)  # fmt: skip
OF_LIBRARIES: dict[str, tuple[Callable[[], Step], ...]] = {
    "pytorch_lightning": (lightning,),
    "transformers": (hugging_face_trainer, hugging_face_speculative),
    "diffusers": (diffusers,),
    "torch_geometric": (geometric,),
}
TRAININGS: dict[str, Callable[[], Step]] = {
    **{training.__name__: training for training in HERE},
    **{f"pipelined_{schedule}": functools.partial(pipelined, schedule) for schedule in SCHEDULES},
    **{
        training.__name__: training
        for library, trainings in OF_LIBRARIES.items()
        if importlib.util.find_spec(library)
        for training in trainings
    },
}


if __name__ == "__main__":
    train_as_second(Path(sys.argv[2]), lambda: pipeline(sys.argv[1]))
