"""`blockstride generate`: continue prompts with a model."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from blockstride.kernels.checks import expect
from blockstride.models.engine import EngineConfig, SamplingParams
from blockstride.models.llm import DTYPES, LLM


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
    engine.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    engine.add_argument("--kv-cache-dtype", default="auto", help=f"auto, {', '.join(DTYPES)}")
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
    config = EngineConfig(
        layout=args.layout,
        policy=args.policy,
        block_size=args.block_size,
        cache_bytes=args.cache_mib << 20,
        max_num_seqs=args.max_num_seqs,
        prefill_chunk=args.prefill_chunk,
    )
    begin = time.perf_counter()
    llm = LLM(
        args.model,
        dtype=args.dtype,
        device=args.device,
        kv_cache_dtype=args.kv_cache_dtype,
        conv_order=args.conv_order,
        config=config,
    )
    loaded = time.perf_counter()
    if len(prompts) == 1:
        _stream(llm, prompts[0], params)
    else:
        for completion in llm.generate(prompts, params, progress=True):
            sys.stdout.write(f"{completion.prompt}{completion.text}\n")
    if args.stats:
        _print_stats(llm, loaded - begin, time.perf_counter() - loaded)
    return 0


def _read_prompts(file: str) -> list[str]:
    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    prompts = [line for line in text.splitlines() if line.strip()]
    expect(bool(prompts), "--prompt-file", "at least one line", f"none in {file}")
    return prompts


def _stream(llm: LLM, prompt: str, params: SamplingParams) -> None:
    pieces = llm.stream(prompt, params)
    sys.stdout.write(prompt)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _print_stats(llm: LLM, load_seconds: float, seconds: float) -> None:
    engine, stats = llm.engine, llm.engine.stats
    table = Table(title="generate", show_header=False)
    table.add_row("model loaded in", f"{load_seconds:.2f} s")
    table.add_row("steps", f"{stats.steps}")
    table.add_row("prompt tokens", f"{stats.prefill_tokens} at {stats.prefill_rate:,.0f} tokens/s")
    table.add_row("new tokens", f"{stats.decode_tokens} at {stats.decode_rate:,.0f} tokens/s")
    table.add_row("time", f"{seconds:.2f} s")
    table.add_row("preemptions", f"{engine.scheduler.num_preemptions}")
    for pool in engine.pools:
        layout = pool.layout
        kinds = ", ".join(dict.fromkeys(placement.group.spec.kind for placement in layout.groups))
        table.add_row(
            f"pool of {kinds}",
            f"{layout.layout}, {layout.num_blocks - 1} blocks of {layout.block_bytes:,} bytes",
        )
    Console(stderr=True).print(table)
