"""Chapter 15: heads over processes, and the sequence around a ring of processes.

Both run on PyTorch's distributed engine: a process group that ``torchrun`` or :func:`run_ranks`
has started, with ``gloo`` for CPUs or ``nccl`` for GPUs. A process is called by its number in the
group, its rank.
"""

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from attention_lib import _arguments, _validate
from attention_lib._ranks import DEVICES, RankError, count_communication, run_ranks
from attention_lib._ring import Ring, RingAttention
from attention_lib.multi_head import MultiHeadAttention, _merge, _split
from attention_lib.single_head import _attend

__all__ = [
    "HeadParallelAttention", "RankError", "count_communication", "ring_attention", "run_ranks",
    "zigzag_positions",
]  # fmt: skip


class HeadParallelAttention(MultiHeadAttention):
    """:class:`~attention_lib.multi_head.MultiHeadAttention` with its heads dealt out to processes.

    Each of N processes owns ``num_heads / N`` neighbouring heads: their rows of ``q_proj``,
    ``k_proj`` and ``v_proj``, and their columns of ``out_proj``. Inputs and output are the same
    tensors in every process. The parameters are :class:`~torch.distributed.tensor.DTensor` under
    the names of the whole layer; ``parameter.full_tensor()`` puts one together, in all processes
    at once. There is no dropout: processes with one seed would drop the same weights of different
    heads.

    Args:
        embed_dim: Width of query and output.
        num_heads: Number of heads; divides ``embed_dim``.
        kdim: Width of the key input, ``embed_dim`` by default.
        vdim: Width of the value input, ``embed_dim`` by default.
        num_kv_heads: Number of key/value heads, ``num_heads`` by default.
        bias: Whether the four projections add a bias.
        mesh: The processes, a :class:`~torch.distributed.device_mesh.DeviceMesh` of one axis; by
            default all of the group.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A size below 1, or heads that do not divide; no process group; a number of
            processes that does not divide both numbers of heads.

    Source:
        Shoeybi et al., "Megatron-LM", 2019, section 3.
    """

    def __init__(
        self, embed_dim, num_heads, kdim=None, vdim=None, num_kv_heads=None, bias=True, mesh=None
    ):
        super().__init__(embed_dim, num_heads, kdim, vdim, num_kv_heads, bias)
        kind = DEVICES.get(dist.get_backend(_started()), "cpu")
        self.mesh = mesh or dist.init_device_mesh(kind, (dist.get_world_size(),))
        self.ranks, self.rank = self.mesh.size(), self.mesh.get_local_rank()
        if self.num_heads % self.ranks or self.num_kv_heads % self.ranks:
            raise ValueError(
                "the number of processes must divide num_heads and num_kv_heads, a head is not cut;"
                f" got {self.ranks} processes, num_heads = {self.num_heads}, num_kv_heads = "
                f"{self.num_kv_heads}"
            )
        plan = {f"{name}_proj": ColwiseParallel() for name in "qkv"}
        parallelize_module(self.to(kind), self.mesh, {**plan, "out_proj": RowwiseParallel()})

    @classmethod
    def from_layer(cls, layer: MultiHeadAttention, mesh=None) -> "HeadParallelAttention":
        """The same layer, dealt out.

        Args:
            layer: The whole layer, with the same weights in every process: rank 0's are taken.
            mesh: As for the class.

        Returns:
            A layer of the same dtype, with a copy of the weights that can be trained.

        Raises:
            TypeError: Not a MultiHeadAttention, or a subclass, which may attend in another way.
            ValueError: A layer with dropout, a projection that is more than a
                :class:`torch.nn.Linear`, and what the class refuses.
        """
        _validate.plain_layer("layer", layer, MultiHeadAttention)
        if layer.dropout:
            raise ValueError(f"a layer dealt out has no dropout; got dropout = {layer.dropout}")
        parallel = cls(
            layer.embed_dim, layer.num_heads, layer.kdim, layer.vdim, layer.num_kv_heads,
            layer.q_proj.bias is not None, mesh,
        ).to(layer.q_proj.weight.dtype)  # fmt: skip
        whole = layer.state_dict()
        with torch.no_grad():
            for name, part in parallel.named_parameters():
                part.copy_(distribute_tensor(whole[name], part.device_mesh, part.placements))
        return parallel.train(layer.training)

    def forward(
        self,
        query: Float[Tensor, "b q embed_dim"],
        key: Float[Tensor, "b k kdim"] | None = None,
        value: Float[Tensor, "b k vdim"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "b q embed_dim"]:
        """What the whole layer returns, in every process.

        Args:
            query: ``(batch, L, embed_dim)``, the same in every process, as all arguments are.
            key: ``(batch, S, kdim)``; the query by default.
            value: ``(batch, S, vdim)``; the key by default.
            mask: Bool, True = may attend, as for the whole layer.
            is_causal: Position i may attend to positions 0 to i only; needs L = S.

        Returns:
            The output ``(batch, L, embed_dim)``. The backward pass gives the inputs their whole
            gradients in every process.

        Raises:
            TypeError: Inputs that are not float tensors of the layer's dtype, or a mask that is
                not bool.
            ValueError: Shapes or devices that do not fit together.
        """
        key = query if key is None else key
        value = key if value is None else value
        _validate.layer_arguments(
            (query, key, value), (self.embed_dim, self.kdim, self.vdim), self.num_heads,
            self.q_proj, mask, is_causal,
        )  # fmt: skip
        query, key, value = self._heads(*self._shared(query, key, value))
        if self.num_kv_heads < self.num_heads:
            group = self.num_heads // self.num_kv_heads
            key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        mask = mask[:, None] if mask is not None and mask.ndim == 3 else mask
        if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
            mask = mask.chunk(self.ranks, dim=1)[self.rank]
        output = _attend(query, key, value, mask, is_causal, None, 0.0, False)
        # The sum over the processes may still be on its way, and whoever reads its memory without
        # an operation, as pickle does, finds a part of it. An operation waits.
        return self.out_proj(_merge(output)).clone()

    def _shared(self, *inputs):
        """The inputs as tensors of all processes: one all-reduce for the gradient of each."""
        shared = {id(x): DTensor.from_local(x, self.mesh, [Replicate()]) for x in inputs}
        return [shared[id(x)] for x in inputs]

    def _heads(self, query, key, value):
        """Queries, keys and values of this process's heads."""
        return (
            _split(self.q_proj(query), self.num_heads // self.ranks),
            _split(self.k_proj(key), self.num_kv_heads // self.ranks),
            _split(self.v_proj(value), self.num_kv_heads // self.ranks),
        )


def ring_attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    value: Float[Tensor, "*batch k v"],
    is_causal: bool = False,
    scale: float | None = None,
    positions: Int[Tensor, "q"] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Float[Tensor, "*batch q v"]:
    """Attention over a sequence of which each process holds a slice.

    Every process calls it with its own slice and gets the output of its own queries. Keys and
    values travel around the ring: rank r sends to rank r + 1 and receives from rank r - 1, so that
    after N - 1 sends each slice was everywhere. In the forward pass no process holds more than
    three slices: its own, the one in use, and the one that arrives meanwhile. Partial results are
    merged by their log-sum-exp. In the backward pass the keys and values travel again, followed by
    their gradients. A causal mask hides keys, and no work is skipped for it.

    The slices may differ in length, and be empty. Keys and values in half precision travel as they
    are; the work is in float32, and so are the gradients that travel. The backward pass must run in
    every process, too. Fewer key/value heads than query heads are repeated before the call, and
    travel repeated.

    Args:
        query: Queries of this process, ``(..., L, d)``.
        key: Keys of this process, ``(..., S, d)``, same leading axes.
        value: Values of this process, ``(..., S, v)``.
        is_causal: A query may attend to the keys at its own and earlier positions; needs L = S.
        scale: Factor for the scores, ``1 / sqrt(d)`` by default.
        positions: For ``is_causal``: the place in the sequence of each position of this process,
            ``(L,)`` int64, as :func:`zigzag_positions` gives them. By default the slices are in
            the order of the ranks.
        group: The processes; all by default.

    Returns:
        The output ``(..., L, v)`` in the query's dtype.

    Raises:
        TypeError: Inputs that are not float tensors of one dtype, or positions that are not int64.
        ValueError: No process group; shapes, devices or numbers that do not fit together, in one
            process or between two. Positions are not compared between processes.

    Source:
        Liu, Zaharia and Abbeel, "Ring attention with blockwise transformers", 2023.
    """
    _validate.attention_arguments(query, key, value, None, is_causal, scale)
    ring = Ring(_started(group, query.device), query.device)
    _places(positions, query)
    tensors = query, key, value
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    lengths = ring.agree(
        key.shape[-2], scale=scale, width=key.shape[-1], value_width=value.shape[-1],
        leading_axes=query.shape[:-2].numel(), dtype=_arguments.FLOATS.index(query.dtype),
        is_causal=is_causal, own_positions=positions is not None,
        gradients=torch.is_grad_enabled() and any(x.requires_grad for x in tensors),
    )  # fmt: skip
    if is_causal and positions is None:
        first = sum(lengths[: ring.rank])
        positions = torch.arange(first, first + query.shape[-2], device=query.device)
    return RingAttention.apply(ring, lengths, scale, positions if is_causal else None, *tensors)


def zigzag_positions(length: int, world_size: int, rank: int) -> Int[Tensor, " n"]:
    """The places of a rank that give every rank the same share of a causal mask.

    The sequence is cut into ``2 * world_size`` chunks; rank r takes chunk r from the front and
    chunk r from the back.

    Args:
        length: Length of the sequence; shares are the same where ``2 * world_size`` divides it.
        world_size: Number of processes.
        rank: Which of them.

    Returns:
        Places in the sequence, int64, in ascending order.

    Raises:
        TypeError: A number that is not an integer.
        ValueError: A rank that is not one of the processes, or a negative length.

    Example:
        >>> [zigzag_positions(8, 2, rank).tolist() for rank in (0, 1)]
        [[0, 1, 6, 7], [2, 3, 4, 5]]

    Source:
        Zhu, "ring-flash-attention", 2024; Brandon et al., "Striped attention", 2023, has another
        order with the same aim.
    """
    _arguments.counts(length=length, rank=rank)
    _arguments.positive(world_size=world_size)
    if rank >= world_size:
        raise ValueError(f"rank must be one of 0 to {world_size - 1}; got {rank}")
    chunks = torch.arange(length).tensor_split(2 * world_size)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def _places(positions, query):
    """Refuse positions that are not one integer for each query."""
    if positions is None:
        return
    if not isinstance(positions, Tensor) or positions.dtype != torch.int64:
        got = getattr(positions, "dtype", type(positions).__name__)
        raise TypeError(f"positions must be a tensor of dtype torch.int64; got {got}")
    if positions.shape != query.shape[-2:-1] or positions.device != query.device:
        raise ValueError(
            f"positions must be one number for each query, ({query.shape[-2]},) on {query.device}; "
            f"got {tuple(positions.shape)} on {positions.device}"
        )


def _started(group=None, device=None):
    """The process group; refuses to go on without one, or with tensors that it does not take."""
    if not dist.is_initialized():
        raise ValueError(
            "there is no process group. Start the code with torchrun and call "
            "torch.distributed.init_process_group() first, or start it with run_ranks"
        )
    group = dist.group.WORLD if group is None else group
    kind = DEVICES.get(dist.get_backend(group))
    if None not in (kind, device) and device.type != kind:
        raise ValueError(
            f"the back end {dist.get_backend(group)} takes tensors on {kind}; got one on {device}"
        )
    return group
