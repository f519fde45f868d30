"""A vLLM engine that hands sequences over, or takes them over, by vLLM's NIXL connector.

The engine runs in this process, and its ranks in others when `BENCH_TP_SIZE` says that there are
several: no front end has to be told, so no time is lost on the way to one. The port on which
engines meet is `VLLM_NIXL_SIDE_CHANNEL_PORT`.
"""

import os
import time
from itertools import count

import run_vllm
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.inputs import TokensPrompt

MAX_LEN = 4608
# read when an engine is made
os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_KV_CACHE_LAYOUT": "LBHNC",
    "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
}


def spy() -> dict[str, int]:
    """Sums of what NIXL says of every transfer that this process reads."""
    sums, record = {"nbytes": 0, "descriptors": 0}, NixlKVConnectorStats.record_transfer

    def recorded(stats, result):
        if result is not None:
            sums["nbytes"] += result.totalBytes
            sums["descriptors"] += result.descCount
        return record(stats, result)

    NixlKVConnectorStats.record_transfer = recorded
    return sums


class Engine(run_vllm.Engine):
    """Either side of a hand-over, or both in one."""

    def __init__(self, path: str) -> None:
        self.sums, self.names = spy(), map(str, count())
        super().__init__(
            path,
            max_model_len=MAX_LEN,
            max_num_batched_tokens=MAX_LEN,
            tensor_parallel_size=int(os.environ["BENCH_TP_SIZE"]),
            kv_transfer_config=KVTransferConfig(
                kv_connector="NixlConnector", kv_role="kv_both", kv_load_failure_policy="fail"
            ),
        )

    def request(self, request: dict) -> dict:
        """Continues a prompt.

        Args:
            request: Its tokens, how many more are wanted, and the connector's parameters.

        Returns:
            New tokens, when each came, the parameters for the engine that takes over, and what has
            been read so far.
        """
        transfer = request["transfer"]
        params = SamplingParams(
            max_tokens=request["count"],
            ignore_eos=True,
            temperature=0,
            detokenize=False,
            extra_args={"kv_transfer_params": transfer} if transfer else None,
        )
        engine, tokens, moments = self.llm.llm_engine, [], []
        inputs = TokensPrompt(prompt_token_ids=request["tokens"])
        engine.add_request(next(self.names), inputs, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = list(output.outputs[0].token_ids)
                moments += [time.perf_counter()] * (len(tokens) - len(moments))
                transfer = output.kv_transfer_params
        return {"new_tokens": tokens, "moments": moments, "transfer": transfer, **self.sums}
