"""The families that are known."""

from __future__ import annotations

from blockstride.models.families.bamba import Bamba
from blockstride.models.families.deepseek import DeepseekV2, DeepseekV3
from blockstride.models.families.falcon_h1 import FalconH1
from blockstride.models.families.family import Family
from blockstride.models.families.gemma import Gemma2
from blockstride.models.families.gpt_oss import GptOss
from blockstride.models.families.granite import GraniteHybrid
from blockstride.models.families.granite3 import Granite
from blockstride.models.families.jamba import Jamba
from blockstride.models.families.kimi_linear import KimiLinear
from blockstride.models.families.lfm2 import Lfm2
from blockstride.models.families.lfm2_moe import Lfm2Moe
from blockstride.models.families.llama import Llama, Mistral
from blockstride.models.families.mamba import FalconMamba, Mamba, Mamba2
from blockstride.models.families.mixtral import Mixtral
from blockstride.models.families.nemotron_h import NemotronH
from blockstride.models.families.olmo_hybrid import OlmoHybrid
from blockstride.models.families.qwen import Qwen2, Qwen2Moe, Qwen3, Qwen3Moe
from blockstride.models.families.qwen3_5 import Qwen35, Qwen35Moe
from blockstride.models.families.qwen3_next import Qwen3Next
from blockstride.models.families.recurrent_gemma import RecurrentGemma
from blockstride.models.families.zamba2 import Zamba2

FAMILIES: dict[str, type[Family]] = {
    "bamba": Bamba,
    "deepseek_v2": DeepseekV2,
    "deepseek_v3": DeepseekV3,
    "falcon_h1": FalconH1,
    "falcon_mamba": FalconMamba,
    "gemma2": Gemma2,
    "gpt_oss": GptOss,
    "granite": Granite,
    "granitemoehybrid": GraniteHybrid,
    "jamba": Jamba,
    "kimi_linear": KimiLinear,
    "lfm2": Lfm2,
    "lfm2_moe": Lfm2Moe,
    "llama": Llama,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "mistral": Mistral,
    "mixtral": Mixtral,
    "nemotron_h": NemotronH,
    "olmo_hybrid": OlmoHybrid,
    "qwen2": Qwen2,
    "qwen2_moe": Qwen2Moe,
    "qwen3": Qwen3,
    "qwen3_moe": Qwen3Moe,
    "qwen3_5_moe_text": Qwen35Moe,
    "qwen3_5_text": Qwen35,
    "qwen3_next": Qwen3Next,
    "recurrent_gemma": RecurrentGemma,
    "zamba2": Zamba2,
}
"""`model_type` of a config.json -> the family that reads it."""
