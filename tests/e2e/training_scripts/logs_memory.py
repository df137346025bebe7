"""Six steps of two batches each, whose memory goes where WAY logs: ``logs_memory.py WAY DIR``.

WAY is a framework or a tracker. Prints what was logged, [[step, {name: value}], ...], read back from where
the client put it.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

STEPS = 6
BATCHES = 2
"""Of a step: their gradients add up."""
NAME = "rankmem/"
WAIT_S = 60


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


def data() -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.randn(64)} for _ in range(8 * STEPS * BATCHES)]


def of_rows(rows: list[dict[str, Any]], step: str) -> list[Any]:
    return [
        [int(row[step]), {name: float(row[name]) for name in row if name.startswith(NAME) and name != step}]
        for row in rows
        if row.get(f"{NAME}peak_bytes") not in (None, "")
    ]


def lightning(folder: Path) -> list[Any]:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    from rankmem.lightning import MemoryCallback

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def validation_step(self, batch: Any, number: int) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(data(), batch_size=8)
    logger = CSVLogger(folder)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        accumulate_grad_batches=BATCHES,
        logger=logger,
        callbacks=[MemoryCallback(every_steps=2, wait_s=WAIT_S)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader, loader)
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        return of_rows(list(csv.DictReader(file)), "step")


def transformers(folder: Path) -> list[Any]:
    from transformers import Trainer, TrainingArguments

    from rankmem.transformers import MemoryCallback

    arguments = TrainingArguments(
        str(folder),
        max_steps=STEPS,
        gradient_accumulation_steps=BATCHES,
        per_device_train_batch_size=8,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(Net(), arguments, train_dataset=data(), eval_dataset=data()[:8])
    trainer.add_callback(MemoryCallback(trainer.log, every_steps=2, wait_s=WAIT_S))
    trainer.train()
    assert sum("loss" in entry for entry in trainer.state.log_history) == STEPS  # its own log is whole
    return of_rows(trainer.state.log_history, f"{NAME}step")


def accelerate(folder: Path) -> list[Any]:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    from rankmem.accelerate import MemoryLog

    logged: list[Any] = []

    class Kept(GeneralTracker):
        name = "kept"
        requires_logging_directory = False
        tracker = None

        def store_init_configuration(self, values: dict[str, Any]) -> None: ...

        def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
            logged.append([step, values])

    accelerator = Accelerator(cpu=True, log_with=[Kept()], gradient_accumulation_steps=BATCHES)
    accelerator.init_trackers("kept")
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data(), batch_size=8)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    memory = MemoryLog(accelerator, every_steps=2, wait_s=WAIT_S)
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        memory.step()
    memory.finish()
    accelerator.end_training()
    return logged


def looped(log: Any) -> None:
    """A loop of the user's own."""
    from rankmem.step_log import StepLog

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    memory = StepLog(log, every_steps=2, wait_s=WAIT_S)
    memory.begin()
    for number in range(1, STEPS + 1):
        for _ in range(BATCHES):
            net(torch.randn(8, 64))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        memory.ended(number)
        time.sleep(0.5)  # as a real step: the figures of some come while others run
    memory.finish()


def tensorboard(folder: Path) -> list[Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from rankmem import trackers

    with SummaryWriter(str(folder)) as writer:
        looped(trackers.tensorboard(writer))
    read = EventAccumulator(str(folder))
    read.Reload()
    found: dict[int, dict[str, float]] = {}
    for name in read.Tags()["scalars"]:
        for scalar in read.Scalars(name):
            found.setdefault(scalar.step, {})[name] = scalar.value
    return [[step, found[step]] for step in sorted(found)]


def mlflow(folder: Path) -> list[Any]:
    import mlflow as client

    from rankmem import trackers

    client.set_tracking_uri(folder.as_uri())
    client.set_experiment("of a test")
    with client.start_run() as run:
        looped(trackers.mlflow(client))
    found: dict[int, dict[str, float]] = {}
    for name in client.get_run(run.info.run_id).data.metrics:
        for metric in client.MlflowClient().get_metric_history(run.info.run_id, name):
            found.setdefault(metric.step, {})[name] = metric.value
    return [[step, found[step]] for step in sorted(found)]


def wandb(folder: Path) -> list[Any]:
    import wandb as client

    from rankmem import trackers

    run = client.init(project="p", dir=str(folder), mode="offline")
    own: list[int] = []

    class Watched:
        """The run, which the script itself logs to after each of ours."""

        define_metric = staticmethod(run.define_metric)

        @staticmethod
        def log(values: dict[str, Any], **more: Any) -> None:
            run.log(values, **more)
            own.append(len(own))
            run.log({"loss": 1.0}, step=10 * len(own))

    looped(trackers.wandb(Watched()))
    run.finish()
    client.teardown()  # its service may write the file after finish() has returned
    return of_rows(wandb_rows(next(folder.glob("wandb/offline-run-*/*.wandb")).read_bytes()), f"{NAME}step")


def wandb_rows(data: bytes) -> list[dict[str, Any]]:
    """The history of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for entry in leveldb_entries(data, at=7):
        record = Record()
        record.ParseFromString(entry)
        items = record.history.item
        if items:
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    return rows


def leveldb_entries(data: bytes, at: int) -> Iterator[bytes]:
    """The entries of a log in LevelDB's format: blocks of 32 KiB; checksum, length, type before each part."""
    entry = b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        entry = (entry if kind in (3, 4) else b"") + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield entry


if __name__ == "__main__":
    way, place = sys.argv[1], Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    print("\nLOGGED", json.dumps(globals()[way](place.absolute())))
