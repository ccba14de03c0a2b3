"""What a call does, for chapter 12: operations, bytes, page faults, its outputs and its bounds."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attention_lib import _arguments


@dataclass(frozen=True)
class Roofline:
    """What a machine can reach.

    Attributes:
        peak: FLOP a second of a large product of matrices.
        bandwidth: Bytes a second, read and written, of a large copy.
        device: Where both were measured.
        dtype: Dtype of the product, without ``torch.``.
        threads: Threads that PyTorch may use on the CPU.

    Source:
        Williams, Waterman and Patterson, "Roofline", 2009.
    """

    peak: float
    bandwidth: float
    device: str
    dtype: str
    threads: int

    @property
    def ridge(self) -> float:
        """FLOP for each byte from which on the peak is the limit."""
        return self.peak / self.bandwidth

    def reachable(self, intensity: float | int | np.ndarray) -> float | int | np.ndarray:
        """FLOP a second that can be reached at most with so many FLOP for each byte.

        Args:
            intensity: FLOP for each byte that is read or written; a number or an array.

        Returns:
            The smaller of peak and ``intensity * bandwidth``.

        Example:
            >>> Roofline(100.0, 10.0, "cpu", "float32", 1).reachable(4.0)
            40.0
        """
        reached = np.minimum(self.peak, np.asarray(intensity) * self.bandwidth)
        return reached if reached.ndim else float(reached)


def attention_flops(
    batch: int,
    heads: int,
    q: int,
    k: int,
    d: int,
    v: int | None = None,
    backward: bool = False,
    recompute: bool = False,
) -> int:
    """Operations of attention without its projections, an addition and a product counted as two.

    Only the products of matrices count, as is usual; the softmax is a few operations for each
    score. A causal kernel that skips blocks needs about half.

    Args:
        batch: Samples.
        heads: Query heads.
        q: Queries.
        k: Keys.
        d: Width of queries and keys.
        v: Width of values; ``d`` by default.
        backward: Those of the backward pass in place of the forward pass.
        recompute: The backward pass computes the scores again, as fused kernels do.

    Returns:
        FLOPs of one pass.

    Raises:
        TypeError: A size is not an integer.
        ValueError: A size below 1.

    Example:
        >>> attention_flops(batch=1, heads=8, q=1024, k=1024, d=64)
        2147483648

    Source:
        Dao, "FlashAttention-2", 2023, section 4.1.
    """
    v = d if v is None else v
    _arguments.positive(batch=batch, heads=heads, q=q, k=k, d=d, v=v)
    _arguments.flags(backward=backward, recompute=recompute)
    batch, heads, q, k, d, v = map(int, (batch, heads, q, k, d, v))  # int64 could overflow
    scores, average = 2 * q * k * d, 2 * q * k * v
    if backward:  # a product has two factors, and each of them gets a gradient
        return batch * heads * (2 * (scores + average) + scores * recompute)
    return batch * heads * (scores + average)


def attention_bytes(
    batch: int,
    heads: int,
    q: int,
    k: int,
    d: int,
    v: int | None = None,
    backward: bool = False,
    fused: bool = True,
    dtype: torch.dtype = torch.float32,
) -> int:
    """Bytes that attention without its projections reads and writes at least.

    A fused kernel reads query, key and value and writes the output and one number for each
    query; backward it also reads those two and the output's gradient, and writes three
    gradients. The plain formula stores the scores in between: each of its operations (product,
    softmax, product) reads its inputs and writes its result. Scaled queries, masks and dropout
    are not counted, and no cache helps.

    Args:
        batch: Samples.
        heads: Query heads.
        q: Queries.
        k: Keys.
        d: Width of queries and keys.
        v: Width of values; ``d`` by default.
        backward: Those of the backward pass in place of the forward pass.
        fused: Whether a single kernel does it; the plain formula otherwise.
        dtype: Dtype of all tensors.

    Returns:
        Bytes of one pass.

    Raises:
        TypeError: A size is not an integer, or not a dtype of floats.
        ValueError: A size below 1.

    Example:
        >>> attention_bytes(1, 1, q=2, k=3, d=5, fused=False)  # (10 + 15 + 15 + 10 + 4 * 6) * 4
        296
    """
    v = d if v is None else v
    _arguments.positive(batch=batch, heads=heads, q=q, k=k, d=d, v=v)
    _arguments.flags(backward=backward, fused=fused)
    _arguments.float_dtype("dtype", dtype)
    batch, heads, q, k, d, v = map(int, (batch, heads, q, k, d, v))  # as above
    tensors = (1 + backward) * (q * d + k * d + k * v + q * v)
    if fused:  # the log-sum-exp of each query is float32 for half precision, too
        return batch * heads * (tensors * dtype.itemsize + q * max(4, dtype.itemsize))
    # forward: scores and weights, each written and read; backward: the weights read twice, their
    # gradient written and read, the scores' gradient written and read twice
    return batch * heads * (tensors + (7 if backward else 4) * q * k) * dtype.itemsize


def bytes_moved(function: Callable[[], object]) -> int:
    """Bytes that the operations of a call read and write, as PyTorch's dispatcher sees them.

    Each operation reads all of its inputs and writes all of its results; views move nothing, and
    no cache helps. What happens inside a kernel is not seen, and compiled code is not counted.

    Args:
        function: Called once, without arguments.

    Returns:
        Bytes, those of a backward pass in the function included.

    Raises:
        TypeError: Not a function.

    Example:
        >>> x = torch.ones(2, 3)
        >>> bytes_moved(lambda: (x.T + x.T).mul_(2))  # three tensors of 24 bytes, then two
        120
    """
    _arguments.function(function=function)
    with _Bytes() as counter:
        function()
    return counter.total


class _Bytes(TorchDispatchMode):
    total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        results = operation(*args, **(kwargs or {}))
        inputs, outputs = all_tensors([*args]), all_tensors(results)
        places = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        shared = any(tensor.untyped_storage().data_ptr() in places for tensor in outputs)
        if operation._schema.is_mutable or not shared:
            self.total += sum(tensor.nbytes for tensor in inputs + outputs)
        return results


def page_faults(function: Callable[[], object]) -> int | float:
    """Pages of memory that the system had to find during a second call of the function.

    A program touches memory that it has kept without any; new memory costs one for each page,
    usually 4 KiB.

    Args:
        function: Called twice, without arguments.

    Returns:
        Minor page faults of this process during the second call; NaN on Windows.

    Raises:
        TypeError: Not a function.
    """
    _arguments.function(function=function)
    try:
        import resource
    except ImportError:  # Windows
        return math.nan
    function()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    function()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def busy_elsewhere(statistics=Path("/proc/stat")):
    """Processor seconds that other processes have used so far; NaN where nobody counts them."""
    try:
        fields = statistics.read_text(encoding="ascii").split()[1:9]  # of the first line
    except OSError:
        return math.nan
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, fields)
    ticks = user + nice + system + sum(interrupts_and_stolen)
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def all_tensors(output):
    """All tensors in an output, and its arrays as tensors."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, np.ndarray | np.generic):
        return [torch.as_tensor(output)]
    parts = output.values() if isinstance(output, dict) else output
    return list(chain(*map(all_tensors, parts))) if isinstance(output, dict | tuple | list) else []


def kind_of(output):
    """Device and dtype of the first tensor."""
    found = all_tensors(output)
    return (str(found[0].device), str(found[0].dtype)[6:]) if found else ("cpu", "")


def copies(name, output):
    """All tensors of an output on the CPU in 64 bits a number; `name` is for errors."""
    found = all_tensors(output)
    if not found:
        raise TypeError(
            f"{name!r} must return a tensor or array, or a tuple, list or dict of them, to be "
            f"compared; got {type(output).__name__}"
        )
    found = [
        x.detach().to("cpu", torch.complex128 if x.is_complex() else torch.float64, copy=True)
        for x in found
    ]
    for what, holds in {"NaN": torch.isnan, "infinity": torch.isinf}.items():
        if any(holds(tensor).any() for tensor in found):
            raise ValueError(
                f"{name!r} must give finite numbers, to be compared; its output contains {what}"
            )
    return found


def same_output(name, found, baseline, expected, tolerance):
    """Refuse an output that is not the baseline's."""
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (found, expected)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{name!r} must give outputs of the shapes of {baseline!r}, {shapes[1]}; "
            f"got {shapes[0]}"
        )
    for mine, theirs in zip(found, expected, strict=True):
        difference = (mine - theirs).abs().max().item() if mine.numel() else 0.0
        largest = theirs.abs().max().item() if mine.numel() else 0.0
        if difference > tolerance * largest:
            raise ValueError(
                f"{name!r} must give the output of {baseline!r}; "
                f"the largest difference is {difference:.3g}"
            )
