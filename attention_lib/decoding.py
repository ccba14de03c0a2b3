"""Chapter 14: one token at a time, with keys and values that are kept."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_lib import _arguments, _validate
from attention_lib._cache import (
    KeyValueCache,
    RollingCache,
    _check_caches,
    _check_real,
    cache_bytes,
)
from attention_lib._numbers import is_finite
from attention_lib.block import _LAYERS, RotaryAttention, TransformerBlock, _residual, rotary
from attention_lib.masks import padding_mask, window_mask
from attention_lib.multi_head import MultiHeadAttention, _merge
from attention_lib.single_head import _attend

__all__ = [
    "KeyValueCache",
    "LanguageModel",
    "RollingCache",
    "attend_with_cache",
    "cache_bytes",
    "generate",
    "group_heads",
    "next_ids",
]

_Real = Bool[Tensor, "b q"] | None


def attend_with_cache(
    layer: MultiHeadAttention,
    x: Float[Tensor, "b q embed_dim"],
    cache: KeyValueCache,
    real: _Real = None,
) -> Float[Tensor, "b q embed_dim"]:
    """Causal self-attention of the next tokens, which see what the cache holds and each other.

    Shared key/value heads are not repeated: the queries of one group stand below each other, and
    each stored key is read once for all of them.

    Args:
        layer: A :class:`~attention_lib.multi_head.MultiHeadAttention` or a
            :class:`~attention_lib.block.RotaryAttention`, used without dropout. Its parameters are
            not changed. Where ``q_proj`` learns, a backward pass must come before the next call,
            which writes into the keys and values that it needs.
        x: The next tokens, ``(batch, L, embed_dim)``, without those that came before.
        cache: Keys and values of this layer so far; the new ones are appended.
        real: ``(batch, L)``, True = a token, False = padding, wherever it stands.

    Returns:
        ``(batch, L, embed_dim)``: the last L rows of what the layer gives for all tokens so far
        with a causal mask, or with the window of the cache. Padding gets the bias of ``out_proj``.

    Raises:
        TypeError, ValueError: A layer, an input or a cache that do not fit, or a full cache.
    """
    if type(layer) not in (MultiHeadAttention, RotaryAttention):
        raise TypeError(
            "layer must be a MultiHeadAttention or a RotaryAttention, others would have to say "
            f"what a position means to them; got {type(layer).__name__}"
        )
    _arguments.float_tensor("x", x)
    if x.ndim != 3:
        raise ValueError(f"x must have shape (batch, L, embed_dim); got {tuple(x.shape)}")
    _arguments.instance("cache", cache, KeyValueCache, "a KeyValueCache")
    widths = (layer.embed_dim, layer.kdim, layer.vdim)
    _validate.layer_arguments((x, x, x), widths, layer.num_heads, layer.q_proj)
    positions = cache.next_positions(x.shape[1], real)
    query, key, value = MultiHeadAttention._heads(layer, x, x, x)
    if isinstance(layer, RotaryAttention):
        query, key = (rotary(part, positions[:, None]) for part in (query, key))
    keys, values, at = cache.append(key, value, real)
    group = layer.num_heads // layer.num_kv_heads
    query = query.unflatten(1, (-1, group)).flatten(2, 3)  # (b, key/value heads, group * L, d)
    mask = _visible(positions, at, cache.window).repeat(1, 1, group, 1)
    output = _attend(query, keys, values, mask, False, None, 0.0, False)
    return layer.out_proj(_merge(output.unflatten(2, (group, -1)).flatten(1, 2)))


class LanguageModel(nn.Module):
    """Blocks with a causal mask that give, at each position, scores for the token that follows.

    Args:
        vocabulary_size: Number of ids.
        embed_dim: Width.
        num_heads: Number of query heads of a layer.
        num_layers: Number of blocks.
        num_kv_heads: Number of key/value heads, ``num_heads`` by default.
        feedforward_dim: Width of the hidden layer, ``4 * embed_dim`` by default.
        window: How many positions a query sees, its own among them; ``None`` for all before it.

    Attributes:
        embed: The embedding of the ids.
        blocks: :class:`~attention_lib.block.TransformerBlock` with rotary positions.
        norm, out: What makes scores of the last block's output.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A size below 1, heads that do not divide, or heads of odd width.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embed_dim: int,
        num_heads: int,
        num_layers: int,
        num_kv_heads: int | None = None,
        feedforward_dim: int | None = None,
        window: int | None = None,
    ):
        super().__init__()
        _arguments.positive(
            vocabulary_size=vocabulary_size, embed_dim=embed_dim, num_layers=num_layers
        )
        if window is not None:
            _arguments.positive(window=window)
        self.window = window
        self.embed = nn.Embedding(vocabulary_size, embed_dim)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                embed_dim,
                num_heads,
                feedforward_dim,
                attention=RotaryAttention(embed_dim, num_heads, num_kv_heads=num_kv_heads),
            )
            for _ in range(num_layers)
        )
        self.norm, self.out = nn.LayerNorm(embed_dim), nn.Linear(embed_dim, vocabulary_size)

    def forward(
        self,
        ids: Int[Tensor, "b q"],
        caches: Sequence[KeyValueCache] | None = None,
        real: _Real = None,
    ) -> Float[Tensor, "b q vocabulary"]:
        """Scores for what follows each position.

        Args:
            ids: ``(batch, L)``; with caches the next tokens only.
            caches: One for each block, from :meth:`new_caches`; the new tokens are appended.
            real: ``(batch, L)``, True = a token, False = padding. Without caches the tokens of a
                row must be neighbours; the scores at padding mean nothing.

        Returns:
            ``(batch, L, vocabulary_size)``.

        Raises:
            TypeError, ValueError: Ids, caches or a ``real`` that do not fit (one cache for two
                blocks, caches of two lengths, of another window than the model's), or a full cache.
        """
        _arguments.ids("ids", ids, size=self.embed.num_embeddings)
        if real is not None:
            _check_real(real, tuple(ids.shape), ids.device)
        x = self.embed(ids)
        if caches is None:
            mask = self._mask(ids.shape[1], real, ids.device)
            for block in self.blocks:
                x = block(x, mask=mask, is_causal=True)
            return self.out(self.norm(x))
        _check_caches(caches, len(self.blocks), self.window)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = _block_with_cache(block, x, cache, real)
        return self.out(self.norm(x))

    def new_caches(self, batch_size: int, capacity: int) -> list[KeyValueCache]:
        """Empty caches of the model's dtype and on its device, one for each block.

        Args:
            batch_size: Number of samples.
            capacity: Number of positions, prompt included. A model with a window gets rolling
                caches of that size, or smaller ones where fewer positions will come.

        Raises:
            TypeError: A size that is not an integer.
            ValueError: A size below 1.
        """
        layer, weight = self.blocks[0].attention, self.embed.weight
        rolls = self.window is not None and self.window < capacity
        make = RollingCache if rolls else KeyValueCache
        sizes = (layer.num_kv_heads, self.window if rolls else capacity)
        width = layer.embed_dim // layer.num_heads
        return [make(batch_size, *sizes, width, weight.dtype, weight.device) for _ in self.blocks]

    def _mask(self, length, real, device):
        """What is forbidden besides the future; ``None`` where nothing is."""
        real = None if real is None else padding_mask(real.long(), pad_id=0)
        if self.window is None:
            return real
        near = window_mask(length, self.window - 1, 0, device=device)
        return near if real is None else near & real


def next_ids(
    scores: Float[Tensor, "b vocabulary"],
    temperature: float | int = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "b"]:
    """One id for each row of scores, drawn from their softmax.

    Args:
        scores: ``(batch, vocabulary)``.
        temperature: Divides the scores; 0 takes the largest one.
        top_k: Only the ``top_k`` largest scores take part, and those equal to the last of them.
        generator: Draws the ids.

    Returns:
        ``(batch,)``, int64.

    Raises:
        TypeError: Scores that are not a float tensor, a ``top_k`` that is not an integer, or a
            generator that is none.
        ValueError: Scores of another shape, a row with NaN, plus infinity or nothing above minus
            infinity, a temperature that is negative or not finite, or a ``top_k`` below 1.

    Example:
        >>> next_ids(torch.tensor([[0.0, 5.0, 1.0]]), temperature=0).tolist()
        [1]
    """
    _check_sampling(temperature, top_k, generator)
    _arguments.float_tensor("scores", scores)
    if scores.ndim != 2 or not scores.shape[1]:
        raise ValueError(f"scores must have shape (batch, vocabulary); got {tuple(scores.shape)}")
    largest = scores.amax(dim=-1, keepdim=True)
    if not largest.isfinite().all():
        got = largest[:, 0].tolist()
        raise ValueError(f"each row of scores must have a finite maximum; got {got}")
    if temperature == 0:
        return scores.argmax(dim=-1)
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    # the largest first: a score over a small temperature is infinite
    shares = ((scores.double() - largest) / float(temperature)).softmax(dim=-1)
    return torch.multinomial(shares, 1, generator=generator)[:, 0]


def generate(
    model: LanguageModel,
    ids: Int[Tensor, "b q"],
    steps: int,
    temperature: float | int = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    real: _Real = None,
) -> Iterator[Int[Tensor, "b"]]:
    """The ids that follow the prompts, one step at a time, with a cache.

    Args:
        model: A :class:`LanguageModel`.
        ids: The prompts, ``(batch, L)``.
        steps: How many ids to add.
        temperature: See :func:`next_ids`.
        top_k: See :func:`next_ids`.
        generator: Draws the ids.
        real: ``(batch, L)``, True = a token, False = padding on either side of a prompt. A batch
            with padding needs it: the model knows no padding id and takes every id for a token.

    Returns:
        An iterator over ``steps`` tensors ``(batch,)``; stop reading to stop the model.

    Raises:
        TypeError, ValueError: Arguments that do not fit, or a prompt without any token.
    """
    _arguments.instance("model", model, LanguageModel, "a LanguageModel")
    _arguments.positive(steps=steps)
    _check_sampling(temperature, top_k, generator)
    _arguments.ids("ids", ids, size=model.embed.num_embeddings)
    if real is not None:
        _check_real(real, tuple(ids.shape), ids.device)
        if not real.any(dim=1).all():
            raise ValueError("each prompt needs at least one token; got a row of padding only")
    return _steps(model, ids, steps, (temperature, top_k, generator), real)


def group_heads(layer: MultiHeadAttention, num_kv_heads: int) -> MultiHeadAttention:
    """A layer with fewer key/value heads, each the mean of those that it stands for.

    Args:
        layer: A trained layer; it is not changed.
        num_kv_heads: A divisor of the layer's own number of key/value heads.

    Returns:
        A layer of the same class, dtype and device, which can be trained.

    Raises:
        TypeError: Not a MultiHeadAttention, a RotaryAttention or a LinearBiasAttention, or a
            number that is not an integer.
        ValueError: A number that does not divide the layer's, or a projection that is more than a
            :class:`torch.nn.Linear`.

    Source:
        Ainslie et al., "GQA", 2023, section 2.1.
    """
    _validate.plain_layer("layer", layer, *_LAYERS)
    _arguments.positive(num_kv_heads=num_kv_heads)
    if layer.num_kv_heads % num_kv_heads:
        raise ValueError(
            f"num_kv_heads must divide the layer's {layer.num_kv_heads}; got {num_kv_heads}"
        )
    sizes = (layer.embed_dim, layer.num_heads, layer.kdim, layer.vdim, num_kv_heads)
    bias = layer.q_proj.bias is not None
    grouped = type(layer)(*sizes, bias=bias, dropout=layer.dropout).to(layer.q_proj.weight)
    parameters = layer.state_dict()
    for name, rows in parameters.items():
        if name.startswith(("k_proj", "v_proj")):
            heads = rows.unflatten(0, (num_kv_heads, -1, layer.embed_dim // layer.num_heads))
            parameters[name] = heads.mean(dim=1).flatten(0, 1)
    grouped.load_state_dict(parameters)
    return grouped.train(layer.training)


def _visible(queries, keys, window):
    """Which key positions ``(b, S)`` each query position ``(b, L)`` sees, ``(b, 1, L, S)``."""
    queries, keys = queries[:, None, :, None], keys[:, None, None, :]
    seen = (keys >= 0) & (keys <= queries)
    return seen if window is None else seen & (keys > queries - window)


def _block_with_cache(block, x, cache, real):
    """What the block computes, its attention with a cache."""
    attention = block.attention
    (x,) = _residual(block, block.norm1, x, lambda y: attend_with_cache(attention, y, cache, real))
    (x,) = _residual(block, block.norm2, x, block.feedforward)
    return x


def _steps(model, ids, steps, sampling, real):
    caches = model.new_caches(len(ids), ids.shape[1] + steps)
    last = torch.full_like(ids[:, 0], ids.shape[1] - 1)
    if real is not None:
        last -= real.flip(1).int().argmax(dim=1)
    for _ in range(steps):
        with torch.no_grad():  # only here: between two steps the mode is the reader's
            scores = model(ids, caches, real)
            new = next_ids(scores[torch.arange(len(ids)), last], *sampling)
        yield new
        ids, real, last = new[:, None], None, torch.zeros_like(last)


def _check_sampling(temperature, top_k, generator):
    _arguments.instance("generator", generator, torch.Generator | None, "a torch.Generator")
    if not (is_finite(temperature) and temperature >= 0):
        raise ValueError(f"temperature must be a finite number from 0 on; got {temperature!r:.60}")
    if top_k is not None:
        _arguments.positive(top_k=top_k)
