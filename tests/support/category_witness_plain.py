"""Trainings and generations that hold tensors outside of modules and optimizers, and say what these are.

Stage: tests; runs in a process of its own under the tap and the agent's hooks. As in ``category_witness`` the
script notes what it knows: the place in the log, the address, the category. Here it also knows tensors for
which torch.profiler has no name (``kv_cache``), and tensors of which nobody but the script can know what they
are: the database may say unknown of those, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

import rankmem_agent
from category_witness import Witness, hooked
from rankmem_agent.hooks import user_api as told
from rankmem_agent.tap.library import Tap

STEPS = 5
TOKENS = 10
BATCH, WIDTH, LAYERS = 4, 64, 2
Caches = list[Any]


# --- Data: a data set that stays, and batches taken from it.


class Data:
    """A data set of the script's and batches from it."""

    def __init__(self, witness: Witness, width: int = WIDTH) -> None:
        self._witness = witness
        self._rows, self._labels = torch.randn(256, width), torch.randint(0, 10, (256,))

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Data and labels, noted as input."""
        chosen = torch.randperm(256)[:64]
        data, labels = self._rows[chosen], self._labels[chosen]
        for each in (self._rows, self._labels, chosen, data, labels):
            self._witness.note("input", each)
        return data, labels


# --- Generation: where the keys and values of earlier tokens are kept.


class Attention(nn.Module):
    """One layer of attention, whose keys and values go through ``keep``."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor, keep: Callable[..., Any]) -> torch.Tensor:
        queries, keys, values = self.project(tokens).chunk(3, -1)
        keys, values = keep(keys, values)
        result: torch.Tensor = self.out(functional.scaled_dot_product_attention(queries, keys, values))
        return result


class Decoder(nn.Module):
    """Layers of attention over an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, ids: torch.Tensor, keeps: list[Callable[..., Any]]) -> torch.Tensor:
        hidden = self.embed(ids)
        for layer, keep in zip(self.layers, keeps, strict=True):
            hidden = hidden + layer(hidden, keep)
        result: torch.Tensor = self.head(hidden)
        return result


class Growing:
    """Keys and values of a layer, put together anew for each token."""

    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None

    def __call__(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.keys is None or self.values is None:
            self.keys, self.values = keys.contiguous(), values.contiguous()
        else:
            self.keys = torch.cat([self.keys, keys], 1)
            self.values = torch.cat([self.values, values], 1)
        return self.keys, self.values

    def held(self) -> Iterator[torch.Tensor]:
        """What is kept now."""
        yield from (each for each in (self.keys, self.values) if each is not None)


class Static(Growing):
    """Keys and values of a layer at their greatest length, made at once or by the first token."""

    def __init__(self, *, at_once: bool = True) -> None:
        self._at = 0
        if at_once:
            self._make()

    def _make(self) -> None:
        self.keys = torch.zeros(BATCH, 4 * TOKENS, WIDTH)
        self.values = torch.zeros(BATCH, 4 * TOKENS, WIDTH)

    def __call__(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.keys is None:
            self._make()
        assert self.keys is not None
        assert self.values is not None
        end = self._at + keys.shape[1]
        self.keys[:, self._at : end] = keys
        self.values[:, self._at : end] = values
        self._at = end
        return self.keys[:, :end], self.values[:, :end]


def generate(witness: Witness, model: nn.Module, keeps: Caches, tell: Callable[[Any], None]) -> None:
    """Greedy decoding, with the caches noted after each token."""
    ids = torch.randint(0, 100, (BATCH, TOKENS))
    witness.note("input", ids)
    for _ in range(TOKENS):
        logits = model(ids, keeps)
        ids = logits[:, -1].argmax(-1, keepdim=True)
        for keep in keeps:
            for each in keep.held():
                tell(each)
                witness.note("kv_cache", each)
        for each in model.parameters():
            witness.note("parameter", each)


def _quiet(_: Any) -> None:
    """Nothing is told of the caches."""


def growing_no_grad(witness: Witness) -> None:
    """Caches that grow by ``cat``, in a list of the script's."""
    with torch.no_grad():
        model = Decoder()
        for _ in range(3):
            generate(witness, model, [Growing() for _ in range(LAYERS)], _quiet)


def growing_inference_mode(witness: Witness) -> None:
    """The same under inference mode."""
    model = Decoder()
    with torch.inference_mode():
        for _ in range(3):
            generate(witness, model, [Growing() for _ in range(LAYERS)], _quiet)


def growing_frozen(witness: Witness) -> None:
    """The same with autograd on and every parameter frozen."""
    model = Decoder().requires_grad_(requires_grad=False)
    for _ in range(3):
        generate(witness, model, [Growing() for _ in range(LAYERS)], _quiet)


def static_script(witness: Witness) -> None:
    """Caches made before generation, with autograd on."""
    model = Decoder()
    for _ in range(3):
        keeps = [Static() for _ in range(LAYERS)]
        with torch.no_grad():
            generate(witness, model, keeps, _quiet)


def static_lazy(witness: Witness) -> None:
    """Caches made whole in the first forward."""
    model = Decoder()
    with torch.inference_mode():
        for _ in range(3):
            generate(witness, model, [Static(at_once=False) for _ in range(LAYERS)], _quiet)


def static_buffers(witness: Witness) -> None:
    """Caches that are buffers of a module."""
    model = Decoder()
    keeps: Caches = []
    for layer in model.layers:
        keep = Static()
        layer.register_buffer("cache_keys", keep.keys)
        layer.register_buffer("cache_values", keep.values)
        keeps.append(keep)
    with torch.no_grad():
        for _ in range(2):
            for keep in keeps:
                keep._at = 0
            generate(witness, model, keeps, _quiet)


def rollouts(witness: Witness) -> None:
    """Generation with a cache made anew each time, then a step of training: reinforcement learning."""
    model, data = Decoder(), Data(witness)
    head = nn.Linear(WIDTH, 10)
    optimizer = torch.optim.AdamW(head.parameters())
    keeps: Caches = []
    for _ in range(STEPS):
        keeps = [Static() for _ in range(LAYERS)]
        with torch.no_grad():
            generate(witness, model, keeps, _quiet)
        rows, labels = data.batch()
        functional.cross_entropy(head(rows), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def told_growing(witness: Witness) -> None:
    """Caches that the script tells of, ``cat`` after ``cat``."""
    model = Decoder()
    with torch.inference_mode():
        generate(witness, model, [Growing() for _ in range(LAYERS)], _tell_cache)


def told_static(witness: Witness) -> None:
    """Caches that the script tells of once, all in one container."""
    model = Decoder()
    keeps = [Static() for _ in range(LAYERS)]
    rankmem_agent.tag([{"keys": keep.keys, "values": keep.values} for keep in keeps], "kv_cache")
    with torch.no_grad():
        generate(witness, model, keeps, _quiet)


def _tell_cache(tensor: torch.Tensor) -> None:
    rankmem_agent.tag(tensor, "kv_cache")


# --- Training with plain tensors.


def _plain_weights() -> list[torch.Tensor]:
    return [torch.randn(WIDTH, 256) / 8, torch.zeros(256), torch.randn(256, 10) / 16, torch.zeros(10)]


def _plain_loss(weights: list[torch.Tensor], data: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(data @ weights[0] + weights[1])
    return functional.cross_entropy(hidden @ weights[2] + weights[3], labels)


def _note_all(witness: Witness, category: str, tensors: Any) -> None:
    for each in tensors:
        witness.note(category, each)


def plain_in_place(witness: Witness) -> None:
    """Weights updated in place under ``no_grad``."""
    data = Data(witness)
    weights = [each.requires_grad_() for each in _plain_weights()]
    for _ in range(STEPS):
        _plain_loss(weights, *data.batch()).backward()
        _note_all(witness, "gradient", [each.grad for each in weights])
        with torch.no_grad():
            for each in weights:
                assert each.grad is not None
                each -= 0.1 * each.grad
                each.grad = None
        _note_all(witness, "parameter", weights)


def plain_kept_gradients(witness: Witness) -> None:
    """Gradients that are zeroed in place and never freed."""
    data = Data(witness)
    weights = [each.requires_grad_() for each in _plain_weights()]
    for _ in range(STEPS):
        _plain_loss(weights, *data.batch()).backward()
        with torch.no_grad():
            for each in weights:
                assert each.grad is not None
                each -= 0.1 * each.grad
                each.grad.zero_()
        _note_all(witness, "parameter", weights)
    _plain_loss(weights, *data.batch())
    _note_all(witness, "gradient", [each.grad for each in weights])


def plain_momentum(witness: Witness) -> None:
    """Momentum as plain tensors, in place under ``no_grad``."""
    data = Data(witness)
    weights = [each.requires_grad_() for each in _plain_weights()]
    momentum = [torch.zeros_like(each) for each in weights]
    for _ in range(STEPS):
        _plain_loss(weights, *data.batch()).backward()
        with torch.no_grad():
            for each, speed in zip(weights, momentum, strict=True):
                assert each.grad is not None
                speed.mul_(0.9).add_(each.grad)
                each -= 0.1 * speed
                each.grad = None
        _note_all(witness, "parameter", weights)
        _note_all(witness, "optimizer_state", momentum)


def plain_data(witness: Witness) -> None:
    """Weights and momentum made anew in each step through ``.data``, with autograd on."""
    data = Data(witness)
    weights = [each.requires_grad_() for each in _plain_weights()]
    momentum = [torch.zeros_like(each.data) for each in weights]
    for _ in range(STEPS):
        _plain_loss(weights, *data.batch()).backward()
        for number, each in enumerate(weights):
            assert each.grad is not None
            momentum[number] = 0.9 * momentum[number] + each.grad.data
            each.data = each.data - 0.1 * momentum[number]
            each.grad = None
        _note_all(witness, "parameter", weights)
        _note_all(witness, "optimizer_state", momentum)


def plain_adam(witness: Witness) -> None:
    """Weights as plain tensors in an optimizer of torch's: it knows them."""
    data = Data(witness)
    weights = [each.requires_grad_() for each in _plain_weights()]
    optimizer = torch.optim.Adam(weights)
    for _ in range(STEPS):
        _plain_loss(weights, *data.batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
        _note_all(witness, "parameter", weights)
        _note_all(witness, "optimizer_state", [optimizer.state[each]["exp_avg"] for each in weights])


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, 10))


def manual_updates(witness: Witness) -> None:
    """A module's parameters updated by the script, with momentum made anew in each step, autograd on."""
    model, data = _net(), Data(witness)
    momentum = {name: torch.zeros_like(each.data) for name, each in model.named_parameters()}
    for _ in range(STEPS):
        functional.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        for name, each in model.named_parameters():
            assert each.grad is not None
            momentum[name] = 0.9 * momentum[name] + each.grad.data
            each.data = each.data - 0.1 * momentum[name]
            each.grad = None
        _note_all(witness, "parameter", model.parameters())
        _note_all(witness, "optimizer_state", momentum.values())


def averaged_gradients(witness: Witness) -> None:
    """Copies of gradients that the script makes between micro-batches and keeps: no data."""
    model, data = _net(), Data(witness)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        sums: list[torch.Tensor] = []
        for micro in range(3):
            rows, labels = data.batch()
            functional.cross_entropy(model(rows), labels).backward()
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            sums = [each * 0.5 for each in gradients] if micro == 0 else sums
            _note_all(witness, "gradient", sums)
        optimizer.step()
        optimizer.zero_grad()


# --- Functions of parameters.


def _functional_loss(
    parameters: dict[str, torch.Tensor], model: nn.Module, data: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    return functional.cross_entropy(functional_call(model, parameters, (data,)), labels)


def func_grad(witness: Witness) -> None:
    """``functional_call`` and ``grad`` over a dict of detached parameters, updated functionally."""
    model, data = _net(), Data(witness)
    parameters = {name: each.detach().clone() for name, each in model.named_parameters()}
    for _ in range(STEPS):
        gradients = grad(_functional_loss)(parameters, model, *data.batch())
        parameters = {name: each - 0.1 * gradients[name] for name, each in parameters.items()}
        _note_all(witness, "parameter", parameters.values())
        _note_all(witness, "gradient", gradients.values())


def func_adam(witness: Witness) -> None:
    """The same with a functional optimizer, whose state is made anew in each step."""
    model, data = _net(), Data(witness)
    parameters = {name: each.detach().clone() for name, each in model.named_parameters()}
    state = {name: (torch.zeros_like(each), torch.zeros_like(each)) for name, each in parameters.items()}
    for _ in range(STEPS):
        gradients = grad(_functional_loss)(parameters, model, *data.batch())
        for name, gradient in gradients.items():
            mean, square = state[name]
            state[name] = (0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient * gradient)
            parameters[name] = parameters[name] - 0.1 * state[name][0] / (state[name][1].sqrt() + 1e-8)
        _note_all(witness, "parameter", parameters.values())
        _note_all(witness, "optimizer_state", [each for pair in state.values() for each in pair])


def func_ensemble(witness: Witness) -> None:
    """Stacked parameters of several models under ``vmap``, updated in place."""
    models, data = [_net() for _ in range(3)], Data(witness)
    parameters, buffers = stack_module_state(models)
    base = models[0]

    def loss(own: Any, held: Any, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(base, (own, held), (rows,)), labels)

    for _ in range(STEPS):
        rows, labels = data.batch()
        gradients = vmap(grad(loss), in_dims=(0, 0, None, None))(parameters, buffers, rows, labels)
        with torch.no_grad():
            for name, each in parameters.items():
                each -= 0.1 * gradients[name]
        _note_all(witness, "parameter", parameters.values())


# --- Optimizers that are none of torch's.


class Lion:
    """An optimizer with a dict of state and no base class."""

    def __init__(self, parameters: Any, *, anew: bool) -> None:
        self.parameters = list(parameters)
        self.state: dict[torch.Tensor, torch.Tensor] = {}
        self._anew = anew
        if not anew:
            self.state = {each: torch.zeros_like(each) for each in self.parameters}

    def step(self) -> None:
        """One step."""
        with torch.no_grad():
            for each in self.parameters:
                mean = self.state.get(each)
                mean = torch.zeros_like(each) if mean is None else mean
                each.sub_(0.01 * (0.9 * mean + 0.1 * each.grad).sign())
                if self._anew:
                    self.state[each] = 0.99 * mean + 0.01 * each.grad
                else:
                    mean.mul_(0.99).add_(each.grad, alpha=0.01)

    def zero_grad(self) -> None:
        """Lets go of the gradients."""
        for each in self.parameters:
            each.grad = None


class Flat:
    """An optimizer that keeps its state as attributes: one flat copy of the weights, one flat momentum."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)
        self.master = torch.cat([each.detach().flatten() for each in self.parameters])
        self.momentum = torch.zeros_like(self.master)

    @property
    def state(self) -> dict[int, torch.Tensor]:
        """What it keeps."""
        return {0: self.master, 1: self.momentum}

    def step(self) -> None:
        """One step, with autograd on, through ``.data``."""
        gradients = torch.cat([each.grad.data.flatten() for each in self.parameters])
        self.momentum.mul_(0.9).add_(gradients)
        self.master.sub_(0.1 * self.momentum)
        at = 0
        for each in self.parameters:
            each.data.copy_(self.master[at : at + each.numel()].view_as(each))
            at += each.numel()

    def zero_grad(self) -> None:
        """Zeroes the gradients."""
        for each in self.parameters:
            each.grad.zero_()


def _with_optimizer(witness: Witness, make: Callable[[Any], Any]) -> None:
    model, data = _net(), Data(witness)
    optimizer = make(model.parameters())
    for _ in range(STEPS):
        rows, labels = data.batch()
        functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        _note_all(witness, "parameter", model.parameters())
        _note_all(witness, "optimizer_state", optimizer.state.values())


def own_lion(witness: Witness) -> None:
    """State made before the training and updated in place."""
    _with_optimizer(witness, lambda parameters: Lion(parameters, anew=False))


def own_lion_anew(witness: Witness) -> None:
    """State made anew by each step."""
    _with_optimizer(witness, lambda parameters: Lion(parameters, anew=True))


def own_flat(witness: Witness) -> None:
    """State as attributes, gradients kept."""
    _with_optimizer(witness, Flat)


def told_optimizer(witness: Witness) -> None:
    """An optimizer of the script's own, whose state the script tells of."""

    def make(parameters: Any) -> Flat:
        made = Flat(parameters)
        rankmem_agent.tag(made.state, "optimizer_state", name="flat")
        return made

    _with_optimizer(witness, make)


CASES: dict[str, Callable[[Witness], None]] = {
    each.__name__: each
    for each in (
        growing_no_grad, growing_inference_mode, growing_frozen, static_script, static_lazy, static_buffers,
        rollouts, told_growing, told_static, plain_in_place, plain_kept_gradients, plain_momentum, plain_data,
        plain_adam, manual_updates, averaged_gradients, func_grad, func_adam, func_ensemble, own_lion,
        own_lion_anew, own_flat, told_optimizer,
    )
}  # fmt: skip


def run(tap: Tap, name: str, folder: Path) -> None:
    """Runs a case, and leaves witness.json in the folder."""
    hooks = hooked(tap)
    told.connect(tap, hooks.steps, torch.compiler.is_compiling)
    witness = Witness(tap)
    CASES[name](witness)
    if hooks.guard.failures:
        raise AssertionError("a hook failed")
    (folder / "witness.json").write_text(json.dumps(witness.seen))
