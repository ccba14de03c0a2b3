"""The rings of chapter 15: slices that go from rank to rank, forward and backward."""

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from attention_lib import tiling

_ROWS = 128  # queries whose part of the causal mask exists at one time


class Ring:
    """The two neighbours of a process, and what goes from one to the other."""

    def __init__(self, group, device):
        self.group, self.device = group, device
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def exchange(self, outgoing, length):
        """Tensors of another length that arrive from the rank before, while these are sent on.

        Returns the tensors that are being filled, and what to wait for.
        """
        outgoing = [x.contiguous() for x in outgoing]
        incoming = [x.new_empty(*x.shape[:-2], length, x.shape[-1]) for x in outgoing]
        transfers = [
            dist.P2POp(operation, x, group=self.group, group_peer=(self.rank + to) % self.size)
            for operation, tensors, to in ((dist.isend, outgoing, 1), (dist.irecv, incoming, -1))
            for x in tensors
            if x.numel()
        ]
        return incoming, dist.batch_isend_irecv(transfers) if transfers else []

    def travel(self, slices, lengths, use):
        """Call ``use(*slices)`` with this rank's, then those of the ranks before it in turn.

        ``use`` is a function, so that no name keeps a slice alive after its turn.
        """
        for step in range(self.size):
            coming, works = None, []
            if step < self.size - 1:
                coming, works = self.exchange(slices, lengths[self.rank - step - 1])
            use(*slices)
            _finish(works)
            slices = coming

    def agree(self, length, **facts):
        """The lengths of the slices by rank; refuses ranks whose other numbers differ."""
        mine = torch.tensor([[length], *([fact] for fact in facts.values())], dtype=torch.float64)
        found = []
        self.travel(
            [mine.to(self.device)], [len(mine)] * self.size, lambda x: found.append(x.tolist())
        )
        for step, numbers in enumerate(found):
            for (name, fact), [other] in zip(facts.items(), numbers[1:], strict=True):
                if fact != other:
                    raise ValueError(
                        "all ranks must call ring_attention alike, only the lengths may differ; got"
                        f" {name} {fact:g} on rank {self.rank} and {other:g} on rank "
                        f"{(self.rank - step) % self.size}"
                    )
        # found begins with this rank and goes back
        return [int(found[(self.rank - rank) % self.size][0][0]) for rank in range(self.size)]


class RingAttention(torch.autograd.Function):
    """Forward and backward around the ring; keeps this rank's tensors and its log-sum-exp."""

    @staticmethod
    def forward(ctx, ring, lengths, scale, positions, query, key, value):
        """This rank's part of the output."""
        ready = tiling._ready(query)
        output = ready.new_zeros(*query.shape[:-1], value.shape[-1])
        lse = ready.new_full(query.shape[:-1], -torch.inf)

        def use(key, value, *places):
            key, value = tiling._ready(key), tiling._ready(value)
            for rows, mask in _seen(positions, places, query):
                part = tiling._forward(ready[..., rows, :], key, value, mask, **options)
                _merge_partial(output[..., rows, :], lse[..., rows], *part)

        options = {"is_causal": False, "scale": scale, "block_size": _ROWS}
        places = [] if positions is None else [positions[:, None]]
        ring.travel([key, value, *places], lengths, use)
        ctx.save_for_backward(query, key, value, positions, output, lse)
        ctx.ring, ctx.lengths, ctx.options = ring, lengths, options
        return output.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        """This rank's part of the gradients of query, key and value."""
        query, key, value, positions, output, lse = ctx.saved_tensors
        ring, ready, grad_output = ctx.ring, tiling._ready(query), tiling._ready(grad_output)
        grad_query, no_grad, step = torch.zeros_like(ready), torch.zeros_like(lse), 0
        grads, works = None, []  # of the slice in use, from the ranks that had it before

        def use(key, value, *places):
            nonlocal grads, works, step
            key, value = tiling._ready(key), tiling._ready(value)
            mine = [torch.zeros_like(key), torch.zeros_like(value)]
            for rows, mask in _seen(positions, places, query):
                of_rows = (x[..., rows, :] for x in (output, grad_output))
                # the log-sum-exp over all slices makes the weights those of the whole sequence
                parts = tiling._backward(
                    ready[..., rows, :], key, value, mask, next(of_rows), lse[..., rows],
                    next(of_rows), no_grad[..., rows], **ctx.options,
                )  # fmt: skip
                grad_query[..., rows, :] += parts[0]
                for total, part in zip(mine, parts[1:], strict=True):
                    total += part
            _finish(works)
            if grads is not None:
                for total, part in zip(mine, grads, strict=True):
                    total += part
            grads, step = mine, step + 1
            if ring.size > 1:  # on to the next rank, which has this slice next; at last its own
                grads, works = ring.exchange(mine, ctx.lengths[ring.rank - step])

        places = [] if positions is None else [positions[:, None]]
        ring.travel([key, value, *places], ctx.lengths, use)
        _finish(works)
        grads = (grad_query, *grads)
        return (
            None,
            None,
            None,
            None,
            *(g.to(x) for g, x in zip(grads, (query, key, value), strict=True)),
        )


def _merge_partial(output, lse, part, part_lse):
    """Bring another part of the keys into an average, in place, by the two log-sum-exps."""
    both = torch.logaddexp(lse, part_lse)
    shift = both.masked_fill(both == -torch.inf, 0.0)
    output.mul_((lse - shift).exp().unsqueeze(-1))
    output.addcmul_(part, (part_lse - shift).exp().unsqueeze(-1))
    lse.copy_(both)


def _seen(positions, places, query):
    """Slices of queries, each with its mask (``None`` for all) of the keys at ``places``."""
    if positions is None:
        return [(slice(None), None)]
    blocks = tiling._blocks(query.shape[-2], _ROWS)
    return ((rows, positions[rows, None] >= places[0].mT) for rows in blocks)


def _finish(works):
    for work in works:
        work.wait()
