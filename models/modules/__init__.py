"""What hybrid models are made of: token mixers with caches, and feed-forward parts."""

from blockstride.models.modules.attention import AttentionMixer
from blockstride.models.modules.branch import Branch
from blockstride.models.modules.delta import DeltaMixer, DeltaNames
from blockstride.models.modules.experts import ExpertMLP
from blockstride.models.modules.head_norm import HeadNorm
from blockstride.models.modules.kimi_delta import KimiDeltaMixer
from blockstride.models.modules.latent import Latent
from blockstride.models.modules.latent_attention import LatentAttentionMixer
from blockstride.models.modules.mamba1 import Mamba1Mixer
from blockstride.models.modules.mamba2 import Mamba2Mixer
from blockstride.models.modules.mlp import MLP, GatedMLP
from blockstride.models.modules.module import FeedForward, Mixer
from blockstride.models.modules.planned import PlannedMixer
from blockstride.models.modules.rg_lru import RgLruMixer
from blockstride.models.modules.rotary import Rotary
from blockstride.models.modules.router import Router
from blockstride.models.modules.shared_attention import SharedAttention
from blockstride.models.modules.shared_block import BlockSizes, SharedBlock, SharedBlockLayer
from blockstride.models.modules.short_conv import ShortConvMixer
from blockstride.models.modules.weights import LayerWeights
from blockstride.models.modules.width_norm import WidthNorm

__all__ = [
    "MLP",
    "AttentionMixer",
    "BlockSizes",
    "Branch",
    "DeltaMixer",
    "DeltaNames",
    "ExpertMLP",
    "FeedForward",
    "GatedMLP",
    "HeadNorm",
    "KimiDeltaMixer",
    "Latent",
    "LatentAttentionMixer",
    "LayerWeights",
    "Mamba1Mixer",
    "Mamba2Mixer",
    "Mixer",
    "PlannedMixer",
    "RgLruMixer",
    "Rotary",
    "Router",
    "SharedAttention",
    "SharedBlock",
    "SharedBlockLayer",
    "ShortConvMixer",
    "WidthNorm",
]
