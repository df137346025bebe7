"""Keys and values that Hugging Face's models keep of earlier tokens.

Stage: trainer, the threads that generate. Comes in: calls of the ``update`` of the cache classes of
``transformers``, which :mod:`rankmem_agent.hooks.sharding` has wrapped here (4.36 to 5; where a name is
missing, nothing is wrapped). Goes out: tensors, to the sharding hooks. It keeps none.

A cache is recognised by its class alone. For one of the script's own model, use ``rankmem_agent.tag``.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from rankmem_agent.hooks.wrapping import TensorSink, wrapped

TRANSFORMERS: Final = "transformers.cache_utils"


def wrap_caches(module: Any, cache: TensorSink) -> None:
    """Wraps ``update`` of each class of caches that has one of its own.

    Args:
        module: ``transformers.cache_utils``.
        cache: receives the keys and values that a layer keeps.
    """
    base = getattr(module, "Cache", None)
    if not isinstance(base, type):
        return
    classes: set[Any] = {base, *(each for each in vars(module).values() if isinstance(each, type))}
    for each in classes:
        genuine = each.__dict__.get("update")
        if issubclass(each, base) and genuine is not None:
            each.update = wrapped(
                genuine,
                after=lambda call, _: cache(
                    functools.partial(_kept, call.args[0], call.args[1:], call.kwargs)
                ),
            )


def _kept(its: Any, args: Any, kwargs: Any) -> list[Any]:
    """The keys and values of the layer that was updated; nothing of a layer that is kept elsewhere."""
    layer = args[2] if len(args) > 2 else kwargs.get("layer_idx")
    if layer is None:
        return []
    try:
        return _of_layer(its, layer)
    except LookupError:
        return []


def _of_layer(its: Any, layer: Any) -> list[Any]:
    layers = getattr(its, "layers", None)
    if layers is not None:
        return [getattr(layers[layer], name, None) for name in ("keys", "values")]
    return [getattr(its, name)[layer] for name in ("key_cache", "value_cache") if hasattr(its, name)]
