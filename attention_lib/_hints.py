"""What a message adds where wrong shapes have a meaning elsewhere."""


def about_heads(query, key):
    """A hint where only the number of heads differs."""
    if len(query) < 4 or query[:-3] != key[:-3]:
        return ""
    return (
        " Where groups of query heads share a key/value head (num_kv_heads), repeat it for each of"
        " them first: key.repeat_interleave(query_heads // key_heads, dim=-3)."
    )


def about_mask(shape, batch, matrix, heads):
    """A hint where another shape has a meaning elsewhere."""
    if shape == (batch, matrix[1]):
        return " A padding mask (batch, S) goes in as mask[:, None, None]."
    if shape == (heads, *matrix):
        return " One mask for each head, (heads, L, S), goes in as mask[None]."
    if shape == (batch * heads, *matrix):
        return (
            " nn.MultiheadAttention's (batch * heads, L, S) goes in as "
            f"mask.unflatten(0, ({batch}, {heads})), with True = may attend."
        )
    return ""


def two_alignments(length, keys):
    """Why ``is_causal`` is refused where the lengths differ, with both meanings drawn."""

    def drawing(offset):
        return "\n".join(
            "    " + " ".join("x" if k <= q + offset else "." for k in range(min(keys, 8)))
            for q in range(min(length, 8))
        )

    return (
        f"is_causal needs as many queries as keys; got L = {length}, S = {keys}. Two masks could "
        "be meant (rows are queries, x = may attend). Pass the one you mean as mask=:\n"
        f'  causal_mask(L, S, align="top_left"):\n{drawing(0)}\n'
        '  causal_mask(L, S, align="bottom_right"), for decoding:\n'
        f"{drawing(keys - length)}"
    )
