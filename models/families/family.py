"""A family of models: how its config.json is read, and what its layers are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from blockstride.checks import expect
from blockstride.layouts import CacheSpec
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import Key, anything, constant, count, number, switch
from blockstride.models.modules import Branch, FeedForward, LayerWeights, Mixer


class Family(ABC):
    """A family whose caches can be planned; an instance is one file of it.

    Keys are class attributes (see `keys`), whose defaults are those of transformers.

    Attributes:
        values: The parsed config.json.
        layers: Type of a layer -> the mixers in it, each a method that makes one from `CacheTypes`.
        hidden_size: Width of the residual stream.
        num_hidden_layers: Layers.
    """

    layers: ClassVar[Mapping[str, Sequence[str]]]
    hidden_size = count(4096)
    num_hidden_layers = count(32)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    @classmethod
    def keys(cls) -> dict[str, Key[Any]]:
        """Attribute -> key, of all that this family reads."""
        found = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
        return {name: key for name, key in found.items() if isinstance(key, Key)}

    def numbers(self) -> dict[str, Any]:
        """The value of every key.

        Raises:
            ValueError: One can't be.
        """
        return {name: getattr(self, name) for name in self.keys()}

    def expect(self, condition: object, name: str, expected: object) -> None:
        """Raise `ValueError` about the key of an attribute unless `condition` holds."""
        key: Key[Any] = getattr(type(self), name)
        value = key.stated(self.values)
        got = "nothing" if value is None else repr(value)
        expect(bool(condition), key.name(self.values), expected, got)

    @abstractmethod
    def layer_types(self) -> Sequence[Any]:
        """What each layer is, in the words of `layers`; a file may have others."""

    def listed(self, name: str) -> list[Any]:
        """The list of a key that has a word for every layer.

        Raises:
            ValueError: It is no list, or of another length.
        """
        types = self.as_list(name)
        fits = self.num_hidden_layers == len(types)
        self.expect(fits, "num_hidden_layers", f"{len(types)}, as typed")
        return types

    def as_list(self, name: str) -> list[Any]:
        """The list of a key.

        Raises:
            ValueError: It is none.
        """
        value = getattr(self, name)
        self.expect(isinstance(value, list), name, "a list with a type for every layer")
        return value

    def indexed(self, name: str, other: str) -> list[str]:
        """Attention in the layers that the list of a key names, `other` in the rest.

        Raises:
            ValueError: It is no list of layers.
        """
        indices = getattr(self, name)
        indices, layers = [] if indices is None else indices, range(self.num_hidden_layers)
        known = isinstance(indices, list) and all(i in layers for i in indices)
        self.expect(known, name, f"a list of layers from 0 to {len(layers) - 1}")
        return ["attention" if i in indices else other for i in layers]

    def kinds(self) -> list[Sequence[str]]:
        """The kinds of mixers in each layer.

        Raises:
            ValueError: A layer of a type that the family doesn't have.
        """
        words = self.layer_types()
        for layer, word in enumerate(words):
            known = isinstance(word, str) and word in self.layers
            expect(known, f"type of layer {layer}", f"one of {', '.join(self.layers)}", repr(word))
        return [self.layers[word] for word in words]

    def mixers(self, types: CacheTypes) -> list[dict[str, Mixer]]:
        """The mixers of each layer by their kind, without weights.

        Raises:
            ValueError: A key that can't be, or that contradicts another.
        """
        return [{kind: getattr(self, kind)(types) for kind in kinds} for kinds in self.kinds()]

    def cache_specs(self, types: CacheTypes) -> dict[str, CacheSpec]:
        """What each layer caches, on all ranks together; see `families.cache_specs`."""
        return {name: mixer.cache_spec() for name, mixer in named(self.mixers(types)).items()}


def named(mixers: Sequence[Mapping[str, Mixer]]) -> dict[str, Mixer]:
    """The mixers of all layers, by the names that pools know them by."""
    return {
        f"layers.{layer}" if len(kinds) == 1 else f"layers.{layer}.{kind}": mixer
        for layer, kinds in enumerate(mixers)
        for kind, mixer in kinds.items()
    }


class ModelFamily(Family):
    """A family whose models run, as a `HybridModel`: a layer is a list of branches.

    Attributes:
        vocab_size: Rows of the embedding.
        intermediate_size: Inner width of an MLP or of one expert.
        max_position_embeddings: Longest sequence the model was made for.
        rms_norm_eps: Added to the mean square in every norm.
        tie_word_embeddings: Whether the head is the embedding, where a file has no head.
        hidden_act: Activation of the feed-forward part,
        activations: of which these exist.
        keeps_embeddings: Whether layers look back at embeddings.
        embedding_multiplier: Of embeddings.
        residual_multiplier: Of what a layer adds to the residual stream.
        logits_scaling: Divides logits,
        logits_multiplier: and this multiplies them; a family has either.
        logits_soft_cap: Logits are kept below it by a hyperbolic tangent; None for no such bound.
        norm_offset: Added to every gain of a norm, where files have them less that.
        residual_in_fp32: Whether the residual stream is float32, whatever weights are.
        prefix: What the names of all tensors but the head begin with, or several of which a file
            has one.
        modules: Kind of mixer -> what its tensors' names go on with after the layer's.
        embedding: What tensors call the embedding, or the names of which a file has one,
        input_norm: the norm before the mixers,
        feed_forward_norm: the one before the feed-forward parts,
        final_norm: and the one before the head.
    """

    vocab_size = count(32000)
    intermediate_size = count(11008)
    max_position_embeddings = count(2048)
    rms_norm_eps = number(1e-6)
    tie_word_embeddings = switch(False)
    hidden_act = anything("silu")
    activations: ClassVar[tuple[str | None, ...]] = ("silu", None)
    keeps_embeddings: ClassVar[bool] = False
    embedding_multiplier = constant(1.0)
    residual_multiplier = constant(1.0)
    logits_scaling = constant(1.0)
    logits_multiplier = constant(1.0)
    logits_soft_cap: Key[float | None] = constant(None)
    residual_in_fp32 = constant(False)
    norm_offset: ClassVar[float] = 0.0
    prefix: ClassVar[str | tuple[str, ...]] = "model."
    modules: ClassVar[Mapping[str, str]] = {
        "attention": "self_attn",
        "window": "self_attn",
        "mamba1": "mamba",
        "mamba2": "mamba",
        "delta": "linear_attn",
        "conv": "conv",
    }
    embedding: ClassVar[str | tuple[str, ...]] = "embed_tokens"
    input_norm = "input_layernorm"
    feed_forward_norm = "post_attention_layernorm"
    final_norm = "norm"

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        self.numbers()
        known = " or ".join(repr(name) for name in self.activations if name)
        self.expect(self.hidden_act in self.activations, "hidden_act", known)

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """The feed-forward parts of a layer, whose results are added up; none at all here."""
        return ()

    def branches(
        self, layer: int, mixers: Mapping[str, Mixer], weights: LayerWeights
    ) -> Sequence[Branch]:
        """What a layer does to the residual stream, one after the other.

        Here the mixers side by side, then the feed-forward parts side by side, each behind a norm;
        what a layer doesn't have is left out.

        Args:
            layer: Which one.
            mixers: Its mixers by their kind, which this loads.
            weights: The layer's tensors.

        Raises:
            ValueError: A tensor is missing, damaged or misshapen, or the ranks can't share it.
        """
        for kind, mixer in mixers.items():
            mixer.load(weights.under(self.modules[kind]))
        halves = [
            (self.input_norm, [*mixers.values()]),
            (self.feed_forward_norm, self.feed_forward(layer, weights)),
        ]
        return [self.branch(parts, weights, norm) for norm, parts in halves if parts]

    def branch(
        self,
        parts: Sequence[Mixer | FeedForward],
        weights: LayerWeights,
        norm: str | None,
        post_norm: str | None = None,
    ) -> Branch:
        """Parts side by side, between the norms that tensors call so.

        Raises:
            ValueError: The gain of a norm is missing, damaged or misshapen.
        """
        before = None if norm is None else self.gain(weights, norm)
        after = None if post_norm is None else self.gain(weights, post_norm)
        return Branch(parts, before, after)

    def gain(self, weights: LayerWeights, name: str) -> Tensor:
        """The gain of a norm over the residual stream.

        Raises:
            ValueError: It is missing, damaged or misshapen.
        """
        gain = weights.tensor(f"{name}.weight", self.hidden_size)
        return gain + self.norm_offset if self.norm_offset else gain
