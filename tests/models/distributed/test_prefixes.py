"""Engines that hand over read, and compute, only what they lack of a sequence."""

from itertools import pairwise
from time import sleep

import pytest

from blockstride.transfer.connector import ConnectorSettings
from tests.models.distributed.deployments import (
    all_blocks_are_free,
    engine,
    greedy,
    kill,
    tokens_of,
    tokens_of_transformers,
    until,
)

TRUNK = "In the beginning was the word, and the word was with whoever had it. " * 2
LEASE_SECONDS = 1.0


def moved(llm):
    """Bytes and descriptors that have been moved so far, as ranks 0 count them."""
    counts = [report.transfers for report in llm.reports()]
    return sum(count.nbytes for count in counts), sum(count.descriptors for count in counts)


@pytest.mark.parametrize(
    ("prefill", "decode", "transfer"),
    [
        ({}, {"layout": "LBNHC", "block_size": 48, "policy": "unified"}, "pull"),
        ({"tp_size": 2, "block_size": 32, "conv_order": "SD"}, {"layout": "BHLNC"}, "push"),
        ({"policy": "unified", "prefill_chunk": 24}, {"tp_size": 2, "block_size": 32}, "pull"),
    ],
)
@pytest.mark.parametrize("family", ["jamba", "gemma2", "qwen3_next"])
def test_a_decode_engine_reads_only_what_it_lacks(
    deploy, make_reference, family, prefill, decode, transfer
):
    reference = make_reference(family=family)
    engines = {"prefill": engine(**prefill), "decode": engine(**decode)}
    llm = deploy(reference.path, **engines, transfer=transfer)
    prompts = ["z" * 21, TRUNK + "One.", TRUNK + "Two.", TRUNK + "Two. And three."]
    counts = [moved(llm)]
    for prompt in prompts:
        wanted = tokens_of_transformers(reference, llm, [prompt], 9)
        assert tokens_of(llm, [prompt], greedy(9)) == wanted
        counts.append(moved(llm))
    costs = [
        [after - before for before, after in zip(*pair, strict=True)] for pair in pairwise(counts)
    ]
    short, whole, *rest = costs
    assert all(many > few for many, few in zip(whole, short, strict=True))
    for cost in rest:
        # states, and the fewer than 16 tokens that nobody had asked for before
        assert all(got <= most for got, most in zip(cost, short, strict=True)), costs
    until(lambda: all_blocks_are_free(llm))


@pytest.mark.parametrize("fault", ["dies", "holds it no longer"])
@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_what_is_read_in_part_and_does_not_arrive_is_computed_beyond_what_is_here(
    deploy, reference, transfer, fault, monkeypatch
):
    settings = ConnectorSettings(push=transfer == "push", lease_seconds=LEASE_SECONDS)
    llm = deploy(reference.path, prefill=engine(), decode=engine(block_size=32), transfer=settings)
    chat = llm.tokenizer.encode(TRUNK).ids
    first = llm.engine.add_request(chat, greedy(9))
    while llm.engine.has_work:
        llm.engine.step()
    chat = [*chat, *first.output_ids, *chat[:12]]
    wanted = reference.greedy(chat, 9)
    on_held, source = llm.engine._requests.on_held, llm.engine.prefill[0]

    def fail_first(holder, request_id):
        if fault == "dies":
            kill(source)
        else:
            sleep(2 * LEASE_SECONDS)
        on_held(holder, request_id)

    monkeypatch.setattr(llm.engine._requests, "on_held", fail_first)
    second = llm.engine.add_request(chat, greedy(9))
    while llm.engine.has_work:
        llm.engine.step()
    assert second.output_ids == wanted
    report = llm.reports()[-1]
    assert report.failed_reads == 1
    # its own answer to the first, and what was before it, but for the last token
    assert report.prefixes.unread_tokens == report.prefixes.hit_tokens == len(chat) - 13
    until(lambda: all_blocks_are_free(llm))


@pytest.mark.parametrize("ranks", [(2, 1), (1, 2)])
def test_engines_of_other_ranks_load_what_one_has_written(deploy, reference, tmp_path, ranks):
    writing, reading = (
        {"tp_size": size, "file_cache": tmp_path, "host_cache_bytes": 1 << 22} for size in ranks
    )
    llm = deploy(reference.path, decode=engine(**writing, layout="LBNHC"))
    chat = llm.tokenizer.encode(TRUNK).ids
    first = llm.engine.add_request(chat, greedy(9))
    while llm.engine.has_work:
        llm.engine.step()
    llm.close()
    chat = [*chat, *first.output_ids, *chat[:12]]
    llm = deploy(reference.path, decode=engine(**reading, block_size=48, policy="unified"))
    second = llm.engine.add_request(chat, greedy(9))
    while llm.engine.has_work:
        llm.engine.step()
    assert second.output_ids == reference.greedy(chat, 9)
    (report,) = llm.reports()
    assert report.prefixes.file_tokens == report.prefixes.hit_tokens == len(chat) - 13


def test_requests_go_where_their_beginning_is_known(deploy, reference):
    llm = deploy(reference.path, prefill=[engine(), engine()], decode=[engine(), engine()])
    kinds = [TRUNK, "x" * 120]
    tokens_of(llm, kinds, greedy(3))
    prompts = [kind + end for kind in kinds[::-1] for end in ("1", "22", "333")]
    for prompt in prompts:
        wanted = tokens_of_transformers(reference, llm, [prompt], 3)
        assert tokens_of(llm, [prompt], greedy(3)) == wanted
    reports = llm.reports()
    hits = [report.prefixes.hit_tokens for report in reports[:2]]
    unread = [report.prefixes.unread_tokens for report in reports[2:]]
    # each beginning is computed once, and resumed three times, by whichever engine has it
    assert sum(hits) >= 6 * 120
    assert sum(unread) >= 6 * 120
