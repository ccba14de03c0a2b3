"""Chapter 10: a model that reads dates in eight languages, and the alignment that it learns.

Babel writes the dates, from the locale data of the Unicode consortium. It is an optional extra,
``alignment``, since no other chapter needs it; only :func:`write_date` and :func:`date_pairs` do.
"""

import datetime
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attention_lib import _arguments, _validate
from attention_lib.masks import padding_mask
from attention_lib.multi_head import MultiHeadAttention

# ids of every Characters: padding, before the first character, after the last one
PAD, START, END = 0, 1, 2

# All of them write the day before the month where both are numbers, English as in Britain, unless
# the year comes first: else 04/03/2026 would have two meanings.
LANGUAGES = {
    "English": "en_GB", "German": "de", "French": "fr", "Spanish": "es",
    "Italian": "it", "Dutch": "nl", "Polish": "pl", "Russian": "ru",
}  # fmt: skip

# Four that every locale has in its own way, and six patterns: E weekday, d day, M month, y year.
_OWN = ("full", "long", "medium", "short")
FORMATS = (*_OWN, "d MMMM y", "d MMM y", "MMMM d, y", "EEE d MMM y", "d.M.y", "y-MM-dd")

# The fields of a format, with the letter that is theirs here: c is a weekday and L a month that
# stand alone, G is an era such as AD, which some locales write.
_FIELDS = {"E": "E", "c": "E", "d": "d", "M": "M", "L": "M", "y": "y", "G": " "}

# A century, so that a year of two digits has one meaning.
_FIRST, _DAYS = datetime.date(1950, 1, 1), 36_525


class DatePair(NamedTuple):
    """A date as it is written, and what is to be read from it.

    ``text``, the written date; ``fields``, as long as ``text``: each character of ``text`` belongs
    to the weekday ``E``, the day ``d``, the month ``M``, the year ``y``, or to none of them, a
    space; ``iso``, the same date as ``2026-03-04``; ``language``, a key of ``LANGUAGES``;
    ``format``, one of ``FORMATS``.
    """

    text: str
    fields: str
    iso: str
    language: str
    format: str


def write_date(date: datetime.date, format: str, locale: str) -> tuple[str, str]:
    """The date as people write it, and the field that each character belongs to.

    Args:
        date: Any date.
        format: ``"full"``, ``"long"``, ``"medium"`` or ``"short"``, the locale's own ways, or a
            pattern of CLDR such as ``"d MMMM y"``.
        locale: Babel's name of the locale, such as ``"de"``.

    Returns:
        The text, and as many letters, ``E`` weekday, ``d`` day, ``M`` month, ``y`` year, a space
        for what stands between them.

    Raises:
        ImportError: Babel is not installed.
        TypeError: Not a date, or a format or locale that is not a text.
        ValueError: A locale or a format that Babel does not know, or a field that is no part of a
            date such as an hour.

    Example:
        >>> text, fields = write_date(datetime.date(2026, 3, 4), "full", "de")
        >>> print(text, fields, sep="\\n")
        Mittwoch, 4. März 2026
        EEEEEEEE  d  MMMM yyyy
    """
    core, dates = _babel()
    _arguments.instance("date", date, datetime.date, "a datetime.date")
    _arguments.instance("format", format, str, "a text")
    _arguments.instance("locale", locale, str, "a text")
    try:
        locale = core.Locale.parse(locale)
    except core.UnknownLocaleError as error:
        raise ValueError(f"locale must be known to Babel; got {locale!r}") from error
    own = format in _OWN
    pattern = dates.get_date_format(format, locale) if own else dates.parse_pattern(format)
    written = dates.DateTimeFormat(date, locale)
    # a piece is text that is copied, or the letter of a field and how often it is repeated
    pieces = dates.tokenize_pattern(pattern.pattern)
    if not {piece[0] for kind, piece in pieces if kind == "field"} <= set(_FIELDS):
        raise ValueError(
            f"format must have no other fields than {', '.join(_FIELDS)}; got {format!r}"
        )
    texts = [written[piece[0] * piece[1]] if kind == "field" else piece for kind, piece in pieces]
    letters = [_FIELDS[piece[0]] if kind == "field" else " " for kind, piece in pieces]
    fields = [letter * len(text) for letter, text in zip(letters, texts, strict=True)]
    return "".join(texts), "".join(fields)


def date_pairs(
    train: int = 22_000, test: int = 1_000, seed: int = 0
) -> tuple[list[DatePair], list[DatePair]]:
    """Dates of 1950 to 2049 in random languages and formats, for training and for testing.

    The split is by date: no day of the test occurs in training, in any language or format.

    Args:
        train: Number of training pairs; a day may come several times.
        test: Number of test pairs, each another day.
        seed: Seed of a generator of their own.

    Returns:
        The training pairs and the test pairs.

    Raises:
        ImportError: Babel is not installed.
        TypeError: A number that is not an integer.
        ValueError: A negative number, or a test that leaves no day for training.

    Example:
        >>> train, test = date_pairs(3, 1)
        >>> train[2].text, train[2].iso
        ('25 sie 2026', '2026-08-25')
    """
    _arguments.counts(train=train, test=test, seed=seed)
    if test >= _DAYS:
        raise ValueError(f"test must be at most {_DAYS - 1} days; got {test}")
    rng = np.random.default_rng(seed)
    days = rng.permutation(_DAYS)
    chosen = rng.choice(days[test:], train), days[:test]
    return tuple([_draw_pair(int(day), rng) for day in part] for part in chosen)


class Characters:
    """The ids of the characters of some texts; 0, 1 and 2 are padding, start and end.

    Args:
        texts: All characters that occur in them get an id.

    Raises:
        TypeError: A single text in place of a list, or something that is not text.

    Example:
        >>> letters = Characters(["mai", "maj"])
        >>> letters.encode(["ja", "mai"])
        tensor([[5, 3, 0],
                [6, 3, 4]])
        >>> letters.decode(letters.encode(["ja", "mai"]))
        ['ja', 'mai']
    """

    def __init__(self, texts: Iterable[str]):
        self.known = sorted(set("".join(_arguments.texts("texts", texts))))
        self._ids = {character: i for i, character in enumerate(self.known, start=3)}

    def __len__(self) -> int:
        """The number of ids, the three special ones included."""
        return 3 + len(self.known)

    def encode(self, texts: Sequence[str], end: bool = False) -> Int[Tensor, "batch position"]:
        """The ids of the texts, ``(batch, longest)``, with padding behind the shorter ones.

        Args:
            texts: At least one text.
            end: Put the end behind each text.

        Raises:
            TypeError: A single text in place of a list, or an end that is not True or False.
            ValueError: No text, or a character without an id.
        """
        texts = _arguments.texts("texts", texts, nonempty=True)
        _arguments.flags(end=end)
        if unknown := sorted(set("".join(texts)) - set(self.known)):
            raise ValueError(
                f"every character must be one of the {len(self.known)} known ones; got {unknown}"
            )
        rows = [[self._ids[c] for c in text] + [END] * end for text in texts]
        longest = max(map(len, rows))
        padded = [row + [PAD] * (longest - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.int64)  # also where every text is empty

    def decode(self, ids: Int[Tensor, "batch position"]) -> list[str]:
        """The texts of the ids, each up to its end; padding and start are left out.

        Raises:
            TypeError, ValueError: Ids that are not integers, of another shape, or out of range.
        """
        _arguments.ids("ids", ids, size=len(self))
        rows = [row[: row.index(END)] if END in row else row for row in ids.tolist()]
        return ["".join(self.known[i - 3] for i in row if i > END) for row in rows]


class Transducer(nn.Module):
    """A recurrent encoder and decoder with one cross-attention, from characters to characters.

    The encoder reads the source in both directions. The decoder reads what was written so far;
    its states ask, the encoder's states are keys and values. The decoder starts from zeros, so
    that the source reaches the output through the attention alone.

    Args:
        source_size: Number of ids of the source.
        target_size: Number of ids of the target.
        embed_dim: Width of everything; even, each direction of the encoder takes half of it.

    Attributes:
        attention: A :class:`~attention_lib.multi_head.MultiHeadAttention` with one head.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A size below 1, or an odd ``embed_dim``.

    Source:
        Bahdanau, Cho and Bengio, "Neural machine translation by jointly learning to align and
        translate", 2015; attention after the decoder's step: Luong, Pham and Manning, 2015.
    """

    def __init__(self, source_size: int, target_size: int, embed_dim: int = 96):
        super().__init__()
        _validate.layer_sizes(
            embed_dim=embed_dim, num_heads=1, source_size=source_size, target_size=target_size
        )
        if embed_dim % 2:
            raise ValueError(f"embed_dim must be even, half for each direction; got {embed_dim}")
        embed_dim = int(embed_dim)  # the recurrent layers take no int64
        half = embed_dim // 2
        self.source_embedding = nn.Embedding(source_size, embed_dim)
        self.encoder = nn.GRU(embed_dim, half, batch_first=True, bidirectional=True)
        self.target_embedding = nn.Embedding(target_size, embed_dim)
        self.decoder = nn.GRU(embed_dim, embed_dim, batch_first=True)
        self.attention = MultiHeadAttention(embed_dim, num_heads=1)
        self.output = nn.Linear(2 * embed_dim, target_size)

    def encode(self, source: Int[Tensor, "b s"]) -> Float[Tensor, "b s embed_dim"]:
        """The encoder's states; those of the padding are 0, and no other state depends on it.

        Args:
            source: Ids with padding behind them, ``(batch, S)``.

        Raises:
            TypeError, ValueError: As for ``forward``.
        """
        _arguments.ids("source", source, size=self.source_embedding.num_embeddings)
        real = source != PAD
        if not real[:, :1].all() or (real[:, 1:] & ~real[:, :-1]).any():
            raise ValueError(
                "each source needs at least one character, and padding stands behind them all; "
                f"got padding first or inside in rows {_bad_rows(real)}"
            )
        # packed, or the backward direction would start in the padding
        packed = pack_padded_sequence(
            self.source_embedding(source), real.sum(dim=1).cpu(), True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.encoder(packed)[0], True, total_length=len(real[0]))
        return states

    def forward(
        self, source: Int[Tensor, "b s"], inputs: Int[Tensor, "b t"], return_weights: bool = False
    ) -> (
        Float[Tensor, "b t target_size"]
        | tuple[Float[Tensor, "b t target_size"], Float[Tensor, "b t s"]]
    ):
        """Scores of what comes after each of the inputs.

        Args:
            source: Ids with padding behind them, ``(batch, S)``.
            inputs: What was written so far, ``(batch, T)``: in training the target shifted right,
                see :func:`shift_right`. The scores at a position depend on no later input.
            return_weights: Return the weights as well; nothing else changes.

        Returns:
            Scores ``(batch, T, target_size)``; with ``return_weights`` a pair: the scores and the
            weights of the one head, ``(batch, T, S)``, 0 on padding.

        Raises:
            TypeError: Ids that are not int64.
            ValueError: Ids out of range, another shape, an empty batch, two batch sizes, padding
                before a character, or a source of nothing but padding.
        """
        _arguments.flags(return_weights=return_weights)
        memory = self.encode(source)
        _arguments.ids("inputs", inputs, size=self.target_embedding.num_embeddings)
        if len(inputs) != len(source):
            raise ValueError(
                "source and inputs must have the same batch size; "
                f"got {len(source)} and {len(inputs)}"
            )
        states, _ = self.decoder(self.target_embedding(inputs))
        mask = padding_mask(source, pad_id=PAD)
        found, weights = self.attention(states, memory, mask=mask, return_weights=True)
        scores = self.output(torch.cat([states, found], dim=-1))
        return (scores, weights[:, 0]) if return_weights else scores


def shift_right(target: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """The decoder's inputs in training: the start, then the target without its last id.

    Args:
        target: Ids ``(batch, T)``.

    Returns:
        Ids ``(batch, T)``: at each position what stands before it in the target.

    Raises:
        TypeError: Ids that are not int64.
        ValueError: Another shape, or no id.

    Example:
        >>> shift_right(torch.tensor([[5, 6, 7]])).tolist()
        [[1, 5, 6]]
    """
    _arguments.ids("target", target)
    start = torch.full_like(target[:, :1], START)
    return torch.cat([start, target[:, :-1]], dim=1)


@torch.no_grad()
def greedy_decode(
    model: Transducer, source: Int[Tensor, "b s"], max_length: int
) -> Int[Tensor, "b t"]:
    """The ids that the model writes when it always takes the one with the highest score.

    Each step runs the decoder on all that was written so far.

    Args:
        model: A :class:`Transducer`.
        source: Ids with padding behind them, ``(batch, S)``.
        max_length: The largest number of ids to write, the end included.

    Returns:
        Ids ``(batch, T)`` with T at most ``max_length``, and padding behind each end.

    Raises:
        TypeError: Not a :class:`Transducer`, or a ``max_length`` that is not an integer.
        ValueError: ``max_length`` below 1, or a source that the model refuses.
    """
    _arguments.instance("model", model, Transducer, "a Transducer")
    _arguments.ids("source", source)
    _arguments.positive(max_length=max_length)
    written = torch.full_like(source[:, :1], START)
    ended = torch.zeros_like(written, dtype=torch.bool)
    for _ in range(max_length):
        best = model(source, written)[:, -1:].argmax(dim=-1)
        best = best.masked_fill(ended, PAD)
        written, ended = torch.cat([written, best], dim=1), ended | (best == END)
        if ended.all():
            break
    return written[:, 1:]


def weight_on_field(
    weights: Float[Tensor, "b t s"], fields: Sequence[str], letter: str
) -> Float[Tensor, "b t"]:
    """How much weight each written character puts on the characters of one field.

    Args:
        weights: ``(batch, T, S)``.
        fields: The fields of each source, see :class:`DatePair`; at most S letters each.
        letter: The field: ``"E"``, ``"d"``, ``"M"`` or ``"y"``.

    Returns:
        ``(batch, T)``: sums of weights, between 0 and 1.

    Raises:
        TypeError: Weights that are not a float tensor, fields that are not texts.
        ValueError: Another shape, another number of fields than samples, fields longer than S, or
            a field of another name.

    Example:
        >>> weight_on_field(torch.tensor([[[0.5, 0.25, 0.25]]]), ["dM"], "M")
        tensor([[0.2500]])
    """
    _arguments.float_tensor("weights", weights)
    fields = _arguments.texts("fields", fields)
    if weights.ndim != 3 or letter not in tuple("EdMy"):
        raise ValueError(
            "weights must have shape (batch, T, S), and letter be E, d, M or y; "
            f"got {tuple(weights.shape)} and {letter!r}"
        )
    batch, _, length = weights.shape
    longest = max(map(len, fields), default=0)
    if len(fields) != batch or longest > length:
        raise ValueError(
            f"fields must be {batch} texts of at most {length} letters; "
            f"got {len(fields)} of up to {longest}"
        )
    belongs = [[c == letter for c in row.ljust(length)] for row in fields]
    return (weights @ torch.tensor(belongs).to(weights).view(batch, length, 1)).squeeze(-1)


def _babel():
    try:
        from babel import core, dates
    except ImportError as error:
        raise ImportError(
            "the dates of chapter 10 are written by Babel, which is not installed. "
            'Install it with: pip install "babel>=2.16"'
        ) from error
    return core, dates


def _draw_pair(day, rng):
    date = _FIRST + datetime.timedelta(day)
    language, format = str(rng.choice(list(LANGUAGES))), str(rng.choice(FORMATS))
    text, fields = write_date(date, format, LANGUAGES[language])
    return DatePair(text, fields, date.isoformat(), language, format)


def _bad_rows(real):
    inside = (real[:, 1:] & ~real[:, :-1]).any(dim=1)
    return (inside | ~real[:, 0]).nonzero().flatten().tolist()
