"""Engines on a Ray cluster give the tokens of one engine, whatever happens to actors and nodes."""

import contextlib
import logging
import socket
import subprocess
import sys
from importlib import import_module
from threading import Thread
from types import SimpleNamespace

import pytest

from blockstride.models import LLM
from tests.models.distributed.deployments import (
    SECONDS,
    all_blocks_are_free,
    engine,
    greedy,
    is_running,
    kill,
    tokens_of,
    tokens_of_transformers,
    until,
)

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'blockstride[ray]'")
cluster_utils = import_module("ray.cluster_utils")
ray_ranks = import_module("blockstride.models.distributed.ray_ranks")

# files that Ray opens for its server, and leaves open
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*ray_client_server:pytest.PytestUnraisableExceptionWarning"
)

PROMPTS = ["In the beginning", "x" * 47, "And the king said", "abc"]
LONG = 400
STORE_BYTES = 80 << 20
OUTSIDE = """
import sys
from time import monotonic
from blockstride.models import LLM, EngineConfig, SamplingParams
from blockstride.models.distributed.ray_ranks import RayLauncher

path, address = sys.argv[1:]
on = RayLauncher(address, resources={"prefill": {"left": 1}, "decode": {"watched": 1}})
small = EngineConfig(cache_bytes=1 << 24)
with LLM(path, prefill=small, decode=small, device="cpu", on=on) as llm:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    print(llm.generate("In the beginning", params)[0].token_ids, flush=True)
    (engine,) = llm.engine.decode
    # the node is drained now, and a request has the letter that says so read
    end = monotonic() + 60
    while not engine.is_leaving:
        assert monotonic() < end
        llm.generate("abc", params)
    assert engine.has_left.wait(60)
    print(llm.generate("In the beginning", params)[0].token_ids, flush=True)
"""


@pytest.fixture(scope="session")
def cluster():
    """Two nodes; a rank asks for a bit of the resource that is called as its node."""

    def options(name):
        return {
            "num_cpus": 3,
            "resources": {name: 100},
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        }

    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    head = {**options("left"), "ray_client_server_port": port}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    made.add_node(**options("right"))
    ray.init(made.address, logging_level=logging.ERROR, log_to_driver=False)
    yield SimpleNamespace(
        address=made.address,
        outside=f"ray://127.0.0.1:{port}",
        add=lambda name: made.add_node(**options(name)),
        remove=lambda node: made.remove_node(node, allow_graceful=False),
    )
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def deploy(cluster):
    """Makes an `LLM` on the cluster, its prefill engines on the left node."""
    with contextlib.ExitStack() as stack:

        def make(path, *, decode_on="right", **options):
            resources = {"prefill": {"left": 1}, "decode": {decode_on: 1}}
            on = ray_ranks.RayLauncher(cluster.address, resources=resources, place_seconds=60)
            options = {"device": "cpu", "timeout_seconds": SECONDS, "on": on, **options}
            return stack.enter_context(LLM(path, **options))

        yield make


def node_of(each) -> str:
    (node,) = each._team._nodes
    return node


def begin(llm, prompts=PROMPTS):
    """Requests of which all have some tokens."""
    batch = llm.submit(prompts, greedy(LONG))
    until(lambda: all(g.request and len(g.request.output_ids) > 3 for g in batch.generations))
    return batch


def tokens(batch):
    for generation in batch.generations:
        assert generation.done.wait(120)
    return [generation.result().token_ids for generation in batch.generations]


@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_two_nodes_give_the_tokens_of_one_engine(deploy, reference, transfer):
    llm = deploy(
        reference.path,
        prefill=engine(tp_size=2, layout="BHLNC"),
        decode=engine(layout="LBHNC", block_size=32, policy="unified"),
        transfer=transfer,
    )
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 20)
    assert tokens_of(llm, PROMPTS, greedy(20)) == wanted
    assert node_of(llm.engine.prefill[0]) != node_of(llm.engine.decode[0])
    prefill, decode = llm.reports()
    assert (decode.transfers.requests, decode.failed_reads) == (len(PROMPTS), 0)
    assert prefill.stats.prefill_tokens > 0
    pids = [pid for each in llm.engine.engines for pid in each.pids]
    assert len(pids) == 3
    assert all(map(is_running, pids))
    llm.close()
    until(lambda: not any(map(is_running, pids)), 10)


@pytest.mark.parametrize("rank", [0, 1])
def test_requests_of_a_killed_actor_go_on_elsewhere(deploy, reference, rank):
    llm = deploy(reference.path, prefill=engine(), decode=engine(tp_size=2), restarts=1)
    wanted = tokens_of_transformers(reference, llm, PROMPTS, LONG)
    (failing,) = llm.engine.decode
    batch = begin(llm)
    kill(failing, rank)
    assert tokens(batch) == wanted
    # another actor takes its place
    until(lambda: llm.generate("abc", greedy(1)) and llm.engines.names("decode"))
    assert tokens_of(llm, PROMPTS, greedy(9)) == [each[:9] for each in wanted]
    until(lambda: all_blocks_are_free(llm))


def test_requests_of_a_killed_node_go_on_elsewhere(deploy, reference, cluster):
    nodes = {node.node_id: node for node in (cluster.add("doomed"), cluster.add("doomed"))}
    engines = {"prefill": engine(), "decode": engine()}
    llm = deploy(reference.path, **engines, decode_on="doomed", restarts=1)
    wanted = tokens_of_transformers(reference, llm, PROMPTS, LONG)
    (failing,) = llm.engine.decode
    batch = begin(llm)
    cluster.remove(nodes[node_of(failing)])
    assert tokens(batch) == wanted
    # a first attempt may be before Ray knows that the node is gone
    until(lambda: llm.generate("abc", greedy(1)) and llm.engines.names("decode"))
    assert node_of(llm.engine.decode[0]) in nodes.keys() - {node_of(failing)}
    assert tokens_of(llm, PROMPTS, greedy(9)) == [each[:9] for each in wanted]


def test_an_engine_leaves_a_drained_node_when_its_requests_are_done(deploy, reference, cluster):
    cluster.add("leaving")
    # what takes its place runs where there is room
    cluster.add("leaving")
    engines = {"prefill": engine(), "decode": engine()}
    llm = deploy(reference.path, **engines, decode_on="leaving", restarts=1)
    wanted = tokens_of_transformers(reference, llm, PROMPTS, LONG)
    leaving = llm.engine.decode[0]
    batch = begin(llm)
    drain(cluster, node_of(leaving))
    until(lambda: leaving.is_leaving)
    assert tokens(batch) == wanted
    assert leaving.is_alive
    until(lambda: llm.generate("abc", greedy(1)) and llm.engines.names("decode"))
    assert leaving.has_left.wait(30)
    assert node_of(llm.engine.decode[0]) != node_of(leaving)
    assert tokens_of(llm, PROMPTS, greedy(9)) == [each[:9] for each in wanted]


def drain(cluster, node_id):
    """As an autoscaler does before it takes a machine away; Ray has no public name for it."""
    reasons = import_module("ray.core.generated.autoscaler_pb2").DrainNodeReason
    reason = reasons.Value("DRAIN_NODE_REASON_PREEMPTION")
    client = ray._raylet.GcsClient(address=cluster.address)
    is_accepted, why = client.drain_node(node_id, reason, "a test", 0)
    assert is_accepted, why


def test_a_program_outside_of_the_cluster_is_served_and_told_alike(cluster, reference):
    node = cluster.add("watched")
    command = [sys.executable, "-c", OUTSIDE, str(reference.path), cluster.outside]
    (tokens,) = map(str, tokens_of(LLM(reference.path, device="cpu"), PROMPTS[:1], greedy(20)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline().strip() == tokens
            drain(cluster, node.node_id)
            assert program.stdout.readline().strip() == tokens
            assert program.wait(60) == 0
        finally:
            program.kill()


def test_decode_engines_grow_from_one_to_three_under_load(deploy, reference):
    llm = deploy(reference.path, prefill=engine(), decode=engine())
    wanted = tokens_of_transformers(reference, llm, PROMPTS, LONG)
    answers, is_enough = [], []

    def ask():
        while not is_enough:
            answers.append(tokens_of(llm, PROMPTS, greedy(LONG)))

    asking = [Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    names = [llm.engines.add("decode", engine()) for _ in range(2)]
    engines = llm.engine.decode
    until(lambda: all(each.load and each.load.num_reads for each in engines[-2:]))
    is_enough.append(True)
    for thread in asking:
        thread.join()
    assert llm.engines.names("decode") == ["decode-0", *names]
    assert all(answer == wanted for answer in answers)
    until(lambda: all_blocks_are_free(llm))


def test_what_the_cluster_cannot_do_is_refused_by_name(deploy, reference):
    on = ray_ranks.RayLauncher(resources={"decode": {"nowhere": 1}}, place_seconds=2)
    with pytest.raises(TimeoutError, match="decode-0: expected room on the cluster for 1 ranks"):
        deploy(reference.path, decode=engine(), on=on)
    with pytest.raises(ValueError, match="device: expected cpu or cuda"):
        deploy(reference.path, decode=engine(), device="cuda:1")
    with pytest.raises(ValueError, match="decode-0: tp_size: expected a divisor of"):
        deploy(reference.path, decode=engine(tp_size=3))
    with pytest.raises(ValueError, match="on: expected ray, or ray://HOST:PORT, got 'moon'"):
        deploy(reference.path, decode=engine(), on="moon")
    llm = deploy(reference.path, on="ray", config=engine())
    assert llm.engines.names("decode") == ["decode-0"]
    assert llm.generate("abc", greedy(3))[0].finish_reason == "length"
