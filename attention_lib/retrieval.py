"""Chapter 8: attention that learns to look up, in a table of pairs and in a text.

The first half is the hash table of chapter 1, learned. The second half is a text that serves as a
table: what came after this token when it stood here before?
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_lib import _arguments
from attention_lib.block import RotaryAttention
from attention_lib.multi_head import MultiHeadAttention

_Generator = torch.Generator | None


class Tables(NamedTuple):
    """A batch of tables, each with a query and its right answer; all int64.

    ``keys`` ``(batch, slots)``, no key twice in one table; ``values`` ``(batch, slots)``, one for
    each key; ``query`` ``(batch,)``, one of the keys of each table; ``answer`` ``(batch,)``, the
    value of that key.
    """

    keys: Tensor
    values: Tensor
    query: Tensor
    answer: Tensor


class RecallTask:
    """Random tables of pairs, to be looked up in as in a ``dict``.

    Args:
        num_keys: Number of different keys.
        num_values: Number of different values.

    Raises:
        TypeError: A number that is not an integer.
        ValueError: A number below 1.
    """

    def __init__(self, num_keys: int = 64, num_values: int = 32):
        _arguments.positive(num_keys=num_keys, num_values=num_values)
        self.num_keys, self.num_values = num_keys, num_values

    def draw(self, batch: int, slots: int, generator: _Generator = None) -> Tables:
        """New tables, with the pairs in any order.

        Args:
            batch: Number of tables.
            slots: Pairs in a table, at most ``num_keys``.
            generator: The source of the random numbers, PyTorch's own by default.

        Returns:
            Keys, values, query and answer; see :class:`Tables`.

        Raises:
            TypeError: A size that is not an integer, or a generator that is none.
            ValueError: A size below 1, or more slots than keys.

        Example:
            >>> table = RecallTask().draw(3, slots=5)
            >>> table.keys.shape, table.query.shape
            (torch.Size([3, 5]), torch.Size([3]))
        """
        _arguments.positive(batch=batch, slots=slots)
        _arguments.instance("generator", generator, _Generator, "a torch.Generator")
        if slots > self.num_keys:
            raise ValueError(
                "a table holds each key at most once, so slots must be at most num_keys = "
                f"{self.num_keys}; got {slots}"
            )
        keys = _shuffled(batch, self.num_keys, generator)[:, :slots]
        values = torch.randint(self.num_values, (batch, slots), generator=generator)
        right = torch.randint(slots, (batch, 1), generator=generator)
        return Tables(keys, values, *(x.gather(1, right)[:, 0] for x in (keys, values)))


class RetrievalModel(nn.Module):
    """One attention head that answers from a table; what it does can be read from its weights.

    A slot is the sum of two vectors, one for its key and one for its value; the query is the
    vector of a key. The head attends from the query to the slots, and a linear map turns its
    output into one number for each value. Nothing has a bias, so a score and a logit are sums of
    a part from the key in a slot and a part from the value in it: the four methods return them.

    Args:
        num_keys: Number of different keys.
        num_values: Number of different values.
        embed_dim: Width of the vectors and of the head.

    Attributes:
        key_embedding, value_embedding: :class:`torch.nn.Embedding`.
        attention: :class:`~attention_lib.multi_head.MultiHeadAttention` with one head.
        unembedding: The last :class:`torch.nn.Linear` map.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A size below 1.
    """

    def __init__(self, num_keys: int, num_values: int, embed_dim: int):
        super().__init__()
        _arguments.positive(num_keys=num_keys, num_values=num_values, embed_dim=embed_dim)
        self.key_embedding = nn.Embedding(num_keys, embed_dim)
        self.value_embedding = nn.Embedding(num_values, embed_dim)
        self.attention = MultiHeadAttention(embed_dim, 1, bias=False)
        self.unembedding = nn.Linear(embed_dim, num_values, bias=False)

    def forward(
        self,
        keys: Int[Tensor, "b slots"],
        values: Int[Tensor, "b slots"],
        query: Int[Tensor, "b"],
        return_weights: bool = False,
    ) -> Float[Tensor, "b num_values"] | tuple[Float[Tensor, "b num_values"], Tensor]:
        """Look the queries up, each in its own table.

        Args:
            keys: ``(batch, slots)``, int64.
            values: ``(batch, slots)``, int64.
            query: ``(batch,)``, int64: a key for each table.
            return_weights: Return the weights as well; nothing else changes.

        Returns:
            A logit for each value, ``(batch, num_values)``. With ``return_weights`` a pair: the
            logits and the weights of the slots, ``(batch, slots)``.

        Raises:
            TypeError: Not int64 tensors.
            ValueError: Shapes that do not fit, an empty batch, or a number that is no key or no
                value.
        """
        _arguments.ids("keys", keys, ("batch", "slots"), self.key_embedding.num_embeddings)
        _arguments.ids("values", values, ("batch", "slots"), self.value_embedding.num_embeddings)
        _arguments.ids("query", query, ("batch",), self.key_embedding.num_embeddings)
        _arguments.flags(return_weights=return_weights)
        if keys.shape != values.shape or len(keys) != len(query):
            raise ValueError(
                "each table needs a value for each key, and one query; got keys "
                f"{tuple(keys.shape)}, values {tuple(values.shape)}, query {tuple(query.shape)}"
            )
        slots = self.key_embedding(keys) + self.value_embedding(values)
        asked = self.key_embedding(query)[:, None]  # (batch, 1, embed_dim)
        output, weights = self.attention(asked, slots, return_weights=True)
        logits = self.unembedding(output[:, 0])
        return (logits, weights[:, 0, 0]) if return_weights else logits

    def scores_of_keys(self) -> Float[Tensor, "query slot"]:
        """What the key in a slot adds to its score, ``(num_keys, num_keys)``; a row is a query."""
        return self._scores(self.key_embedding)

    def scores_of_values(self) -> Float[Tensor, "query slot"]:
        """What the value in a slot adds to its score, ``(num_keys, num_values)``."""
        return self._scores(self.value_embedding)

    def logits_of_keys(self) -> Float[Tensor, "slot answer"]:
        """The logits from the key of a slot that has weight 1, ``(num_keys, num_values)``."""
        return self._logits(self.key_embedding)

    def logits_of_values(self) -> Float[Tensor, "slot answer"]:
        """The logits from the value of a slot of weight 1, ``(num_values, num_values)``."""
        return self._logits(self.value_embedding)

    @torch.no_grad()
    def _scores(self, embedding):
        queries = self.attention.q_proj(self.key_embedding.weight)
        return queries @ self.attention.k_proj(embedding.weight).T / queries.shape[-1] ** 0.5

    @torch.no_grad()
    def _logits(self, embedding):
        values = self.attention.v_proj(embedding.weight)
        return self.unembedding(self.attention.out_proj(values))


class RepeatTask:
    """Random tokens that repeat after a random number of steps.

    Args:
        vocab_size: Number of different tokens.

    Raises:
        TypeError: A number that is not an integer.
        ValueError: A number below 1.
    """

    def __init__(self, vocab_size: int = 32):
        _arguments.positive(vocab_size=vocab_size)
        self.vocab_size = vocab_size

    def draw(
        self, batch: int, length: int, generator: _Generator = None
    ) -> Int[Tensor, "b length"]:
        """New texts. Each repeats a piece of its own, in which no token stands twice.

        Args:
            batch: Number of texts.
            length: Tokens in a text, at least 4. The piece that repeats is ``length // 4`` to
                ``length // 2`` tokens long, drawn for each text, and at least 2.
            generator: The source of the random numbers, PyTorch's own by default.

        Returns:
            ``(batch, length)``, int64.

        Raises:
            TypeError: A size that is not an integer, or a generator that is none.
            ValueError: A size that is too small, or too few tokens for the longest piece.

        Example:
            >>> text = RepeatTask(8).draw(1, 8, torch.Generator().manual_seed(3))
            >>> text.tolist()
            [[2, 4, 0, 2, 4, 0, 2, 4]]
        """
        _arguments.positive(batch=batch, length=length)
        _arguments.instance("generator", generator, _Generator, "a torch.Generator")
        if not 4 <= length < 2 * (self.vocab_size + 1):
            raise ValueError(
                "length must be at least 4, and half of it at most vocab_size = "
                f"{self.vocab_size}; got {length}"
            )
        least = max(2, length // 4)
        period = torch.randint(least, length // 2 + 1, (batch, 1), generator=generator)
        piece = _shuffled(batch, self.vocab_size, generator)
        return piece.gather(1, torch.arange(length) % period)


class InductionModel(nn.Module):
    """Layers of causal attention and nothing else, to predict the next token of a text.

    Each layer adds its output to what it reads. Queries and keys are rotated by their position
    (:class:`~attention_lib.block.RotaryAttention`). There is no feed-forward network and no norm.

    Args:
        vocab_size: Number of different tokens.
        embed_dim: Width of the vectors.
        num_heads: Heads of each layer; the width of a head must be even.
        num_layers: Number of layers.

    Attributes:
        embedding: :class:`torch.nn.Embedding`.
        layers: The attention layers.
        unembedding: The last :class:`torch.nn.Linear` map.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A size below 1, or heads that do not divide the width or are odd.

    Source:
        Olsson et al., "In-context learning and induction heads", 2022.
    """

    def __init__(self, vocab_size: int, embed_dim: int, num_heads: int, num_layers: int):
        super().__init__()
        _arguments.positive(vocab_size=vocab_size, embed_dim=embed_dim, num_layers=num_layers)
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.layers = nn.ModuleList(
            RotaryAttention(embed_dim, num_heads) for _ in range(num_layers)
        )
        self.unembedding = nn.Linear(embed_dim, vocab_size)

    def forward(
        self, tokens: Int[Tensor, "b length"], return_weights: bool = False
    ) -> (
        Float[Tensor, "b length vocab"]
        | tuple[Float[Tensor, "b length vocab"], Float[Tensor, "b layer h length length"]]
    ):
        """Predict, at each position, the token that follows.

        Args:
            tokens: ``(batch, length)``, int64.
            return_weights: Return the weights as well; nothing else changes.

        Returns:
            A logit for each token, ``(batch, length, vocab_size)``. With ``return_weights`` a
            pair: the logits and the weights ``(batch, layers, heads, length, length)``.

        Raises:
            TypeError: Not an int64 tensor.
            ValueError: Another shape, an empty batch, or a number that is no token.
        """
        _arguments.ids("tokens", tokens, ("batch", "length"), self.embedding.num_embeddings)
        _arguments.flags(return_weights=return_weights)
        x, weights = self.embedding(tokens), []
        for layer in self.layers:
            change, of_layer = layer(x, is_causal=True, return_weights=True)
            x = x + change
            weights.append(of_layer)
        logits = self.unembedding(x)
        return (logits, torch.stack(weights, dim=1)) if return_weights else logits


def after_earlier_copies(tokens: Int[Tensor, "b length"]) -> Bool[Tensor, "b q k"]:
    """Where to look for what follows: the places behind earlier copies of the query's token.

    Args:
        tokens: ``(batch, length)``, int64.

    Returns:
        Bool ``(batch, length, length)``: True at query i and key j where ``0 < j <= i`` and
        ``tokens[j - 1] == tokens[i]``. The row of a token that is new is all False.

    Raises:
        TypeError: Not an int64 tensor.
        ValueError: Another shape, or no token.

    Example:
        >>> after_earlier_copies(torch.tensor([[5, 7, 5]])).int()[0]
        tensor([[0, 0, 0],
                [0, 0, 0],
                [0, 1, 0]], dtype=torch.int32)
    """
    _arguments.ids("tokens", tokens, ("batch", "length"))
    marked = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.bool, device=tokens.device)
    marked[:, :, 1:] = tokens[:, :, None] == tokens[:, None, :-1]
    return marked.tril()


def weight_on(
    weights: Float[Tensor, "*batch h q k"], marked: Bool[Tensor, "..."]
) -> Float[Tensor, "h"]:
    """How much of its weight each head puts on the marked keys, on average.

    Queries without a marked key do not count. With nothing marked at all the result is NaN.

    Args:
        weights: ``(..., heads, q, k)``.
        marked: Bool, ``(..., q, k)`` without the axis of the heads, or what broadcasts to that.

    Returns:
        ``(heads,)``, each between 0 and 1.

    Raises:
        TypeError: Weights that are not a float tensor, or marks that are not bool.
        ValueError: Shapes that do not fit.

    Example:
        >>> weights = torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])
        >>> weight_on(weights, torch.tensor([[False, False], [True, False]]))
        tensor([0.2500])
    """
    _arguments.float_tensor("weights", weights)
    if weights.ndim < 3:
        raise ValueError(f"weights must have shape (..., h, q, k); got {tuple(weights.shape)}")
    shape = weights.shape[:-3] + weights.shape[-2:]
    _arguments.bool_tensor("marked", marked, shape, "(..., q, k)")
    marked = marked.expand(shape).unsqueeze(-3)
    dtype = torch.promote_types(weights.dtype, torch.float32)  # the sum of many rows is large
    kept = (weights * marked).sum(dim=-1)  # (..., h, q)
    asked = marked.any(dim=-1).expand_as(kept)
    kept, asked = (x.movedim(-2, 0).flatten(1).sum(dim=1, dtype=dtype) for x in (kept, asked))
    return (kept / asked).to(weights.dtype)


def _shuffled(batch, count, generator):
    """The numbers 0 to ``count - 1`` in a random order, one row for each of the batch."""
    return torch.rand(batch, count, generator=generator).argsort(dim=-1)
