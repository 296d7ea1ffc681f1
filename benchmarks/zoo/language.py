"""Language models of transformers at small sizes with random weights.

One line per architecture: its class, its configuration's class, and the settings that make it
small.  Everything else is the configuration's own default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from torch import Tensor, nn

from benchmarks.models.zoo import (
    HEADS,
    LENGTH,
    WIDTH,
    WORDS,
    Entry,
    masked_tokens,
    pairs,
    tokens,
)

LAYERS = 2
# The names that most configurations use for the same settings.
_USUAL = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 3 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 2 * LENGTH,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_USUAL, "num_key_value_heads": HEADS // 2, "head_dim": WIDTH // HEADS}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": WIDTH}
# Encoder and decoder pairs in Bart's family.
_TWO = {
    "vocab_size": WORDS,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 3 * WIDTH,
    "decoder_ffn_dim": 3 * WIDTH,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


def without_dropout(config: Any) -> Any:
    """The configuration with every rate of dropout at 0, so that results can be compared."""
    for name, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig):
            without_dropout(value)
        elif isinstance(value, float) and ("drop" in name or name.startswith("mask_")):
            setattr(config, name, 0.0)
    return config


def built(head: str, config: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    """Builds the class `head` from a configuration."""

    def build() -> nn.Module:
        made = without_dropout(getattr(transformers, config)(**settings))
        return getattr(transformers, head)(made)

    return build


def architecture(
    name: str,
    family: str,
    head: str,
    inputs: Callable[[], dict[str, Tensor]],
    usual: dict[str, Any] | None = None,
    **settings: Any,
) -> Entry:
    """`family` is the common prefix of the names of the class and of its configuration."""
    return Entry(
        name, built(family + head, f"{family}Config", {**(usual or {}), **settings}), inputs
    )


def _other_words() -> dict[str, Tensor]:
    """Words, and others to predict: some models repeat their input from the start."""
    return {**tokens(), "labels": tokens()["labels"]}


def _causal(name: str, family: str, usual: dict[str, Any] = _USUAL, **settings: Any) -> Entry:
    return architecture(name, family, "ForCausalLM", tokens, usual, **settings)


def _masked(name: str, family: str, **settings: Any) -> Entry:
    return architecture(name, family, "ForMaskedLM", masked_tokens, _USUAL, **settings)


def _pair(name: str, family: str, usual: dict[str, Any] = _TWO, **settings: Any) -> Entry:
    return architecture(name, family, "ForConditionalGeneration", pairs, usual, **settings)


LANGUAGE = (
    # Decoders.
    _causal("GPT-NeoX", "GPTNeoX"),
    _causal("Falcon", "Falcon", multi_query=True),
    _causal("OPT", "OPT", word_embed_proj_dim=WIDTH, ffn_dim=3 * WIDTH),
    architecture("BLOOM", "Bloom", "ForCausalLM", tokens, _USUAL, n_layer=LAYERS, n_head=HEADS),
    _causal("Gemma 2", "Gemma2", _GROUPED, sliding_window=LENGTH // 4),  # capped scores
    _causal("Mistral", "Mistral", _GROUPED, sliding_window=LENGTH // 4),
    _causal("Phi", "Phi", partial_rotary_factor=0.5),
    # Mixtures of experts.
    _causal("Mixtral", "Mixtral", _GROUPED, num_local_experts=4),
    _causal(
        "Mixtral loops", "Mixtral", _GROUPED, num_local_experts=4, experts_implementation="eager"
    ),
    _causal(
        "Qwen2-MoE",
        "Qwen2Moe",
        _GROUPED,
        num_experts=4,
        shared_expert_intermediate_size=WIDTH,
        **_EXPERTS,
    ),
    _causal(
        "DeepSeek-V3",
        "DeepseekV3",
        _USUAL,
        num_key_value_heads=HEADS,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=64,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=64,
        **_EXPERTS,
    ),
    _causal(
        "GPT-OSS",
        "GptOss",
        _GROUPED,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=LENGTH // 4,
    ),
    architecture(
        "Switch Transformer",
        "SwitchTransformers",
        "ForConditionalGeneration",
        pairs,
        vocab_size=WORDS,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
        num_decoder_layers=LAYERS,
        num_heads=HEADS,
        num_experts=4,
        use_cache=False,
        decoder_start_token_id=0,
    ),
    # State spaces and other recurrences; scans that are loops are kept short.
    architecture(
        "Mamba-2",
        "Mamba2",
        "ForCausalLM",
        lambda: tokens(2, 64),
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_heads=8,
        head_dim=64,
        state_size=16,
        n_groups=2,
        chunk_size=32,
        use_cache=False,
    ),
    architecture(
        "RWKV",
        "Rwkv",
        "ForCausalLM",
        lambda: tokens(2, 32),
        vocab_size=WORDS,
        hidden_size=WIDTH,
        attention_hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        context_length=64,
        use_cache=False,
    ),
    architecture(
        "RecurrentGemma",
        "RecurrentGemma",
        "ForCausalLM",
        lambda: tokens(2, 32),
        _GROUPED,
        lru_width=WIDTH,
        num_hidden_layers=3,
        attention_window_size=16,
    ),
    architecture(
        "Bamba",
        "Bamba",
        "ForCausalLM",
        lambda: tokens(2, 64),
        _GROUPED,
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=64,
        mamba_d_state=16,
        mamba_chunk_size=32,
    ),
    architecture(
        "Qwen3-Next",
        "Qwen3Next",
        "ForCausalLM",
        lambda: tokens(2, 64),
        _GROUPED,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        num_experts=4,
        layer_types=["linear_attention", "full_attention"],
        shared_expert_intermediate_size=WIDTH,
        **_EXPERTS,
    ),
    architecture(
        "xLSTM",
        "xLSTM",
        "ForCausalLM",
        lambda: tokens(2, 64),
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_heads=HEADS,
        chunk_size=16,
        use_cache=False,
    ),
    # Encoders.
    _masked("ALBERT", "Albert", embedding_size=64),
    _masked("ELECTRA", "Electra", embedding_size=64),
    _masked(
        "DeBERTa-V2",
        "DebertaV2",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=32,
    ),
    _masked("MPNet", "MPNet"),
    _masked("ConvBERT", "ConvBert"),
    architecture("FNet", "FNet", "ForMaskedLM", tokens, _USUAL),
    _masked("ModernBERT", "ModernBert", local_attention=LENGTH // 4),
    architecture(
        "Funnel",
        "Funnel",
        "ForMaskedLM",
        _other_words,
        vocab_size=WORDS,
        block_sizes=[1, 1],
        d_model=WIDTH,
        n_head=HEADS,
        d_head=WIDTH // HEADS,
        d_inner=3 * WIDTH,
        num_decoder_layers=1,
    ),
    architecture(
        "XLNet",
        "XLNet",
        "LMHeadModel",
        _other_words,
        vocab_size=WORDS,
        d_model=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        d_inner=3 * WIDTH,
    ),
    # Attention that leaves out most pairs.
    architecture(
        "BigBird",
        "BigBird",
        "ForMaskedLM",
        tokens,
        _USUAL,
        attention_type="block_sparse",
        block_size=8,
        num_random_blocks=2,
    ),
    architecture(
        "Longformer", "Longformer", "ForMaskedLM", tokens, _USUAL, attention_window=[32] * LAYERS
    ),
    architecture(
        "LED",
        "LED",
        "ForConditionalGeneration",
        pairs,
        _TWO,
        attention_window=32,
        max_encoder_position_embeddings=2 * LENGTH,
        max_decoder_position_embeddings=2 * LENGTH,
    ),
    # Pairs of encoder and decoder.
    _pair("BART", "Bart", max_position_embeddings=2 * LENGTH),
    _pair("M2M-100", "M2M100", max_position_embeddings=2 * LENGTH),
    _pair(
        "LongT5",
        "LongT5",
        {},
        vocab_size=WORDS,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        use_cache=False,
        local_radius=15,
        encoder_attention_type="local",
        decoder_start_token_id=0,
    ),
)
