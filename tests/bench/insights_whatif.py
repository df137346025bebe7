"""What would help: the peak predicted for a remedy against a training with it; and how long it takes.

The naive way on the same steps: the bytes that a remedy touches, subtracted at the peak.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from harness import Figure, Options, of_samples, say

from rankmem_aggregator.insights.edits import Step
from rankmem_aggregator.insights.whatif import remedies_of, smallest_set
from rankmem_aggregator.insights.windows import NEVER, Place, StepSize, Window
from remedy_runs import ALONE, TOGETHER, Judged, judge, pairs_of, read, record

MODELS: Final = ("llama", "post_norm", "wide", "mixer")
QUICK_MODELS: Final = ("llama",)
OF_TWO: Final = ("llama", "post_norm")
ERROR_MAX: Final = 1.0
FSDP_ERROR_MAX: Final = 5.0
BLOCKS: Final = 30_000
BUDGET_S: Final = 2.0


def measure(options: Options) -> list[Figure]:
    """All figures of this insight."""
    figures = _speed()
    judged: list[Judged] = []
    for model in QUICK_MODELS if options.quick else MODELS:
        path = options.folder / f"{model}.duckdb"
        record(model, path)
        steps = read(path, 0, ALONE)
        judged += [judge(pair, steps[pair.before], steps[pair.after][0]) for pair in pairs_of(model)]
        say(f"{model}: {len(judged)} pairs")
    for model in () if options.quick else OF_TWO:
        path = options.folder / f"{model}-2.duckdb"
        record(model, path, ranks=2)
        for rank in range(2):
            steps = read(path, rank, TOGETHER)
            judged += [judge(pair, steps[pair.before], steps[pair.after][0]) for pair in pairs_of(model, 2)]
        say(f"{model} over two ranks: {len(judged)} pairs")
    for remedy in dict.fromkeys(each.pair.remedy for each in judged):
        figures += _errors(remedy, [each for each in judged if each.pair.remedy == remedy])
    return figures


def _errors(remedy: str, judged: Sequence[Judged]) -> list[Figure]:
    ours, naive = (100 * np.abs([getattr(each, name) for each in judged]) for name in ("ours", "naive"))
    return [
        Figure(
            what=f"{remedy}: predicted peak, furthest off",
            value=float(ours.max()),
            unit="%",
            at_most=FSDP_ERROR_MAX if remedy == "fsdp" else ERROR_MAX,
            note=f"{len(judged)} pairs, median {np.median(ours):.2f} %",
        ),
        Figure(what=f"{remedy}: naive, furthest off", value=float(naive.max()), unit="%"),
    ]


def _speed() -> list[Figure]:
    window = made_window(BLOCKS)
    tables, sets = [], []
    for _ in range(3):
        began = time.process_time()
        step = Step.of_window(window)
        remedies = remedies_of(step, {}, 8)
        for each in remedies:
            each.edit(step, step.lives()).peak()
        tables.append(time.process_time() - began)
        began = time.process_time()
        smallest_set(step, remedies[:8], 1)
        sets.append(time.process_time() - began)
    what = f"of a step of {BLOCKS:,} blocks"
    return [
        of_samples(f"all remedies {what}", tables, "s", at_most=BUDGET_S),
        of_samples(f"all sets of eight remedies {what}", sets, "s", at_most=BUDGET_S),
    ]


def made_window(blocks: int) -> Window:
    """A step of a synthetic decoder: a third forward, a third backward, the rest the optimizer's."""
    layers = 60
    third = blocks // 3
    born = np.arange(1, blocks + 1) * 2
    died = np.full(blocks, NEVER)
    rng = np.random.default_rng(5)
    phase = ["forward"] * third + ["backward"] * third + ["optimizer"] * (blocks - 2 * third)
    layer = np.concatenate(
        [
            np.arange(third) * layers // third,
            np.arange(third)[::-1] * layers // third,
            np.zeros(blocks - 2 * third),
        ]
    ).astype(int)
    died[:third] = born[2 * third - 1 - np.arange(third)] + 1
    died[third:] = born[third:] + 1 + 2 * rng.integers(0, 20, blocks - third)
    died[died > 2 * blocks] = NEVER
    place = Place(
        session_id="0", attempt=0, rank=0, device="cpu", device_type="cpu", allocator=None, settings=None,
        total_bytes=None,
    )  # fmt: skip
    return Window(
        place=place,
        size=StepSize(step=1, from_seq=0, to_seq=2 * blocks + 1, input_bytes=1, peak_bytes=None),
        begin=0,
        end=2 * blocks + 1,
        born=born,
        died=died,
        bytes=rng.integers(1 << 10, 1 << 22, blocks),
        category=["activation"] * third + ["gradient"] * third + ["optimizer_state"] * (blocks - 2 * third),
        operator=["aten::linear"] * blocks,
        module=[f"layers.{number}.up" for number in layer],
        phase=phase,
        line=[None] * blocks,
        forward_line=[None] * blocks,
        function=[None] * blocks,
        forward_function=[None] * blocks,
        recomputed=[False] * blocks,
        stream=[None] * blocks,
        pool=[None] * blocks,
    )
