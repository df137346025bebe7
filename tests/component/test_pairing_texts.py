"""What names and stacks mean to the categories."""

from __future__ import annotations

import pytest
import torch

from rankmem_ship.pairing.texts import FACTORIES, OPAQUE, UNINITIALIZED, is_distributed, makes_reducer
from rankmem_ship.spool_reader.string_table import Frame

DDP = "/venv/lib/python3.13/site-packages/torch/nn/parallel/distributed.py"
USER = Frame("/home/user/train.py", "main", 10)


def test_every_operator_that_has_a_meaning_exists() -> None:
    names = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    gone = {name for name in FACTORIES | UNINITIALIZED | OPAQUE if name not in names}
    assert not gone
    assert not FACTORIES & UNINITIALIZED
    assert not FACTORIES & OPAQUE


REAL, ROW = torch.rand(4, 4, requires_grad=True), torch.rand(4, requires_grad=True)
WHOLE = torch.ones(4, 4, dtype=torch.long)
BITWISE = ("__and__", "__or__", "__xor__", "bitwise_and", "bitwise_or", "bitwise_xor")
ARGUMENTS = {
    "bincount": (WHOLE[0],),
    "bucketize": (REAL, ROW),
    "histc": (REAL.detach(),),
    "isin": (REAL, REAL),
    "multinomial": (REAL, 1),
    "one_hot": (WHOLE, 2),
    "searchsorted": (ROW, REAL),
    "bitwise_not": (WHOLE,),
    **dict.fromkeys(BITWISE, (WHOLE, WHOLE)),
    **dict.fromkeys(("allclose", "equal", "isclose", "eq", "ge", "gt", "le", "lt", "ne"), (REAL, REAL)),
    **dict.fromkeys(("greater", "greater_equal", "less", "less_equal", "not_equal"), (REAL, REAL)),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), (REAL, REAL)),
}


@pytest.mark.parametrize("name", sorted(OPAQUE - {"aten::clone"}))
def test_an_opaque_operator_gives_nothing_that_needs_a_gradient(name: str) -> None:
    name = name.removeprefix("aten::")
    sizes = {"size": 2} if name == "nonzero_static" else {}
    result = getattr(torch.ops.aten, name)(*ARGUMENTS.get(name, (REAL,)), **sizes)
    first = result[0] if isinstance(result, (tuple, list)) else result
    assert not getattr(first, "requires_grad", False)


@pytest.mark.parametrize(
    ("frames", "makes"),
    [
        ([Frame(DDP, "DistributedDataParallel._ddp_init_helper", 1437), USER], True),
        ([Frame(DDP, "DistributedDataParallel._pre_forward", 1775), USER], True),
        ([Frame(DDP, "DistributedDataParallel._sync_buffers", 2000), USER], False),
        ([Frame("/x/torch/nn/modules/linear.py", "Linear.__init__", 1), Frame(DDP, "x", 1)], False),
        ([USER], False),
        ([], False),
    ],
)
def test_the_reducer_allocates_from_where_ddp_makes_it_and_orders_its_buckets(
    frames: list[Frame], makes: bool
) -> None:
    assert makes_reducer(frames) == makes


def test_what_torch_distributed_copies_is_told_from_what_is_made_on_its_behalf() -> None:
    inside = Frame("/x/torch/distributed/utils.py", "_sync_params_and_buffers", 1)
    assert is_distributed([inside, USER])
    assert not is_distributed([USER, inside])
    assert not is_distributed([])
