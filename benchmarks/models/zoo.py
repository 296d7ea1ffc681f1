"""Hugging Face models at small sizes with random weights, made from configurations only.

A name -> a model and its inputs.  Sizes are chosen so that a training step takes tens to hundreds
of milliseconds on two cores.  Dropout is off, so that results can be compared; caches of keys and
values are off, as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

BATCH, LENGTH, WORDS = 4, 128, 4096
WIDTH, LAYERS, HEADS = 256, 4, 4


@dataclass(frozen=True)
class Entry:
    """A model's name, how to build it, and its inputs by the argument names of its call."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]

    def made(self) -> tuple[nn.Module, dict[str, Tensor]]:
        """The model in training mode and its inputs, the same in every process."""
        torch.manual_seed(0)
        return self.build().train(), self.inputs()


def tokens(batch: int = BATCH, length: int = LENGTH) -> dict[str, Tensor]:
    """Words, and the same words as labels."""
    words = torch.randint(0, WORDS, (batch, length))
    return {"input_ids": words, "labels": words}


def masked_tokens() -> dict[str, Tensor]:
    """Words in rows of different lengths, with the attention mask."""
    made = tokens()
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1))
    mask = (torch.arange(LENGTH) < lengths).long()
    return {**made, "attention_mask": mask, "labels": made["labels"].masked_fill(mask == 0, -100)}


def pairs() -> dict[str, Tensor]:
    """Words for an encoder, and others for a decoder, each labelled with the next one."""
    words = torch.randint(0, WORDS, (BATCH, LENGTH // 2 + 1))
    shifted, labels = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    return {**tokens(), "decoder_input_ids": shifted, "labels": labels}


def images(batch: int, side: int) -> dict[str, Tensor]:
    """Square images and their classes."""
    labels = torch.randint(0, 100, (batch,))
    return {"pixel_values": torch.randn(batch, 3, side, side), "labels": labels}


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=2 * LENGTH,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=2 * LENGTH,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def _bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def _vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        image_size=96,
        patch_size=8,
        num_labels=100,
    )
    return transformers.ViTForImageClassification(config)


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=4 * WIDTH,
        num_layers=LAYERS // 2,
        num_heads=HEADS,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def _mamba() -> nn.Module:
    # Its scan is a loop over the positions, unrolled by torch.compile, so it stays short.
    config = transformers.MambaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        state_size=16,
        use_cache=False,
    )
    return transformers.MambaForCausalLM(config)


def _resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=32,
        hidden_sizes=[32, 64, 128, 256],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=100,
    )
    return transformers.ResNetForImageClassification(config)


MODELS = {
    entry.name: entry
    for entry in (
        Entry("GPT-2", _gpt2, tokens),
        Entry("Llama", _llama, tokens),
        Entry("BERT", _bert, masked_tokens),
        Entry("ViT", _vit, lambda: images(BATCH, 96)),
        Entry("T5", _t5, pairs),
        Entry("Mamba", _mamba, lambda: tokens(2, 32)),
        Entry("ResNet", _resnet, lambda: images(8, 96)),
    )
}


def made(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model in training mode and its inputs, the same in every process."""
    return MODELS[name].made()


def selected(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """Known names whose letters and digits match one of `names`, ignoring case; all for none."""

    def plain(name: str) -> str:
        return "".join(filter(str.isalnum, name.lower()))

    by_letters = {plain(name): name for name in known}
    for each in names:
        if plain(each) not in by_letters:
            raise ValueError(f"names: expected some of {', '.join(by_letters)}, got {each}")
    return [by_letters[plain(each)] for each in names] if names else list(by_letters.values())


def loss_of(model: Callable[..., Any], inputs: dict[str, Tensor]) -> Tensor:
    """The loss, from the model's own call."""
    return model(**inputs).loss


def logits_of(model: Callable[..., Any], inputs: dict[str, Tensor]) -> Tensor:
    """The scores, without the loss."""
    return model(**{key: each for key, each in inputs.items() if key != "labels"}).logits


class InFloat64(TorchFunctionMode):
    """Computes in float64 where a model asks for float32 explicitly, as norms and rotations do."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The call, with float32 replaced by float64."""
        if function is Tensor.float:
            function = Tensor.double
        given = {key: self._wide(value) for key, value in (kwargs or {}).items()}
        return function(*map(self._wide, args), **given)

    @staticmethod
    def _wide(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value
