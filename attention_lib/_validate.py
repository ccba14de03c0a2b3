"""One check of arguments for every attention function: rule, what was expected, what came."""

import numpy as np
import torch
from torch import Tensor, nn

from attention_lib import _arguments
from attention_lib._hints import about_heads, about_mask, two_alignments
from attention_lib._numbers import is_finite

_LAYER_INPUTS = (("query", "embed_dim"), ("key", "kdim"), ("value", "vdim"))


def attention_arguments(query, key, value, mask=None, is_causal=False, scale=None, dropout_p=0.0):
    """Refuse what :func:`attention_lib.scaled_dot_product_attention` does not mean to accept.

    Args:
        query: ``(..., L, d)``.
        key: ``(..., S, d)``.
        value: ``(..., S, v)``, or ``...`` where only the weights are asked for.
        mask: ``None`` or bool, True = may attend.
        is_causal: bool.
        scale: ``None`` or a finite number.
        dropout_p: A probability.

    Raises:
        TypeError: Not a tensor, not a float dtype, two dtypes, a mask that is not bool.
        ValueError: Shapes, devices or numbers that do not fit.
    """
    tensors = {"query": query, "key": key}
    if value is not ...:
        tensors["value"] = value
    for name, tensor in tensors.items():
        _arguments.float_tensor(name, tensor)
        _same_kind(name, tensor, "query", query)
    _same_sizes(tensors)
    _causal(is_causal, query, key)
    if mask is not None:
        _mask_kind(mask, query)
        _mask(mask, query, key.shape[-2])
    if scale is not None and not is_finite(scale):
        raise ValueError(f"scale must be a finite number or None; got {scale!r:.60}")
    _arguments.probability("dropout_p", dropout_p)


def layer_arguments(inputs, widths, num_heads, part, mask=None, is_causal=False):
    """Refuse what a layer of several heads does not mean to accept.

    Args:
        inputs: Query ``(batch, L, widths[0])``, key ``(batch, S, widths[1])`` and value
            ``(batch, S, widths[2])``.
        widths: The layer's ``embed_dim``, ``kdim`` and ``vdim``.
        num_heads: The layer's number of query heads.
        part: A module of the layer; its weights have the layer's dtype and device.
        mask: ``None`` or bool, True = may attend.
        is_causal: bool.

    Raises:
        TypeError: Not a tensor, not a float dtype, not the layer's dtype (autocast may bring
            another one), a mask that is not bool.
        ValueError: Shapes or devices that do not fit.
    """
    checked, weight = (), _weight(part)
    for (name, size), tensor, width in zip(_LAYER_INPUTS, inputs, widths, strict=True):
        if tensor is not checked:  # in self-attention the three are one
            _arguments.float_tensor(name, tensor)
            _same_kind(name, tensor, "the layer's weights", weight, autocast=True)
            checked = tensor
        _sequence(name, tensor, size, width)
    query, key, value = inputs
    if not (query is key is value):
        _same_batch(query.shape, key.shape, value.shape)
    _causal(is_causal, query, key)
    if mask is not None:
        _mask_kind(mask, query)
        _layer_mask(tuple(mask.shape), *query.shape[:2], key.shape[1], num_heads)


def block_input(name, tensor, embed_dim, part):
    """Refuse what is not a ``(batch, position, embed_dim)`` tensor of a block's dtype and device.

    Raises:
        TypeError: Not a tensor, not a float dtype, not the block's dtype (autocast may bring
            another one).
        ValueError: Another shape or device.
    """
    _arguments.float_tensor(name, tensor)
    _same_kind(name, tensor, "the block's weights", _weight(part), autocast=True)
    _sequence(name, tensor, "embed_dim", embed_dim)


def layer_sizes(dropout=0.0, num_kv_heads=None, **sizes):
    """Refuse sizes of a layer that are not positive integers, and heads that do not divide.

    Args:
        dropout: A probability.
        num_kv_heads: ``None`` or the number of key/value heads.
        sizes: ``embed_dim``, ``num_heads`` and whatever else must be a positive integer.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A size below 1, heads that do not divide, a dropout that is no probability.
    """
    embed_dim, num_heads = sizes["embed_dim"], sizes["num_heads"]
    if num_kv_heads is not None:
        sizes["num_kv_heads"] = num_kv_heads
    _arguments.positive(**sizes)
    if embed_dim % num_heads:
        raise ValueError(
            "num_heads must divide embed_dim, each head takes embed_dim / num_heads of it; "
            f"got embed_dim = {embed_dim}, num_heads = {num_heads}"
        )
    if num_kv_heads is not None and num_heads % num_kv_heads:
        raise ValueError(
            "num_kv_heads must divide num_heads, equal groups of query heads share a key/value "
            f"head; got num_heads = {num_heads}, num_kv_heads = {num_kv_heads}"
        )
    _arguments.probability("dropout", dropout)


def class_of(thing):
    """The name of the class with its module's: two layers are called nearly the same."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def plain_layer(name, layer, *types):
    """Refuse a layer that its four weights and their biases do not describe.

    Raises:
        TypeError: Not of one of the types: a subclass may attend in another way.
        ValueError: A projection that is pruned, quantized, wrapped or the like.
    """
    if type(layer) not in types:
        raise TypeError(
            f"{name} must be a {' or '.join(t.__name__ for t in types)} of attention_lib, and no "
            "subclass, which may attend in another way; "
            f"got {class_of(layer)}"
        )
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        module = getattr(layer, part)
        if type(module) is not nn.Linear or module._parameters.keys() != {"weight", "bias"}:
            raise ValueError(
                f"the projections of {name} must be torch.nn.Linear with weight and bias alone; "
                f"got for {part} {type(module).__name__} with {list(module._parameters)}"
            )


def packed_arguments(inputs, in_proj_weight, out_proj_weight, in_proj_bias, out_proj_bias):
    """The inputs, integers as floats; refuses arrays that are not in PyTorch's packed layout.

    Raises:
        TypeError: Not a NumPy array of real numbers.
        ValueError: Shapes do not fit together.
    """
    _real_array("inputs", inputs)
    if inputs.ndim != 3:
        raise ValueError(f"inputs must have shape (seq, batch, embed); got {inputs.shape}")
    embed_dim = inputs.shape[-1]
    for name, array, expected in (
        ("in_proj_weight", in_proj_weight, (3 * embed_dim, embed_dim)),
        ("out_proj_weight", out_proj_weight, (embed_dim, embed_dim)),
        ("in_proj_bias", in_proj_bias, (3 * embed_dim,)),
        ("out_proj_bias", out_proj_bias, (embed_dim,)),
    ):
        if array is None and name.endswith("bias"):
            continue
        _real_array(name, array)
        if array.shape != expected:
            raise ValueError(f"{name} must have shape {expected}; got {array.shape}")
    # a product of small integers would wrap around
    return inputs.astype(np.result_type(inputs, 1.0), copy=False)


def _real_array(name, array):
    kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
    if getattr(kind, "kind", "") not in ("i", "u", "f"):
        raise TypeError(f"{name} must be a NumPy array of real numbers; got {kind}")


def _sequence(name, tensor, size, width):
    if tensor.ndim != 3 or tensor.shape[2] != width:
        raise ValueError(
            f"{name} must have shape (batch, position, {size} = {width}); got {tuple(tensor.shape)}"
        )


def _weight(module):
    """A parameter that tells the dtype and device of a module; ``None`` where it has none."""
    if "weight" in module._parameters:  # a scripted module has no get
        weight = module._parameters["weight"]
        if weight is not None and weight.dtype.is_floating_point:
            return weight
    # pruned, quantized or wrapped: what it is called with exists during its call only, if at all
    return next((p for p in module.parameters() if p.dtype.is_floating_point), None)


def _same_kind(name, tensor, other_name, other, autocast=False):
    if other is None:
        return
    if tensor.dtype != other.dtype and not (autocast and _autocast(tensor, other)):
        raise TypeError(
            "all inputs must have one dtype; "
            f"got {other_name} {other.dtype} and {name} {tensor.dtype}"
        )
    if tensor.device != other.device:
        raise ValueError(
            "all inputs must be on one device; "
            f"got {other_name} on {other.device} and {name} on {tensor.device}"
        )


def autocast_is_on(tensor):
    """Whether autocast is on for the tensor's device; some devices have none."""
    kind = tensor.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _autocast(tensor, other):
    """Whether autocast brings both to one dtype; it leaves float64 as it is."""
    return autocast_is_on(tensor) and torch.float64 not in (tensor.dtype, other.dtype)


def _causal(is_causal, query, key):
    _arguments.flags(is_causal=is_causal)
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise ValueError(two_alignments(query.shape[-2], key.shape[-2]))


def _same_sizes(tensors):
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    got = "got " + ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    query, key = shapes["query"], shapes["key"]
    if any(len(shape) < 2 for shape in shapes.values()):
        raise ValueError(f"inputs need at least two axes, (..., position, width); {got}")
    if any(shape[:-2] != query[:-2] for shape in shapes.values()):
        raise ValueError(
            "all axes before the last two (batch, heads) must be the same, nothing is broadcast; "
            f"{got}.{about_heads(query, key)}"
        )
    if query[-1] != key[-1]:
        raise ValueError(f"query and key must have the same width (last axis); {got}")
    if query[-1] == 0:
        raise ValueError(f"the width of query and key must be at least 1; {got}")
    if "value" in shapes and shapes["value"][-2] != key[-2]:
        raise ValueError(f"key and value must have the same length (axis -2); {got}")


def _same_batch(query, key, value):
    got = f"got query {tuple(query)}, key {tuple(key)}, value {tuple(value)}"
    if not query[0] == key[0] == value[0]:
        raise ValueError(
            "query, key and value must have the same batch size (axis 0), nothing is broadcast; "
            f"{got}. Inputs are batch first: x.transpose(0, 1) where they are not."
        )
    if key[1] != value[1]:
        raise ValueError(f"key and value must have the same length (axis 1); {got}")


def _mask_kind(mask, query):
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a torch.Tensor of bool; got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be bool with True = may attend; got {mask.dtype}. "
            "From 1 = attend, 0 = blocked: from_ones_and_zeros(mask). From additive 0 = attend, "
            "-inf = blocked: from_additive(mask). From nn.MultiheadAttention, True = blocked: "
            "from_torch_attn_mask(mask) or from_key_padding_mask(mask), all in attention_lib.masks."
        )
    if mask.device != query.device:
        raise ValueError(f"mask must be on the query's device {query.device}; got {mask.device}")


def _mask(mask, query, length):
    target = (*query.shape[:-1], length)
    broadcasts = mask.ndim == query.ndim and all(
        size in (1, wanted) for size, wanted in zip(mask.shape, target, strict=True)
    )
    if not broadcasts and tuple(mask.shape) not in (target[-1:], target[-2:]):
        raise ValueError(
            f"mask must have shape (S,) = {target[-1:]}, (L, S) = {target[-2:]}, or {query.ndim} "
            f"axes that broadcast to {target}; got {tuple(mask.shape)}"
        )


def _layer_mask(shape, batch, length, keys, heads):
    matrix = (length, keys)
    axes = ((1, batch), (1, heads), (1, length), (keys,))
    broadcasts = len(shape) == 4 and all(map(tuple.__contains__, axes, shape))
    if not broadcasts and shape not in (matrix, (batch, *matrix)):
        raise ValueError(
            f"mask of a layer must have shape (L, S) = {matrix}, (batch, L, S) = "
            f"{(batch, *matrix)}, or (batch or 1, heads or 1, L or 1, S) = ({batch} or 1, {heads} "
            f"or 1, {length} or 1, {keys}); got {shape}.{about_mask(shape, batch, matrix, heads)}"
        )
