"""A trained hybrid as a folder that `transformers.AutoModelForCausalLM.from_pretrained` loads."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
from torch import Tensor

from blockstride.transfer.atomic_file import write_atomically, write_json
from train_jamba.config import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE
from train_jamba.model import Hybrid
from train_jamba.text import byte_tokenizer

SPECIAL_IDS = {"pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
FIXED_CONFIG = {
    "architectures": ["JambaForCausalLM"],
    "model_type": "jamba",
    "dtype": "float32",
    "vocab_size": VOCAB_SIZE,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    **SPECIAL_IDS,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": "<pad>",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "clean_up_tokenization_spaces": False,
}
CHECKPOINT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
)
"""What `save_checkpoint` writes."""


def save_checkpoint(model: Hybrid, folder: Path, *, max_tokens: int) -> None:
    """Write a model the way transformers reads and writes Jamba, the weights last.

    Args:
        model: The trained model.
        folder: Made if missing; every file in it is replaced atomically.
        max_tokens: Longest sequence that engines may give it; the model itself knows no limit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = dataclasses.asdict(model.config) | {"max_position_embeddings": max_tokens}
    write_json(folder / "config.json", FIXED_CONFIG | sizes)
    write_json(folder / "generation_config.json", SPECIAL_IDS)
    write_atomically(folder / "tokenizer.json", byte_tokenizer().to_str(pretty=True).encode())
    tokenizer_config = TOKENIZER_CONFIG | {"model_max_length": max_tokens}
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    weights = {name: part.contiguous() for name, part in parts_on_disk(model)}
    content = safetensors.torch.save(weights, metadata={"format": "pt"})
    write_atomically(folder / "model.safetensors", content)


def parts_on_disk(model: Hybrid) -> Iterator[tuple[str, Tensor]]:
    """Names on disk with views of the weights: each expert apart, and its gate and up apart."""
    for name, tensor in model.state_dict().items():
        prefix, separator, projection = name.rpartition(".experts.")
        if not separator:
            yield name, tensor
            continue
        kinds = ("gate_proj", "up_proj") if projection == "gate_up_proj" else (projection,)
        for kind, part in zip(kinds, tensor.chunk(len(kinds), dim=1), strict=True):
            for expert, weight in enumerate(part):
                yield f"{prefix}.experts.{expert}.{kind}.weight", weight
