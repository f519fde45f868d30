"""Real Hugging Face checkpoints, made by transformers from a seed, and its greedy answers."""

import itertools
import logging
import warnings
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from blockstride.models.commands import compiling

with warnings.catch_warnings():
    # the library's own imports, on whatever versions of its dependencies are installed
    warnings.simplefilter("ignore")
    import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SHIPPED = Path(__file__).resolve().parents[2] / "models" / "checkpoints" / "jamba-kjv"

COMMON = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    # wide enough that logits differ clearly, so that greedy choices are no coin tosses
    "initializer_range": 0.15,
}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2}
DELTA = {
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 48}
WINDOWS = {"use_sliding_window": True, "sliding_window": 20}
# so low that they bend what they bound
BOUNDS = {
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 4.0,
}
FAMILIES = {
    "jamba": (
        "Jamba",
        {"num_experts": 4, "attn_layer_period": 4, "attn_layer_offset": 1, "mamba_d_state": 8},
    ),
    "granite": (
        "GraniteMoeHybrid",
        {
            **MAMBA2,
            "layer_types": ["mamba", "attention", "mamba", "mamba"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
            "position_embedding_type": "rope",
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "bamba": ("Bamba", {**MAMBA2, "attn_layer_indices": [1]}),
    "nemotron_h": (
        "NemotronH",
        {
            "layers_block_type": ["mamba", "moe", "attention", "mlp"],
            "head_dim": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
        },
    ),
    "zamba2": (
        "Zamba2",
        {
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "num_key_value_heads": 4,
            "mamba_d_state": 16,
            "n_mamba_heads": 8,
            "mamba_ngroups": 2,
            "adapter_rank": 8,
        },
    ),
    "recurrent_gemma": (
        "RecurrentGemma",
        {
            "block_types": ["recurrent", "recurrent", "attention"],
            "attention_window_size": 24,
            # every head has one of its own when None
            "num_key_value_heads": 1,
        },
    ),
    "falcon_h1": ("FalconH1", {**MAMBA2, "mamba_d_ssm": 96}),
    "mamba": ("Mamba", {"state_size": 8}),
    "falcon_mamba": ("FalconMamba", {"state_size": 8}),
    "mamba2": ("Mamba2", {"state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2}),
    "qwen3_5": ("Qwen3_5", {**DELTA, "head_dim": 32}),
    "qwen3_5_moe": ("Qwen3_5Moe", {**DELTA, **SHARED, "head_dim": 32}),
    "qwen3_next": ("Qwen3Next", {**DELTA, **SHARED, "head_dim": 32}),
    "olmo_hybrid": ("OlmoHybrid", {**DELTA, "pad_token_id": 0}),
    "kimi_linear": (
        "KimiLinear",
        {
            **EXPERTS,
            "num_hidden_layers": 5,
            "num_key_value_heads": 4,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "linear_num_heads": 4,
            "linear_head_dim": 12,
            "pad_token_id": 0,
        },
    ),
    "lfm2": ("Lfm2", {"full_attn_idxs": [1, 3], "block_multiple_of": 16}),
    "lfm2_moe": (
        "Lfm2Moe",
        {**EXPERTS, "layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    ),
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": 20, "head_dim": 24}),
    "mixtral": ("Mixtral", {**EXPERTS, "num_local_experts": 4}),
    "qwen2": ("Qwen2", {**WINDOWS, "max_window_layers": 2}),
    "qwen2_moe": (
        "Qwen2Moe",
        {**EXPERTS, **WINDOWS, "max_window_layers": 3, "shared_expert_intermediate_size": 40},
    ),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 24, "norm_topk_prob": True}),
    "gemma2": ("Gemma2", {**BOUNDS, "head_dim": 24, "sliding_window": 20}),
    "gpt_oss": ("GptOss", {**EXPERTS, "head_dim": 24, "sliding_window": 20, "swiglu_limit": 1.0}),
    "granite3": (
        "Granite",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
}


def byte_tokenizer() -> Tokenizer:
    """Three special tokens, then one token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {
        token: i for i, token in enumerate(itertools.chain(["<pad>", "<s>", "</s>"], alphabet))
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class Reference:
    """A checkpoint folder and transformers' model of it."""

    def __init__(self, path: Path, model: Any) -> None:
        self.path, self.model, self.config = path, model.eval(), model.config

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """Logits after every token, from one prefill."""
        # its cache can't be without attention
        return self.model(torch.tensor([ids]), use_cache=False).logits[0]

    def follows(self, ids: list[int], answer: list[int]) -> bool:
        """Whether each token of an answer to `ids` is the most likely one after all before it."""
        likely = self.logits(ids + answer[:-1])[len(ids) - 1 :].argmax(-1)
        return likely.tolist() == answer

    @torch.no_grad()
    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The `count` most likely tokens after `ids`, one by one."""
        # some keep states in their layers, and those of another text, until there is no cache
        self.logits(ids[:1])
        out = self.model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[0, len(ids) :].tolist()


def seeded(
    path: Path, seed: int = 0, shard: str = "5GB", family: str = "jamba", **config: object
) -> Reference:
    """A model made from a seed and saved."""
    torch.manual_seed(seed)
    kind, base = FAMILIES[family]
    # text models of families that see, too, have configs of their own
    of_text = getattr(transformers, f"{kind}TextConfig", None)
    described = (of_text or getattr(transformers, f"{kind}Config"))(**{**COMMON, **base, **config})
    model: Any = getattr(transformers, f"{kind}ForCausalLM")(described)
    # transformers leaves these at one or zero, which would hide one that is applied wrongly
    with torch.no_grad():
        # of buffers those that are saved
        saved, buffers = model.state_dict(), model.named_buffers()
        kept = (buffer for buffer in buffers if buffer[0] in saved)
        for name, parameter in itertools.chain(model.named_parameters(), kept):
            if "norm" in name or name.endswith(".D"):
                parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
            elif name.endswith(("linear_attn.A_log", "forget_gate.A_log")):
                # states that are still felt after dozens of tokens
                parameter.uniform_(-4.0, 0.0)
            elif name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)
            elif name.endswith("sinks"):
                parameter.uniform_(-1.0, 3.0)
    model.save_pretrained(path, max_shard_size=shard)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    return Reference(path, model)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A law that asks for a case holds for all of its family."""
    if "case" in metafunc.fixturenames and metafunc.cls is not None:
        cases = [{}, *metafunc.cls.cases]
        metafunc.parametrize("case", cases, ids=[",".join(case) or "base" for case in cases])


@pytest.fixture(autouse=True)
def shapes_are_checked(request: pytest.FixtureRequest):
    """Only where a test says so: looking at every call of a whole generation triples its time."""
    jaxtyping.config.update("jaxtyping_disable", "shapes" not in request.keywords)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def nothing_is_said_of_compiling(request, monkeypatch):
    """Tests look at what commands say, whatever of the kernels has just been changed."""
    if request.module.__name__.rpartition(".")[2] != "test_warm_command":
        monkeypatch.setattr(compiling, "begin", lambda _: None)


@pytest.fixture(autouse=True)
def level_of_logs():
    """A command that is run in this process sets it for good."""
    logger = logging.getLogger("blockstride")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(scope="session")
def make_reference(tmp_path_factory):
    """Makes a `Reference` in a folder of its own."""
    return lambda **config: seeded(tmp_path_factory.mktemp("jamba"), **config)


@pytest.fixture(scope="session")
def reference(make_reference):
    """A small Jamba with experts, GQA, and both mixers."""
    return make_reference()


@pytest.fixture(scope="session")
def shipped():
    """The trained checkpoint of this repository."""
    return Reference(SHIPPED, transformers.AutoModelForCausalLM.from_pretrained(SHIPPED))
