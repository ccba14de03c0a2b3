"""Chapter 9: a classifier of sentences, two tasks for it, and what it takes to test its maps."""

import ast
import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_lib import _arguments, _validate
from attention_lib.block import TransformerBlock, sinusoidal_positional_encoding
from attention_lib.masks import padding_mask
from attention_lib.multi_head import merge_heads, split_heads
from attention_lib.single_head import attention_weights

LIBRARIES = ("numpy", "torch", "matplotlib", "pandas")
POOLINGS = ("first", "mean", "max", "attention")
PAD, UNKNOWN, CLASS = 0, 1, 2
_Logits, _Vectors = Float[Tensor, "b classes"], Float[Tensor, "b position embed_dim"]
_Share, _Real = Float[Tensor, "b position"], Bool[Tensor, "b position"]
_Mask, _Change = Bool[Tensor, "..."], Callable[[Tensor, Tensor | None], Tensor]
_Weights = Float[Tensor, "b layer h position position"]
_SPECIAL = ("<pad>", "<unknown>", "<class>")
_NAMES = {"numpy", "np", "torch", "pytorch", "matplotlib", "mpl", "pyplot", "plt", "pandas", "pd"}
# a capital letter to a full stop, without the marks of code, tables and markup in between
_SENTENCE = re.compile(r"[A-Z][^.!?`>=|*\[\]{}()_\\/#]*[.!?](?=\s|$)")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


# The data


def library_sentences(count: int, libraries: Sequence[str] = LIBRARIES) -> dict[str, list[str]]:
    """Sentences of 6 to 30 words from the docstrings of installed libraries.

    The source files are read and parsed; nothing of them is executed. Files of tests are left
    out, and NumPy's distutils, which only some versions of Python get; the others are read in one
    fixed, mixed order until there are enough sentences. Words are in lower case, without
    punctuation, and names of the four libraries are removed. No sentence stands twice, and a
    sentence of two libraries is the first one's.

    Args:
        count: Sentences of each library.
        libraries: Names of installed packages.

    Returns:
        For each library its sentences, in the order in which they were read.

    Raises:
        TypeError: A count that is not an integer, or names that are not texts.
        ModuleNotFoundError: A package that is not installed.
        ValueError: A count below 1, or a package with fewer sentences.
    """
    _arguments.positive(count=count)
    taken, result = set(), {}
    for name in _arguments.texts("libraries", libraries):
        own: dict[str, None] = {}  # a set that keeps the order
        for path in _files(name):
            own |= dict.fromkeys(s for s in _sentences(path) if s not in taken)
            if len(own) >= count:
                break
        else:
            raise ValueError(f"{name} must have {count} sentences; got {len(own)}")
        result[name] = list(own)[:count]
        taken.update(own)
    return result


def _files(package):
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"the package {package} must be installed: pip install {package}")
    root = Path(spec.submodule_search_locations[0])
    every = (path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    # NumPy has distutils for some versions of Python only
    names = (name for name in every if "test" not in name and "distutils" not in name)
    # neighbours in a folder repeat each other; a file more or less does not move the others
    return [root / name for name in sorted(names, key=lambda x: sha256(x.encode()).digest())]


def _sentences(path):
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # a template, or written for another Python
        return
    for node in (node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)):
        for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
            lines = [line.strip() for line in paragraph.splitlines()]
            text = " ".join(x for x in lines if not x.startswith((">>>", "..", ":")))
            for sentence in _SENTENCE.findall(text):
                words = [w for w in re.findall("[a-z]+", sentence.lower()) if w not in _NAMES]
                if 6 <= len(words) <= 30:
                    yield " ".join(words)


GOOD = ("good", "fresh", "warm", "clean", "quiet", "friendly", "cheap", "quick")
BAD = ("bad", "stale", "cold", "dirty", "noisy", "rude", "dear", "slow")
_THINGS = ("food", "room", "bread", "soup", "waiter", "kitchen", "music", "service")
_DEGREES = ("so", "very", "really", "quite", "too", "all", "rather", "particularly")


def opinions(pairs: int, generator: torch.Generator) -> tuple[list[str], list[int]]:
    """Pairs of sentences made of the same words, one of them praise and the other a complaint.

    A sentence says two things that agree: one has a good property and the other not a bad one, or
    one has a bad property and the other not a good one. Only the place of *not* tells which. One
    to three words, drawn anew for each pair, stand before either property, and *not* takes the
    place of one of them: neither the length nor the word at a fixed place gives the answer away.

    Args:
        pairs: Number of pairs.
        generator: Draws the words, how many there are, and which property comes first.

    Returns:
        ``2 * pairs`` sentences, the two of a pair side by side, and their labels: 1 praise, 0
        complaint.

    Raises:
        TypeError: ``pairs`` is not an integer, or the generator none of PyTorch's.
        ValueError: ``pairs`` below 1.

    Example:
        >>> texts, labels = opinions(1, torch.Generator().manual_seed(3))
        >>> texts[0]
        'the bread was very friendly and the waiter was not cold'
        >>> texts[1]
        'the bread was not friendly and the waiter was very cold'
        >>> labels
        [1, 0]
    """
    _arguments.positive(pairs=pairs)
    _arguments.instance("generator", generator, torch.Generator, "a torch.Generator")

    def draw(words, count):
        return [words[i] for i in torch.randperm(len(words), generator=generator)[:count]]

    texts = []
    for _ in range(pairs):
        things, properties = draw(_THINGS, 2), [*draw(GOOD, 1), *draw(BAD, 1)]
        bad = draw((0, 1), 1)[0]  # the place of the bad property
        first, second = (draw((1, 2, 3), 1)[0] for _ in range(2))  # words before the properties
        degrees, order = draw(_DEGREES, first + second - 1), properties[:: 2 * bad - 1]
        for at in (bad * first, (1 - bad) * first):  # "not" opens a statement, first a bad one
            words = [*degrees[:at], "not", *degrees[at:]]
            parts = zip(things, (words[:first], words[first:]), order, strict=True)
            texts.append(" and ".join(f"the {x} was {' '.join(y)} {z}" for x, y, z in parts))
    return texts, [1, 0] * pairs


# The model


class Vocabulary:
    """Words to ids and back. Id 0 is padding, 1 any unknown word, 2 the class token.

    Args:
        words: The words of the ids from 3 on.

    Attributes:
        words: The words of all ids, the three special ones first.

    Raises:
        TypeError: Words that are not texts.
        ValueError: A word that stands twice, or one of the special ones.

    Example:
        >>> vocabulary = Vocabulary.of_texts(["the cat and the mat", "a mat"], size=5)
        >>> vocabulary.words
        ['<pad>', '<unknown>', '<class>', 'mat', 'the']
        >>> vocabulary.encode(["the dog", "a mat on the mat"])
        tensor([[4, 1, 0, 0, 0],
                [1, 3, 1, 4, 3]])
        >>> vocabulary.encode(["the dog"], class_token=True)
        tensor([[2, 4, 1]])
    """

    def __init__(self, words: Iterable[str]):
        self.words = [*_SPECIAL, *_arguments.texts("words", words)]
        self._ids = {word: i for i, word in enumerate(self.words)}
        if len(self._ids) < len(self.words):
            twice = Counter(self.words).most_common(1)[0][0]
            raise ValueError(f"no word may stand twice; got {twice} more than once")

    @classmethod
    def of_texts(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """The ``size - 3`` most frequent words of the texts, those of one frequency by letters.

        Raises:
            TypeError: A single text in place of a list, or a size that is not an integer.
            ValueError: A negative size.
        """
        _arguments.counts(size=size)
        counts = Counter(" ".join(_arguments.texts("texts", texts)).split())
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked[: max(0, size - len(_SPECIAL))])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, texts: Sequence[str], class_token: bool = False) -> Int[Tensor, "b position"]:
        """The ids of each text, padded behind up to the longest one.

        Args:
            texts: Words with spaces between them.
            class_token: Whether id 2 comes first in each row.

        Returns:
            ``(batch, L)``, int64.

        Raises:
            TypeError: A single text in place of a list, or a token that is not True or False.
            ValueError: No text at all.
        """
        _arguments.flags(class_token=class_token)
        texts = _arguments.texts("texts", texts, nonempty=True)
        ids = ([self._ids.get(word, UNKNOWN) for word in text.split()] for text in texts)
        rows = [torch.tensor([CLASS] * class_token + row, dtype=torch.long) for row in ids]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)

    def decode(self, ids: Int[Tensor, "position"]) -> list[str]:
        """The words of one row of ids, without the padding.

        Raises:
            TypeError, ValueError: Ids that are not integers, not one row, or none of these words.
        """
        _arguments.ids("ids", ids, ("position",), size=len(self))
        return [self.words[i] for i in ids.tolist() if i != PAD]


class AttentionClassifier(nn.Module):
    """A classifier of sentences: embedded words, blocks, one vector of all words, a linear layer.

    The vector is a weighted average of the words' outputs, and ``pooling`` says with which
    weights. ``"first"`` takes the first position alone: a class token if the vocabulary put one
    there, else the first word. ``"mean"`` weighs all words alike. ``"attention"`` scores each
    word by a learned query. ``"max"`` is no average of that kind: it takes the largest number of
    each feature, wherever it stands. Padding has no influence in any of them.

    Args:
        vocab_size: Number of ids.
        embed_dim: Width of a word.
        num_heads: Number of heads; divides ``embed_dim``.
        num_classes: Number of classes.
        num_layers: Number of blocks.
        pooling: ``"first"``, ``"mean"``, ``"max"`` or ``"attention"``.
        positions: Whether sinusoids are added; without them order is invisible.
        dropout: Probability with which a number is dropped in training.

    Attributes:
        embed: The table of the words, ``(vocab_size, embed_dim)``.
        blocks: The :class:`~attention_lib.block.TransformerBlock` layers, norm first, with a
            hidden layer of ``2 * embed_dim``.
        query: ``(1, embed_dim)``, with ``pooling="attention"`` only.
        norm, head: The norm behind the blocks and the linear layer of the pooled vector.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A size below 1, heads that do not divide, an unknown pooling, a dropout that is
            no probability.

    Source:
        Vaswani et al., 2017, section 3.4, for the factor ``sqrt(embed_dim)`` of the words: they
        start small, and would drown in the sinusoids without it. Yang et al., "Hierarchical
        attention networks for document classification", 2016, for the learned query.
    """

    def __init__(
        self,
        vocab_size: int, embed_dim: int, num_heads: int, num_classes: int, num_layers: int,
        pooling: str = "mean", positions: bool = True, dropout: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        _validate.layer_sizes(
            vocab_size=vocab_size, embed_dim=embed_dim, num_heads=num_heads,
            num_classes=num_classes, num_layers=num_layers, dropout=dropout,
        )  # fmt: skip
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}; got {pooling!r}")
        _arguments.flags(positions=positions)
        self.pooling, self.positions = pooling, positions
        self.embed = nn.Embedding(vocab_size, embed_dim)
        nn.init.normal_(self.embed.weight, std=0.1)
        sizes = embed_dim, num_heads, 2 * embed_dim, dropout
        self.blocks = nn.ModuleList(TransformerBlock(*sizes) for _ in range(num_layers))
        self.dropout, self.norm = nn.Dropout(dropout), nn.LayerNorm(embed_dim)
        if pooling == "attention":
            self.query = nn.Parameter(torch.randn(1, embed_dim))
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(
        self, ids: Int[Tensor, "b position"], return_weights: bool = False
    ) -> _Logits | tuple[_Logits, _Weights, _Share]:
        """One logit for each sentence and class.

        Args:
            ids: ``(batch, L)``, integers; 0 is padding, wherever it stands.
            return_weights: Return weights and shares as well; nothing else changes.

        Returns:
            The logits ``(batch, num_classes)``. With ``return_weights`` three tensors: the
            logits, the weights of the blocks ``(batch, num_layers, heads, L, L)`` before dropout,
            and each position's share of the pooled vector, ``(batch, L)``, rows that sum to 1
            (for ``"max"`` the part of the features whose largest number stands there).

        Raises:
            TypeError: Ids that are not integers.
            ValueError: Another shape, an empty batch, an id that is not in the vocabulary, or a
                sentence that is all padding.
        """
        _arguments.flags(return_weights=return_weights)
        x, real, weights = self.read(ids)
        pooled, share = self.pool(x, real)
        logits = self.head(self.dropout(pooled))
        return (logits, weights, share) if return_weights else logits

    def read(self, ids: Int[Tensor, "b position"]) -> tuple[_Vectors, _Real, _Weights]:
        """What the blocks make of each word, before pooling.

        Args:
            ids: As in :meth:`forward`.

        Returns:
            Three tensors, namely a vector for each position ``(batch, L, embed_dim)``, True where
            it is a word ``(batch, L)``, and the weights of the blocks.
        """
        self._check(ids)
        x = self.embed(ids) * self.embed.embedding_dim**0.5
        if self.positions:
            x = x + sinusoidal_positional_encoding(*x.shape[1:]).to(x)
        x, mask = self.dropout(x), padding_mask(ids, pad_id=PAD)
        weights = [None] * len(self.blocks)
        for i, block in enumerate(self.blocks):
            x, weights[i] = block(x, mask=mask, return_weights=True)
        return self.norm(x), mask[:, 0, 0], torch.stack(weights, dim=1)

    def pool(self, x: _Vectors, real: _Real) -> tuple[Float[Tensor, "b embed_dim"], _Share]:
        """The vector of each sentence, and each position's share of it.

        Args:
            x: ``(batch, L, embed_dim)``.
            real: True where there is a word, ``(batch, L)``; at least one in each row.

        Returns:
            ``(batch, embed_dim)``, and ``(batch, L)`` with rows that sum to 1.
        """
        if self.pooling == "max":
            largest, place = x.masked_fill(~real[..., None], -torch.inf).max(dim=1)
            return largest, nn.functional.one_hot(place, x.shape[1]).to(x.dtype).mean(dim=1)
        if self.pooling == "attention":
            share = attention_weights(self.query.expand(len(x), 1, -1), x, real[:, None])[:, 0]
        elif self.pooling == "mean":
            share = real.to(x.dtype) / real.sum(dim=1, keepdim=True)
        else:
            share = (torch.arange(x.shape[1], device=x.device) == 0).to(x.dtype).expand(len(x), -1)
        return (share[:, None] @ x)[:, 0], share

    def _check(self, ids):
        _arguments.ids("ids", ids, ("batch", "L"), self.embed.num_embeddings)
        where = " at position 0, which pooling 'first' reads" if self.pooling == "first" else ""
        if dead := (ids[:, : 1 if where else None] == PAD).all(dim=1).nonzero().tolist():
            got = f"sentence {dead[0][0]} has only padding"
            raise ValueError(f"each sentence must have a word{where}; {got}")


# What a map can be compared with


class ChangedAttention(nn.Module):
    """An attention layer whose weights are changed between the softmax and the values.

    It computes self-attention; values and output projection are those of ``attention``.

    Args:
        attention: A :class:`~attention_lib.multi_head.MultiHeadAttention` layer.
        change: Called with the weights ``(b, h, q, k)`` and the mask; returns new weights.
    """

    def __init__(self, attention: nn.Module, change: _Change):
        super().__init__()
        self.attention, self.change = attention, change
        self.embed_dim, self.num_heads = attention.embed_dim, attention.num_heads

    def forward(self, query, mask=None, is_causal=False, return_weights=False):
        """The output ``(b, q, embed_dim)``, and with ``return_weights`` the changed weights."""
        layer = self.attention
        weights = self.change(layer(query, None, None, mask, is_causal, True)[1], mask)
        value = split_heads(layer.v_proj(query), layer.num_kv_heads)
        value = value.repeat_interleave(self.num_heads // layer.num_kv_heads, dim=1)
        output = layer.out_proj(merge_heads(weights @ value))
        return (output, weights) if return_weights else output


def with_changed_weights(model: nn.Module, change: _Change) -> nn.Module:
    """A copy of the model in which every block uses changed weights.

    Args:
        model: Has ``blocks``, which have ``attention``. It stays as it is.
        change: Called with weights ``(b, h, q, k)`` and mask ``(b, 1, 1, k)``, such as
            :func:`uniform_weights`.

    Returns:
        The copy.

    Raises:
        TypeError: A model without blocks, or a change that cannot be called.
    """
    _arguments.instance("model's blocks", getattr(model, "blocks", None), nn.ModuleList, "a list")
    _arguments.function(change=change)
    model = copy.deepcopy(model)
    for block in model.blocks:
        block.attention = ChangedAttention(block.attention, change)
    return model


def uniform_weights(weights: Float[Tensor, "*batch k"], mask: _Mask) -> Float[Tensor, "*batch k"]:
    """The same weight for every key that the mask allows.

    Args:
        weights: ``(..., k)``; only its shape and dtype matter.
        mask: True = may attend; broadcasts to the weights, at least one True in each row.

    Returns:
        New weights of the same shape.

    Raises:
        TypeError: Weights that are not a float tensor, or a mask that is not bool.
        ValueError: A mask that does not broadcast.

    Example:
        >>> uniform_weights(torch.tensor([0.7, 0.3, 0.0]), torch.tensor([True, True, False]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    _arguments.float_tensor("weights", weights)
    _arguments.bool_tensor("mask", mask, weights.shape, "the shape of the weights")
    allowed = mask.expand_as(weights).to(weights.dtype)
    return allowed / allowed.sum(dim=-1, keepdim=True)


def shuffled_weights(
    weights: Float[Tensor, "*batch k"], mask: _Mask, generator: torch.Generator | None = None
) -> Float[Tensor, "*batch k"]:
    """The weights of each row dealt out anew among the keys that the mask allows.

    Args:
        weights: ``(..., k)``, 0 where the mask is False.
        mask: True = may attend; broadcasts to the weights.
        generator: Draws another order for each row.

    Returns:
        New weights of the same shape, which are the same numbers at other places.

    Raises:
        TypeError, ValueError: As :func:`uniform_weights`, and a generator that is none.
    """
    _arguments.float_tensor("weights", weights)
    _arguments.bool_tensor("mask", mask, weights.shape, "the shape of the weights")
    _arguments.instance("generator", generator, torch.Generator | None, "a torch.Generator")
    blocked = ~mask.expand_as(weights)
    noise = torch.rand(weights.shape, generator=generator).to(weights.device)
    to = noise.masked_fill(blocked, 2.0).argsort(dim=-1)  # allowed keys first, in random order
    source = blocked.byte().argsort(dim=-1, stable=True)  # allowed keys first, in their order
    return weights.scatter(-1, to, weights.gather(-1, source))
