"""What holds for models of every family; transformers' model of the same files is the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers
from torch import Tensor

from blockstride.layouts import choose_block_size, plan_pools
from blockstride.models import Engine, SamplingParams, cache_specs
from blockstride.models.batch import StepBatch
from blockstride.models.engine.recorded_steps import RecordedSteps
from tests.models.conftest import Reference
from tests.models.generations import all_logits, assert_close, generate, make_engine, tokens

VOCAB = 259
COUNT = 60
LENGTHS = (300, 1, 17, 64)
"""Tokens of the prompts that run together."""


class ComparedSteps(RecordedSteps):
    """Steps that are computed plainly too, from the same caches, wherever they are replayed."""

    def __init__(self, engine: Engine, fills_up: bool = False) -> None:
        super().__init__(engine.model, fills_up)
        self._storages = [pool.storage for pool in engine.pools]

    def forward(self, batch: StepBatch) -> Tensor:
        """The logits of a replay, if it leaves the same bits everywhere as the plain step does."""
        before, replayed = [storage.clone() for storage in self._storages], self.num_replayed
        logits = super().forward(batch)
        if self.num_replayed > replayed:
            after = [storage.clone() for storage in self._storages]
            for storage, saved in zip(self._storages, before, strict=True):
                storage.copy_(saved)
            assert torch.equal(self._model.forward(batch), logits)
            for storage, written in zip(self._storages, after, strict=True):
                assert torch.equal(storage, written)
        return logits


class FamilyLaws:
    """The laws; a family derives a class of tests from it.

    Attributes:
        family: Its name in `conftest.FAMILIES`, whose config is the first case.
        cases: What else its files may say, as changes of that config.
        is_recorded: Whether decode steps are recorded.
    """

    family: ClassVar[str]
    cases: ClassVar[list[dict[str, Any]]] = []
    is_recorded: ClassVar[bool] = True

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls, make_reference) -> Reference:
        """A small model of the family."""
        return make_reference(family=cls.family)

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls) -> list[list[int]]:
        """Several, of all kinds of lengths."""
        return [tokens(VOCAB, count, seed=count) for count in LENGTHS]

    def test_logits_are_those_of_transformers(self, make_reference, case):
        reference = make_reference(family=self.family, seed=len(str(case)), **case)
        ids = tokens(VOCAB, 70)
        assert_close(all_logits(reference.path, ids), reference.logits(ids))

    @pytest.mark.parametrize("chunk", [1, 7, 16])
    def test_logits_do_not_depend_on_how_a_prompt_is_cut(self, reference, chunk):
        ids = tokens(VOCAB, 70)
        assert_close(all_logits(reference.path, ids, prefill_chunk=chunk), reference.logits(ids))

    @pytest.mark.parametrize(("layout", "policy"), [("BHLNC", "unified"), ("LBNHC", "split")])
    def test_layouts_policies_and_batches_give_the_same_tokens(
        self, reference, prompts, layout, policy
    ):
        # few blocks, so that requests take over blocks that others left poisoned
        got, engine = generate(
            reference.path,
            prompts,
            COUNT,
            layout=layout,
            policy=policy,
            conv_order="SD" if policy == "split" else "DS",
            prefill_chunk=50,
            max_num_seqs=3,
            poison=True,
            num_blocks=few_blocks(reference.path, policy),
        )
        for prompt, answer in zip(prompts, got, strict=True):
            assert reference.follows(prompt, answer)
        assert engine.scheduler.num_preemptions == 0

    def test_requests_that_are_preempted_give_the_same_tokens(self, reference, prompts):
        engine = make_engine(reference.path, prefill_chunk=50, poison=True)
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        requests = [engine.add_request(prompt, params) for prompt in prompts]
        for step in range(1000):
            if step in (2, 9, 15):
                # in its prompt, and in its answer
                engine.scheduler.preempt(engine.scheduler.running[step % 2])
            engine.step()
            if not engine.has_work:
                break
        assert engine.scheduler.num_preemptions == 3
        for prompt, request in zip(prompts, requests, strict=True):
            assert len(request.output_ids) == 20
            assert reference.follows(prompt, request.output_ids)

    def test_replayed_steps_give_the_bits_of_plain_ones(self, reference, prompts):
        sizes = {"prefill_chunk": 50, "max_num_seqs": 4, "cache_bytes": 4 << 20}
        engine = make_engine(reference.path, **sizes, poison=True)
        engine.steps = compared = ComparedSteps(engine)
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        requests = [engine.add_request(prompt, params) for prompt in prompts]
        for step in range(1000):
            if step == 24:
                engine.scheduler.preempt(engine.scheduler.running[0])
            if step == 28:
                engine.abort(engine.scheduler.running[-1])
            engine.step()
            if not engine.has_work:
                break
        engine.blocks.check()
        assert (compared.num_replayed > 10) == self.is_recorded
        answers = [request.output_ids for request in requests]
        assert sum(len(answer) == 40 for answer in answers) == len(prompts) - 1
        for prompt, answer in zip(prompts, answers, strict=True):
            assert not answer or reference.follows(prompt, answer)

    def test_planning_shows_what_the_engine_binds(self, reference):
        _, engine = generate(reference.path, [[5]], 1)
        planned = cache_specs(reference.path, kv_cache_dtype="fp32", conv_dtype="fp32")
        assert planned == engine.model.cache_specs()


def few_blocks(path: Path, policy: str) -> list[int]:
    """Blocks of each pool for two requests with states, and for all with tokens."""
    specs = cache_specs(path)
    sizes = {"block_size": choose_block_size(specs, policy), "num_blocks": 2}
    pools = plan_pools(specs, layout="BHLNC", policy=policy, **sizes)
    names = [[placed.group.layer_names for placed in pool.groups] for pool in pools]
    return [
        60 if any(specs[of[0]].has_tokens for of in groups) else 1 + 2 * len(groups)
        for groups in names
    ]


def expect_a_model_of(file: dict[str, Any], folder: Path) -> None:
    """Makes a model of a config.json as it was published, and compares its logits."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[file["model_type"]].from_dict(file)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    # as it was published, not as it was saved
    (folder / "config.json").write_text(json.dumps(file))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokens(VOCAB, 40)
    assert_close(all_logits(folder, ids), Reference(folder, model).logits(ids))
