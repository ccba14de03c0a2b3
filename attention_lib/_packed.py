"""Query, key and value projections of a small layer as one product, where that changes nothing.

With few features a call takes longer than its product. So the parameters of a small layer lie in
one piece of memory, as those of :class:`torch.nn.RNN` do on a GPU, and one product over all of it
stands for three. They stay parameters that anyone may replace, move, train or watch: each call
looks anew at where they lie.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.modules import module as every_module
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

WIDEST = 128  # features; beyond, the products take longer than the calls


def pack(layers):
    """Move the parameters of three linear layers next to each other, with their numbers.

    Returns:
        A :class:`Block`. ``None``, and nothing has moved, for layers that are wide, not alike, or
        more than a product, and for memory that is not on the CPU or belongs to others as well.
    """
    if not all(layer and layer.__dict__ for layer in layers):  # a copy that is not finished
        return None
    parameters = _parameters(layers)
    weights, biases = parameters[:3], parameters[3:]
    if not _movable(weights):
        return None
    unbiased = all(bias is None for bias in biases)
    if not unbiased and not (_movable(biases) and biases[0].shape == weights[0].shape[:1]):
        return None
    return Block(weights, None if unbiased else biases)


class Block:
    """The parameters of three equal linear layers in one piece of memory.

    A copy or a pickle of it is an empty set, which ``torch.load`` takes with ``weights_only``:
    copied parameters lie elsewhere.

    Attributes:
        whole: Weight and bias, or ``None``, of the one layer that stands for the three.
        parts: Views of them, one for each parameter of the three.
    """

    def __init__(self, weights, biases):
        self.whole, self.parts = [], []
        for group in (weights, biases):
            whole = None if group is None else torch.cat([p.detach() for p in group])
            parts = [None] * 3 if group is None else whole.chunk(3)
            for parameter, part in zip(group or (), parts, strict=False):
                parameter.data = part
            self.whole.append(whole)
            self.parts += parts

    def __reduce__(self):
        return set, ()

    def holds(self, layers):
        """Whether the layers' parameters are the parts, and a call of each is a product only."""
        parameters = _parameters(layers)
        try:
            for p, part in zip(parameters, self.parts, strict=False):
                if p is part:  # no bias
                    continue
                plain = part is not None and type(p) is nn.Parameter and p.dtype == part.dtype
                if not (plain and p.is_set_to(part)):
                    return False
        except NotImplementedError:  # another kind of memory, such as the meta device's
            return False
        return bool(parameters)

    def product(self, layers, x):
        """The outputs of the layers for one input, side by side; ``None`` where calls are due."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return None
        if is_in_torch_dispatch_mode() and get_proxy_mode() is not None:
            return None  # a trace would take the memory for a constant
        if every_module._global_forward_hooks or every_module._global_forward_pre_hooks:
            return None
        return F.linear(x, *self.whole) if self.holds(layers) else None


def _parameters(layers):
    """Weights, then biases, of the layers; nothing where a call is more than a product."""
    for layer in layers:
        if (
            type(layer) is not nn.Linear
            or layer._forward_hooks
            or layer._forward_pre_hooks
            or "forward" in layer.__dict__
        ):
            return []
    return [layer._parameters.get(name) for name in ("weight", "bias") for layer in layers]


def _movable(group):
    """Whether three parameters can become the thirds of one, and lie in no larger vector."""
    first = group[0] if group else None
    alike = len(set(map(id, group))) == 3 and all(
        type(p) is nn.Parameter
        and (p.shape, p.dtype) == (first.shape, first.dtype)
        and (p.is_cpu and not p.is_shared() and p.shape[-1] <= WIDEST)
        for p in group
    )
    memory = [p.untyped_storage() for p in group] if alike else []
    sizes = {storage.data_ptr(): storage.nbytes() for storage in memory}
    return alike and (len(sizes) == 3 or sum(sizes.values()) == sum(p.nbytes for p in group))
