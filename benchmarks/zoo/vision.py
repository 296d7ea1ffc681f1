"""Image models of timm at small sizes with random weights: convolutions, windows, mixers.

One line per architecture: timm's name of a model, or a file of timm and a class in it if the named
model has no sizes to choose, and the settings that make it small.  The depths are cut to a layer or
two per stage; the layers themselves are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.zoo import Entry, images

from . import timm_alone

CLASSES = 100


class Scored(NamedTuple):
    """The loss and the scores, as Hugging Face's models return them."""

    loss: Tensor
    logits: Tensor


class Classifier(nn.Module):
    """A model of images, and the cross entropy of its scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Scored:
        """The loss and the scores; `pixel_values` are [batch, channels, height, width]."""
        logits = self.model(pixel_values)
        return Scored(functional.cross_entropy(logits, labels), logits)


def _timm(model: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with timm_alone.importable():
            timm = import_module("timm")
        file, _, of_class = model.partition(".")
        make = partial(timm.create_model, model)
        if of_class:
            make = getattr(import_module(f"timm.models.{file}"), of_class)
        return Classifier(make(num_classes=CLASSES, **settings))

    return build


def _image_model(name: str, model: str, side: int = 64, batch: int = 4, **settings: Any) -> Entry:
    return Entry(name, _timm(model, **settings), lambda: images(batch, side))


VISION = (
    # Convolutions, with batch norm unless the comment says otherwise.
    _image_model("ResNet-18", "resnet18", batch=8),
    _image_model("ResNet group norm", "resnet50_gn", layers=(1, 1, 1, 1)),
    _image_model("BiT", "resnetv2.ResNetV2", layers=(1, 1, 1, 1)),  # weights standardised
    _image_model("NFNet", "nf_resnet26"),  # no norm, scaled weights
    _image_model("Res2Net", "res2net50_26w_4s", layers=(1, 1, 1, 1)),
    _image_model("RegNet", "regnety_002"),  # squeeze and excitation
    _image_model("DenseNet", "densenet121", block_config=(3, 3, 3, 3)),
    _image_model("InceptionNeXt", "inception_next_atto"),  # several depthwise shapes
    _image_model("EfficientNet", "efficientnet_b0"),
    _image_model("MobileNetV3", "mobilenetv3_small_100", batch=8),
    _image_model("GhostNet", "ghostnet_100"),
    _image_model("RepVGG", "repvgg_a0"),
    _image_model("CSPDarkNet", "cspdarknet53"),
    _image_model("DLA", "dla34"),
    _image_model("HRNet", "hrnet_w18_small"),  # several resolutions at once
    _image_model("ConvNeXt", "convnext_atto"),  # layer norm, channels last
    _image_model("ConvNeXt V2", "convnextv2_atto"),  # global response norm
    _image_model("MambaOut", "mambaout_femto"),  # gated convolutions
    _image_model("FocalNet", "focalnet.FocalNet", depths=(1, 1, 1, 1)),
    # Attention in windows, on grids and with biases by position.
    _image_model(
        "Swin",
        "swin_tiny_patch4_window7_224",
        img_size=64,
        window_size=4,
        embed_dim=48,
        depths=(2, 2, 2),
        num_heads=(2, 4, 8),
    ),
    _image_model(
        "Swin V2",
        "swinv2_tiny_window8_256",
        img_size=64,
        window_size=4,
        embed_dim=48,
        depths=(2, 2, 2),
        num_heads=(2, 4, 8),
    ),
    _image_model("MaxViT", "maxvit_rmlp_pico_rw_256", img_size=64),
    _image_model("CoAtNet", "coatnet_pico_rw_224", img_size=64),
    _image_model(
        "BEiT",
        "beit_base_patch16_224",
        img_size=64,
        patch_size=8,
        embed_dim=192,
        depth=4,
        num_heads=3,
    ),
    _image_model(
        "EVA-02", "eva02_tiny_patch14_224", side=56, img_size=56, depth=4
    ),  # rotary, SwiGLU
    _image_model("LeViT", "levit_128s", side=96, img_size=96),
    _image_model("PVT V2", "pvt_v2_b0"),
    _image_model("Twins", "twins_svt_small", depths=(2, 2, 2, 2)),
    _image_model("NesT", "nest.Nest", img_size=64, embed_dims=(48, 96, 192), depths=(1, 1, 2)),
    _image_model("Hiera", "hiera_tiny_224", img_size=(64, 64), stages=(1, 1, 2, 1)),
    # Attention over channels, between scales, with convolutions, or as lambdas.
    _image_model("XCiT", "xcit_nano_12_p8_224", img_size=64, depth=4),
    _image_model("CaiT", "cait_xxs24_224", img_size=64, depth=4, patch_size=8),
    _image_model("CrossViT", "crossvit_tiny_240", side=120, img_size=120),
    _image_model("MobileViT", "mobilevit_xxs"),
    _image_model("EdgeNeXt", "edgenext_xx_small"),
    _image_model("HaloNet", "halonet26t", side=256, batch=1),
    _image_model("LambdaNet", "lambda_resnet26t", img_size=64),
    # Neither.
    _image_model("Mixer", "mlp_mixer.MlpMixer", img_size=64, patch_size=8, num_blocks=4),
    _image_model("gMLP", "gmlp_ti16_224", side=96, img_size=96),
    _image_model("PoolFormer", "poolformer_s12"),
    _image_model("Sequencer", "sequencer2d_s", img_size=64, layers=(1, 1, 2, 1)),  # LSTM
)
