"""The library that the chapters of the course build.

Names are imported on first use, so that the NumPy chapters start without loading torch.
"""

from importlib import import_module

_HOME = {
    "softmax": "lookup",
    "hard_lookup": "lookup",
    "nearest_lookup": "lookup",
    "soft_lookup": "lookup",
    "attention_weights": "single_head",
    "scaled_dot_product_attention": "single_head",
    "SingleHeadAttention": "single_head",
    "numpy_attention": "single_head",
    "score_statistics": "scaling",
    "softmax_jacobian": "scaling",
    "split_heads": "multi_head",
    "merge_heads": "multi_head",
    "MultiHeadAttention": "multi_head",
    "PerHeadAttention": "multi_head",
    "numpy_multi_head_attention": "multi_head",
    "from_torch": "parity",
    "to_torch": "parity",
    "check_gradients": "parity",
    "causal_mask": "masks",
    "padding_mask": "masks",
    "window_mask": "masks",
    "block_diagonal_mask": "masks",
    "segment_mask": "masks",
    "combine_masks": "masks",
    "to_additive": "masks",
    "from_additive": "masks",
    "to_torch_attn_mask": "masks",
    "from_torch_attn_mask": "masks",
    "to_key_padding_mask": "masks",
    "from_key_padding_mask": "masks",
    "to_ones_and_zeros": "masks",
    "from_ones_and_zeros": "masks",
    "TransformerBlock": "block",
    "CrossAttentionBlock": "block",
    "sinusoidal_positional_encoding": "block",
    "rotary": "block",
    "linear_bias_slopes": "block",
    "RotaryAttention": "block",
    "LinearBiasAttention": "block",
    "RecallTask": "retrieval",
    "RetrievalModel": "retrieval",
    "RepeatTask": "retrieval",
    "InductionModel": "retrieval",
    "after_earlier_copies": "retrieval",
    "weight_on": "retrieval",
    "library_sentences": "classifier",
    "opinions": "classifier",
    "Vocabulary": "classifier",
    "AttentionClassifier": "classifier",
    "with_changed_weights": "classifier",
    "uniform_weights": "classifier",
    "shuffled_weights": "classifier",
    "write_date": "alignment",
    "date_pairs": "alignment",
    "weight_on_field": "alignment",
    "Characters": "alignment",
    "Transducer": "alignment",
    "shift_right": "alignment",
    "greedy_decode": "alignment",
    "patchify": "vision",
    "unpatchify": "vision",
    "replace_patches": "vision",
    "PatchClassifier": "vision",
    "rollout": "vision",
    "measure": "timing",
    "compare": "timing",
    "roofline": "timing",
    "attention_flops": "timing",
    "attention_bytes": "timing",
    "bytes_moved": "timing",
    "page_faults": "timing",
    "online_softmax": "tiling",
    "tiled_attention": "tiling",
    "flash_attention": "tiling",
    "KeyValueCache": "decoding",
    "RollingCache": "decoding",
    "cache_bytes": "decoding",
    "attend_with_cache": "decoding",
    "LanguageModel": "decoding",
    "next_ids": "decoding",
    "generate": "decoding",
    "group_heads": "decoding",
    "HeadParallelAttention": "devices",
    "ring_attention": "devices",
    "zigzag_positions": "devices",
    "count_communication": "devices",
    "run_ranks": "devices",
    "RankError": "devices",
}

__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted(set(globals()) | set(__all__))
