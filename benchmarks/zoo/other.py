"""Transformers models for speech, image segmentation and detection, contrast, time series.

Small sizes, random weights; see `language` for the format of a line.  The loss is the model's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.zoo import HEADS, WIDTH, WORDS, Entry

from .language import LAYERS, architecture, built
from .unet import UNet, noisy_images

CLASSES = 20
# If left out, the first step sets it, and the second is compiled again.
_PROBLEM = "single_label_classification"


def _spectrogram() -> dict[str, Tensor]:
    words = torch.randint(3, WORDS, (2, 33))
    return {
        "input_features": torch.randn(2, 80, 200),
        "decoder_input_ids": words[:, :-1].contiguous(),
        "labels": words[:, 1:].contiguous(),
    }


def _sound() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 8000), "labels": torch.randint(1, 32, (2, 12))}


def _segments(side: int = 64) -> dict[str, Tensor]:
    labels = torch.randint(0, CLASSES, (2, side, side))
    return {"pixel_values": torch.randn(2, 3, side, side), "labels": labels}


def _captions() -> dict[str, Tensor]:
    words = torch.randint(3, WORDS, (4, 32))
    words[:, -1] = 2
    pixels = torch.randn(4, 3, 64, 64)
    return {"input_ids": words, "pixel_values": pixels, "attention_mask": torch.ones_like(words)}


def _series(length: int = 64) -> dict[str, Tensor]:
    return {"past_values": torch.randn(8, length, 4), "future_values": torch.randn(8, 16, 4)}


def _labelled() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.randint(0, CLASSES, (4,))}


def _bytes() -> dict[str, Tensor]:
    found = torch.randint(6, 262, (2, 128))
    return {"inputs": found, "labels": found}


_TEXT = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}
_IMAGE = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "image_size": 64,
    "patch_size": 8,
}


class _Contrastive(nn.Module):
    """A model of texts and images with a contrastive loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Any:
        """The model's results, including the loss."""
        return self.model(**inputs, return_loss=True)


def _contrastive(name: str, family: str, **settings: Any) -> Entry:
    settings |= {"text_config": _TEXT, "vision_config": _IMAGE}
    build = built(f"{family}Model", f"{family}Config", settings)
    return Entry(name, lambda: _Contrastive(build()), _captions)


OTHER = (
    Entry("UNet", UNet, noisy_images),
    architecture(
        "Whisper",
        "Whisper",
        "ForConditionalGeneration",
        _spectrogram,
        vocab_size=WORDS,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=2 * WIDTH,
        decoder_ffn_dim=2 * WIDTH,
        max_source_positions=100,
        max_target_positions=64,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    ),
    architecture(
        "wav2vec 2.0",
        "Wav2Vec2",
        "ForCTC",
        _sound,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        conv_dim=[64] * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        vocab_size=32,
        apply_spec_augment=False,
        ctc_loss_reduction="mean",
    ),
    architecture(
        "SegFormer",
        "Segformer",
        "ForSemanticSegmentation",
        _segments,
        hidden_sizes=[16, 32, 80, 128],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=64,
        num_labels=CLASSES,
    ),
    architecture(
        "Data2Vec vision",
        "Data2VecVision",
        "ForImageClassification",
        _labelled,
        problem_type=_PROBLEM,
        **_IMAGE,
        num_labels=CLASSES,
        use_relative_position_bias=True,
    ),
    architecture(
        "DINOv2",
        "Dinov2",
        "ForImageClassification",
        _labelled,
        problem_type=_PROBLEM,
        **_IMAGE,
        num_labels=CLASSES,
        use_swiglu_ffn=True,
    ),
    _contrastive("CLIP", "CLIP", projection_dim=64),
    _contrastive("SigLIP", "Siglip"),
    architecture(
        "Perceiver",
        "Perceiver",
        "ForMaskedLM",
        _bytes,
        d_model=WIDTH,
        d_latents=WIDTH,
        num_latents=32,
        num_blocks=1,
        num_self_attends_per_block=LAYERS,
        num_self_attention_heads=HEADS,
        num_cross_attention_heads=HEADS,
        max_position_embeddings=128,
        qk_channels=WIDTH,
        v_channels=WIDTH,
    ),
    architecture(
        "PatchTST",
        "PatchTST",
        "ForPrediction",
        _series,
        num_input_channels=4,
        context_length=64,
        prediction_length=16,
        patch_length=8,
        patch_stride=4,
        d_model=WIDTH,
        ffn_dim=2 * WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=LAYERS,
        loss="mse",
    ),
)
