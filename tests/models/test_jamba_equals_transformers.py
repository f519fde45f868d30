"""transformers' Jamba is the oracle: the same checkpoint gives the same logits and tokens."""

import pytest

from blockstride.layouts import NAMED_LAYOUTS
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.engine.admission import Admission
from tests.models.generations import all_logits, assert_close, generate, tokens

# tokens of each of several requests
COUNT = 64
CONFIGS = [
    {},
    {"num_experts": 1},
    {
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "expert_layer_period": 1,
        "expert_layer_offset": 0,
    },
    {"num_experts_per_tok": 1, "expert_layer_period": 3, "expert_layer_offset": 2},
    {"attn_layer_period": 2, "attn_layer_offset": 0, "num_key_value_heads": 1},
    {"attn_layer_period": 3, "attn_layer_offset": 2, "num_key_value_heads": 4},
    {"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": True},
    {"mamba_d_conv": 2, "mamba_d_state": 4, "mamba_dt_rank": 3},
    {"mamba_d_conv": 5, "mamba_d_state": 16, "mamba_expand": 1},
    {"mamba_conv_bias": False, "mamba_proj_bias": True, "mamba_d_conv": 3},
    {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "mamba_dt_rank": 7},
    {"num_hidden_layers": 7, "attn_layer_period": 5, "attn_layer_offset": 3, "vocab_size": 301},
    {"num_hidden_layers": 1, "attn_layer_period": 1, "attn_layer_offset": 0, "rms_norm_eps": 1e-3},
    {"num_hidden_layers": 5, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_expand": 3},
]


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: ",".join(f"{k}={v}" for k, v in c.items())
)
def test_logits_are_those_of_transformers(make_reference, config):
    reference = make_reference(seed=len(str(config)), **config)
    ids = tokens(reference.config.vocab_size, 70)
    expected = reference.logits(ids)
    got = all_logits(reference.path, ids)
    assert_close(got, expected)


def test_logits_do_not_depend_on_how_a_prompt_is_cut(reference):
    ids = tokens(259, 70)
    expected = reference.logits(ids)
    for chunk in (1, 7, 16):
        got = all_logits(reference.path, ids, prefill_chunk=chunk)
        assert_close(got, expected)


@pytest.fixture(scope="module")
def prompts():
    return [tokens(259, n, seed=n) for n in (40, 1, 17, 64, 3, 33, 16, 25)]


@pytest.fixture(scope="module")
def answer(reference, prompts):
    """200 tokens after the first prompt."""
    return reference.greedy(prompts[0], 200)


@pytest.fixture(scope="module")
def answers(reference, prompts):
    """A few tokens after each."""
    return [reference.greedy(prompt, COUNT) for prompt in prompts]


@pytest.mark.parametrize("policy", ["split", "unified"])
@pytest.mark.parametrize("layout", [layout.order for layout in NAMED_LAYOUTS])
def test_every_layout_and_policy_gives_the_same_200_tokens(
    reference, prompts, answer, layout, policy
):
    if policy == "unified" and layout == "LHBNC":
        with pytest.raises(ValueError, match="layout"):
            generate(reference.path, prompts[:1], layout=layout, policy=policy)
        return
    got, _ = generate(reference.path, prompts[:1], layout=layout, policy=policy)
    assert got == [answer]


@pytest.mark.parametrize("chunk", [1, 7, 16, None])
def test_chunks_and_batches_of_mixed_lengths_give_the_same_tokens(
    reference, prompts, answers, chunk
):
    got, _ = generate(reference.path, prompts, COUNT, prefill_chunk=chunk, conv_order="SD")
    assert got == answers


def test_kernel_blocks_inside_inflated_blocks_give_the_same_tokens(reference, prompts, answers):
    got, engine = generate(
        reference.path, prompts, COUNT, policy="unified", block_size=32, kernel_block_size=8
    )
    assert any(group.kernel_blocks > 1 for group in engine.groups)
    assert got == answers


def test_preempted_requests_are_computed_again_to_the_same_tokens(
    reference, prompts, answers, monkeypatch
):
    # the three need 17 blocks of attention, and nobody looks ahead
    monkeypatch.setattr(Admission, "admits", lambda *_: True)
    got, engine = generate(reference.path, prompts[:3], COUNT, num_blocks=(9, 11))
    assert engine.scheduler.num_preemptions > 0
    assert got == answers[:3]


@pytest.mark.parametrize("policy", ["split", "unified"])
def test_poison_in_whatever_may_not_be_read_changes_nothing(reference, prompts, answers, policy):
    # few blocks, so that requests take over blocks that others left poisoned
    blocks = (4, 20) if policy == "split" else 16
    config = {"poison": True, "policy": policy, "num_blocks": blocks, "max_num_seqs": 3}
    got, _ = generate(reference.path, prompts, COUNT, **config)
    assert got == answers


def test_the_shipped_model_gives_the_logits_and_the_200_tokens_of_transformers(shipped):
    text = (shipped.path / "held_out_sample.txt").read_text()
    tokenizer = Checkpoint(shipped.path).tokenizer()
    assert tokenizer is not None
    ids = tokenizer.encode(text[:200]).ids
    expected = shipped.logits(ids)
    got = all_logits(shipped.path, ids)
    assert_close(got, expected)
    (output,), _ = generate(shipped.path, [ids])
    assert output == shipped.greedy(ids, 200)
