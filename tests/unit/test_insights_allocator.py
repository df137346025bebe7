"""The model of the caching allocator: against a slow one, and what must hold of any."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator_oracle import Oracle
from rankmem_aggregator.insights.allocator import Allocator, OutOfMemory
from rankmem_aggregator.insights.blocks import FREE, IN_USE, Block
from rankmem_aggregator.insights.settings import Settings
from rankmem_protos.errors import Code, RankmemError

MIB = 1 << 20
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 2 * MIB),
    st.sampled_from([MIB, MIB + 1, 2 * MIB, 9 * MIB, 10 * MIB - 1, 10 * MIB, 19 * MIB, 20 * MIB, 33 * MIB]),
)
ASKED = st.lists(
    st.tuples(st.sampled_from("aaaffe"), SIZES, st.integers(0, 1), st.integers(0, 999)), max_size=60
)
"""What (alloc, free, empty_cache), bytes, stream, and which block is freed."""


def _blocks(allocator: Allocator) -> list[Block]:
    free = [entry[2] for pool in allocator.pools.values() for entry in pool.free]
    unmapped = [entry[1] for pool in allocator.pools.values() for entry in pool.unmapped]
    return [*free, *unmapped, *allocator.live.values()]


def _check(allocator: Allocator) -> None:
    """What holds after every request: bytes are conserved, and no two free neighbours stay apart."""
    every = _blocks(allocator)
    heads = [block for block in every if block.before is None]
    seen, mapped = 0, 0
    for block in heads:
        while block is not None:
            seen += 1
            mapped += block.size if block.state in (IN_USE, FREE) else 0
            after = block.after
            if after is not None:
                assert after.before is block
                assert after.address == block.address + block.size
                assert block.state == IN_USE or block.state != after.state
            block = after  # type: ignore[assignment]
    assert seen == len(every)
    assert mapped == allocator.device.reserved_bytes
    assert allocator.live_bytes == sum(block.size for block in allocator.live.values())
    assert allocator.live_bytes <= allocator.device.reserved_bytes <= allocator.device.capacity_bytes
    for pool in allocator.pools.values():
        assert pool.free == sorted(pool.free, key=lambda entry: entry[:2])
        assert all(entry[:2] == (entry[2].size, entry[2].address) for entry in pool.free)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(capacity_bytes=64 * MIB),
        Settings(max_split_size_bytes=20 * MIB, capacity_bytes=100 * MIB),
        Settings(roundup_power2_divisions=8),
        Settings(garbage_collection_threshold=0.5, allowed_bytes=80 * MIB),
        Settings(expandable_segments=True, device_bytes=1 << 30),
        Settings(expandable_segments=True, device_bytes=1 << 30, capacity_bytes=60 * MIB),
        Settings(expandable_segments=True, device_bytes=1 << 30, extra_bytes=32, align_bytes=16 << 10),
    ],
    ids=lambda settings: settings.text() or "default",
)
@given(asked=ASKED)
def test_bytes_are_conserved_and_free_neighbours_merge(settings: Settings, asked: list) -> None:
    allocator = Allocator(settings)
    for number, (what, size, stream, which) in enumerate(asked):
        if what == "a":
            with suppress(OutOfMemory):
                allocator.malloc(number, size, stream)
        elif what == "f" and allocator.live:
            allocator.free(sorted(allocator.live)[which % len(allocator.live)])
        elif what == "e":
            allocator.empty_cache()
        _check(allocator)
    for name in list(allocator.live):
        allocator.free(name)
    allocator.empty_cache()
    _check(allocator)
    assert allocator.device.reserved_bytes == 0


@pytest.mark.parametrize(
    ("capacity", "max_split"),
    [(1 << 62, 1 << 62), (70 * MIB, 1 << 62), (1 << 62, 20 * MIB), (90 * MIB, 20 * MIB)],
)
@given(asked=ASKED)
def test_every_request_gets_the_address_that_a_slow_model_gives_it(
    capacity: int, max_split: int, asked: list
) -> None:
    oracle = Oracle(capacity=capacity, max_split=max_split)
    allocator = Allocator(Settings(capacity_bytes=capacity, max_split_size_bytes=max_split))
    for number, (what, size, stream, which) in enumerate(asked):
        if what == "a":
            expected = oracle.malloc(number, size, stream)
            if expected is None:
                with pytest.raises(OutOfMemory):
                    allocator.malloc(number, size, stream)
            else:
                assert allocator.malloc(number, size, stream) == expected
        elif what == "f" and allocator.live:
            name = sorted(allocator.live)[which % len(allocator.live)]
            allocator.free(name)
            oracle.free(name)
        elif what == "e":
            allocator.empty_cache()
            oracle.empty_cache()
        assert allocator.device.reserved_bytes == oracle.reserved


def test_garbage_collection_gives_back_what_was_unused_longest() -> None:
    allocator = Allocator(Settings(garbage_collection_threshold=0.8, allowed_bytes=100 * MIB))
    for name, size in (("old", 30), ("new", 24)):
        allocator.malloc(name, size * MIB)
    allocator.free("old")
    for number in range(3):
        allocator.malloc(number, 12 * MIB, stream=1)  # each is searched for in the large pool
    allocator.free("new")
    allocator.device.actions = []
    allocator.malloc("more", 40 * MIB, stream=1)
    gone = [size // MIB for action, _, size in allocator.device.actions if action == "segment_free"]
    assert gone == [30]


def test_the_only_segment_that_is_free_is_collected() -> None:
    allocator = Allocator(Settings(garbage_collection_threshold=0.1, allowed_bytes=100 * MIB))
    allocator.malloc("only", 30 * MIB)
    allocator.free("only")
    allocator.malloc("more", 40 * MIB)
    assert allocator.device.reserved_bytes == 40 * MIB


@pytest.mark.parametrize(("rest", "is_split"), [(MIB, False), (MIB + 512, True)])
def test_a_rest_of_the_large_pool_is_split_off_above_a_mebibyte(rest: int, is_split: bool) -> None:
    allocator = Allocator(Settings())
    allocator.malloc("block", 20 * MIB - rest)
    assert allocator.live_bytes == (20 * MIB - rest if is_split else 20 * MIB)


def test_nothing_is_collected_without_a_memory_fraction() -> None:
    allocator = Allocator(Settings(garbage_collection_threshold=0.1, capacity_bytes=100 * MIB))
    for number in range(4):
        allocator.malloc(number, 12 * MIB + number * 2 * MIB)
        allocator.free(number)
    assert allocator.device.reserved_bytes == (12 + 14 + 16 + 18) * MIB


def test_expandable_segments_map_whole_pages_and_give_them_back() -> None:
    allocator = Allocator(Settings(expandable_segments=True, device_bytes=1 << 30))
    first = allocator.malloc("first", 15 * MIB)
    second = allocator.malloc("second", 15 * MIB)
    assert second == first + 15 * MIB
    assert allocator.device.reserved_bytes == 40 * MIB
    allocator.free("first")
    allocator.empty_cache()
    assert allocator.device.reserved_bytes == 40 * MIB, "its page holds a part of the second"
    allocator.malloc("third", 30 * MIB)
    allocator.free("second")
    allocator.empty_cache()
    assert allocator.device.reserved_bytes == 40 * MIB, "from 30 to 60 MiB, in pages of 20"
    allocator.free("third")
    allocator.empty_cache()
    assert allocator.device.reserved_bytes == 0


@pytest.mark.parametrize(
    ("divisions", "requested", "rounded"),
    [
        (0, 1, 512),
        (0, 513, 1024),
        (4, 1200 << 10, 1280 << 10),
        (4, 2048, 2048),
        (4, 1025, 1536),
        (8, 5000, 5120),
    ],
)
def test_sizes_are_rounded_as_pytorch_rounds_them(divisions: int, requested: int, rounded: int) -> None:
    settings = Settings(roundup_power2_divisions=divisions)
    assert settings.block_bytes(np.array([requested])).tolist() == [rounded]


@pytest.mark.parametrize("bits", [20, 31, 40, 52])
def test_powers_of_two_stay_and_the_next_byte_takes_a_step(bits: int) -> None:
    sizes = np.array([(1 << bits) - 512, 1 << bits, (1 << bits) + 1])
    found = Settings(roundup_power2_divisions=4).block_bytes(sizes).tolist()
    assert found == [1 << bits, 1 << bits, (1 << bits) + (1 << bits - 2)]


def test_settings_are_read_as_pytorch_writes_them() -> None:
    parsed = Settings.parse(
        "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8"
    )
    assert parsed == Settings(
        expandable_segments=True, max_split_size_bytes=128 * MIB, garbage_collection_threshold=0.8
    )
    assert parsed.text() == "expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8"
    assert Settings.parse(parsed.text()) == parsed
    assert parsed.changed("") == Settings()
    assert Settings.recorded(" [expandable_segments]", "cuda:0").expandable_segments
    npu = Settings.recorded('{"expandable_segments": true}', "npu:1", 64 << 30)
    assert (npu.expandable_segments, npu.extra_bytes, npu.device_bytes) == (True, 32, 64 << 30)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("max_split_size_mb", Code.INVALID, "no setting"),
        ("max_split_size_mb:much", Code.INVALID, "much"),
        ("backend:cudaMallocAsync", Code.UNSUPPORTED, "backend:cudaMallocAsync"),
        ("roundup_power2_divisions:[256:1,512:2]", Code.UNSUPPORTED, "256:1"),
        ("unheard_of:1", Code.UNSUPPORTED, "unheard_of"),
    ],
)
def test_a_setting_that_is_not_modelled_is_refused(text: str, code: Code, words: str) -> None:
    with pytest.raises(RankmemError, match=words.replace("[", r"\[")) as caught:
        Settings.parse(text)
    assert caught.value.code is code


def test_the_allocator_of_a_cpu_is_not_modelled() -> None:
    with pytest.raises(RankmemError, match="allocator of cpu"):
        Settings.recorded(None, "cpu")


def test_blocks_of_a_private_pool_stay_until_its_graphs_are_gone() -> None:
    allocator = Allocator(Settings())
    allocator.malloc(1, 5 * MIB, private="1.0")
    allocator.malloc(2, 5 * MIB)
    allocator.free(1)
    allocator.free(2)
    allocator.empty_cache()
    assert allocator.device.reserved_bytes == 20 * MIB
    allocator.empty_cache(["1.0"])
    assert allocator.device.reserved_bytes == 0


def test_neighbours_are_where_the_chain_says() -> None:
    allocator = Allocator(Settings())
    addresses = [allocator.malloc(number, 1000) for number in range(3)]
    assert [later - earlier for earlier, later in pairwise(addresses)] == [1024, 1024]
    allocator.free(1)
    assert allocator.malloc("again", 512) == addresses[1], "the smallest that is large enough"
