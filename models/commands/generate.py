"""`blockstride generate`: continue prompts with a model."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from blockstride.kernels.checks import expect
from blockstride.models.commands.engine_keys import EngineKeys
from blockstride.models.distributed.messages import Report
from blockstride.models.engine import EngineConfig, EngineReport, SamplingParams
from blockstride.models.llm import LLM, DistributedLLM
from blockstride.models.loading import DTYPES

ENGINE_KEYS = (
    "tp",
    "layout",
    "policy",
    "block",
    "kernel",
    "mib",
    "seqs",
    "chunk",
    "kv",
    "ssm",
    "conv",
)
ENGINE_HELP = (
    "an engine in processes of its own that computes prompts and hands them over, as in "
    "tp=2,layout=BHLNC,block=32; what is left out is as the other options say; repeat for several"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--model", required=True, help="Hugging Face checkpoint folder")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", action="append", help="a prompt; repeat for several")
    given.add_argument("--prompt-file", help="a file with one prompt a line, - for standard input")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=128)
    sampling.add_argument("--temperature", type=float, default=0.0, help="0: most likely token")
    sampling.add_argument("--top-k", type=int, default=0, help="0: all tokens")
    sampling.add_argument("--top-p", type=float, default=1.0)
    sampling.add_argument("--seed", type=int)
    sampling.add_argument("--stop", action="append", default=[], help="a text that ends it")
    sampling.add_argument("--ignore-eos", action="store_true")
    engine = parser.add_argument_group("engine")
    defaults = EngineConfig()
    engine.add_argument("--layout", default=defaults.layout, help="stride order of the caches")
    engine.add_argument("--policy", default=defaults.policy, help="unified or split pools")
    engine.add_argument("--block-size", type=int, default=defaults.block_size)
    engine.add_argument("--conv-order", default="DS", help="DS or SD convolution states")
    engine.add_argument("--cache-mib", type=int, default=defaults.cache_bytes >> 20)
    engine.add_argument("--max-num-seqs", type=int, default=defaults.max_num_seqs)
    engine.add_argument("--prefill-chunk", type=int, help="most prompt tokens of a step")
    engine.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks, each a process")
    engine.add_argument("--prefill", action="append", metavar="ENGINE", help=ENGINE_HELP)
    engine.add_argument(
        "--decode", action="append", metavar="ENGINE", help="the same, for what continues prompts"
    )
    engine.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    engine.add_argument("--kv-cache-dtype", default="auto", help=f"auto, {', '.join(DTYPES)}")
    engine.add_argument("--ssm-dtype", default=defaults.ssm_dtype, help="of recurrent states")
    engine.add_argument("--device", help="cpu or cuda; a GPU when there is one")
    parser.add_argument("--stats", action="store_true", help="say what it cost, on standard error")


def run(args: argparse.Namespace) -> int:
    """Generates, streaming a single prompt and answering several in order."""
    prompts = args.prompt or _read_prompts(args.prompt_file)
    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
    )
    begin = time.perf_counter()
    with _load(args) as llm:
        loaded = time.perf_counter()
        if len(prompts) == 1:
            _stream(llm, prompts[0], params)
        else:
            for completion in llm.generate(prompts, params, progress=True):
                sys.stdout.write(f"{completion.prompt}{completion.text}\n")
        if args.stats:
            _print_stats(llm, loaded - begin, time.perf_counter() - loaded)
    return 0


def _load(args: argparse.Namespace) -> LLM | DistributedLLM:
    """One engine in this process, unless several processes are asked for."""
    config = EngineConfig(
        layout=args.layout,
        policy=args.policy,
        block_size=args.block_size,
        cache_bytes=args.cache_mib << 20,
        max_num_seqs=args.max_num_seqs,
        prefill_chunk=args.prefill_chunk,
        kv_cache_dtype=args.kv_cache_dtype,
        ssm_dtype=args.ssm_dtype,
        conv_order=args.conv_order,
        tp_size=args.tp,
    )
    options = {"dtype": args.dtype, "device": args.device}
    if config.tp_size == 1 and not args.prefill and not args.decode:
        return LLM(args.model, config=config, **options)
    return DistributedLLM(
        args.model,
        prefill=[engine_config("--prefill", text, config) for text in args.prefill or ()],
        decode=[engine_config("--decode", text, config) for text in args.decode or ("",)],
        **options,
    )


def engine_config(option: str, text: str, defaults: EngineConfig) -> EngineConfig:
    """The config of one engine.

    Args:
        option: What it was given as.
        text: `key=value,key=value` with keys of `ENGINE_KEYS`.
        defaults: What is not given.

    Raises:
        ValueError: An unknown key, or a value that can't be.
    """
    keys = EngineKeys(option, text, ENGINE_KEYS)
    return EngineConfig(
        layout=keys.text("layout", defaults.layout),
        policy=keys.text("policy", defaults.policy),
        block_size=keys.number("block", defaults.block_size),
        kernel_block_size=keys.optional("kernel", defaults.kernel_block_size),
        cache_bytes=keys.number("mib", defaults.cache_bytes >> 20) << 20,
        max_num_seqs=keys.number("seqs", defaults.max_num_seqs),
        prefill_chunk=keys.optional("chunk", defaults.prefill_chunk),
        kv_cache_dtype=keys.text("kv", defaults.kv_cache_dtype),
        ssm_dtype=keys.text("ssm", defaults.ssm_dtype),
        conv_order=keys.text("conv", defaults.conv_order),
        tp_size=keys.number("tp", defaults.tp_size),
    )


def _read_prompts(file: str) -> list[str]:
    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    prompts = [line for line in text.splitlines() if line.strip()]
    expect(bool(prompts), "--prompt-file", "at least one line", f"none in {file}")
    return prompts


def _stream(llm: LLM | DistributedLLM, prompt: str, params: SamplingParams) -> None:
    pieces = llm.stream(prompt, params)
    sys.stdout.write(prompt)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _print_stats(llm: LLM | DistributedLLM, load_seconds: float, seconds: float) -> None:
    table = Table(title="generate", show_header=False)
    table.add_row("model loaded in", f"{load_seconds:.2f} s")
    table.add_row("time", f"{seconds:.2f} s")
    if isinstance(llm, LLM):
        _add_engine(table, llm.engine.report())
    else:
        for report in llm.engine.reports():
            table.add_section()
            table.add_row(report.engine_id, "", style="bold")
            _add_engine(table, report.engine)
            _add_hand_overs(table, report)
    Console(stderr=True).print(table)


def _add_engine(table: Table, report: EngineReport) -> None:
    stats = report.stats
    table.add_row("steps", f"{stats.steps}")
    table.add_row("prompt tokens", f"{stats.prefill_tokens} at {stats.prefill_rate:,.0f} tokens/s")
    table.add_row("new tokens", f"{stats.decode_tokens} at {stats.decode_rate:,.0f} tokens/s")
    table.add_row("preemptions", f"{report.num_preemptions}")
    for layout in report.pools:
        kinds = ", ".join(dict.fromkeys(placement.group.spec.kind for placement in layout.groups))
        blocks = f"{layout.num_blocks - 1} blocks of {layout.block_bytes:,} bytes"
        table.add_row(f"pool of {kinds}", f"{layout.layout}, {blocks}")


def _add_hand_overs(table: Table, report: Report) -> None:
    """What rank 0 of an engine has read, if it has."""
    counters = report.transfers
    if counters is None or not (counters.requests or report.failed_loads):
        return
    seconds = counters.plan_seconds + counters.post_seconds + counters.wait_seconds
    size = f"{counters.nbytes / 1e6:.1f} MB in {counters.merged} descriptors"
    table.add_row("sequences taken over", f"{counters.requests}: {size}, {1e3 * seconds:.1f} ms")
    if report.failed_loads:
        table.add_row("computed again", f"{report.failed_loads}")
