"""A model and its engines on a command line, for the commands that run some."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from blockstride.checks import FLOATS
from blockstride.dtypes import words
from blockstride.models.commands import compiling
from blockstride.models.commands.cache_dtypes import add_prefix_caching
from blockstride.models.commands.engine_keys import EngineKeys
from blockstride.models.commands.option_names import with_options
from blockstride.models.commands.values import positive, whole
from blockstride.models.distributed.deployment import TransferWay
from blockstride.models.engine import EngineConfig
from blockstride.models.engine_arguments import find_launcher
from blockstride.models.llm import LLM
from blockstride.models.loading import KV_DTYPES

ENGINE_KEYS = {
    "tp": "tp_size",
    "layout": "layout",
    "policy": "policy",
    "block": "block_size",
    "kernel": "kernel_block_size",
    "mib": "cache_bytes",
    "seqs": "max_num_seqs",
    "chunk": "prefill_chunk",
    "kv": "kv_cache_dtype",
    "ssm": "ssm_dtype",
    "conv": "conv_order",
}
"""Key of `--prefill` and `--decode` -> what it is of an `EngineConfig`."""

TEXT_KEYS = ("layout", "policy", "kv", "ssm", "conv")
ENGINE_HELP = (
    "an engine in processes of its own that computes prompts and hands them over, as in "
    "tp=2,layout=BHLNC,block=32; what is left out is as the other options say; repeat for several; "
    f"keys: {', '.join(ENGINE_KEYS)}"
)


def add_model(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """Declares the options that name a checkpoint."""
    parser.add_argument(
        "--model", required=is_required, help="Hugging Face checkpoint folder, or a name on the Hub"
    )
    parser.add_argument("--revision", help="branch, tag or commit of a named checkpoint (main)")
    parser.add_argument(
        "--download", action="store_true", help="get a named checkpoint that isn't cached"
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Declares the options of engines and their caches."""
    engine, defaults = parser.add_argument_group("engine"), EngineConfig()
    engine.add_argument("--device", help="cpu, cuda or cuda:1; a GPU when there is one")
    engine.add_argument("--dtype", default="auto", help=f"auto, {words(FLOATS)}")
    engine.add_argument("--tp", type=positive, default=1, help="ranks, each in a process")
    engine.add_argument("--prefill", action="append", metavar="ENGINE", help=ENGINE_HELP)
    engine.add_argument(
        "--decode", action="append", metavar="ENGINE", help="the same, for what continues prompts"
    )
    engine.add_argument(
        "--transfer",
        choices=get_args(TransferWay),
        default="pull",
        help="pull: engines that continue prompts read their caches; push: those that computed "
        "them write (default %(default)s)",
    )
    engine.add_argument(
        "--on",
        metavar="WHERE",
        help="ray or ray://HOST:PORT: ranks run on that Ray cluster instead of this machine",
    )
    engine.add_argument(
        "--rank-cpus", type=positive, default=1, help="processors of each rank on Ray (%(default)s)"
    )
    engine.add_argument(
        "--restarts",
        type=whole,
        default=0,
        help="how many engines are started anew that die (default %(default)s)",
    )
    engine.add_argument(
        "--max-len", type=positive, help="most tokens of a sequence; as many as the model allows"
    )
    engine.add_argument(
        "--max-num-seqs",
        type=positive,
        default=defaults.max_num_seqs,
        help="sequences at a time (default %(default)s)",
    )
    engine.add_argument("--prefill-chunk", type=positive, help="most prompt tokens of a step")
    _add_caches(parser.add_argument_group("caches"), defaults)


def _add_caches(caches: Any, defaults: EngineConfig) -> None:
    default = "(default %(default)s)"
    caches.add_argument(
        "--layout", default=defaults.layout, help=f"stride order, as LBHNC or NHD {default}"
    )
    caches.add_argument("--policy", default=defaults.policy, help=f"unified or split {default}")
    caches.add_argument(
        "--block-size", type=positive, default=defaults.block_size, help=f"tokens {default}"
    )
    caches.add_argument(
        "--cache-mib",
        type=positive,
        default=defaults.cache_bytes >> 20,
        help=f"memory of each rank {default}",
    )
    caches.add_argument(
        "--kv-cache-dtype", default="auto", help=f"auto, {words(KV_DTYPES)}; auto: as --dtype"
    )
    caches.add_argument(
        "--ssm-dtype",
        default=defaults.ssm_dtype,
        help=f"of recurrent states: auto, {words(FLOATS)}; auto: fp32",
    )
    caches.add_argument("--conv-order", default="DS", help=f"DS or SD convolution states {default}")
    add_prefix_caching(caches)
    caches.add_argument(
        "--host-cache-mib",
        type=positive,
        help="host memory of each rank for prefixes that its caches have no room for (none)",
    )
    caches.add_argument(
        "--file-cache",
        default="",
        metavar="FOLDER",
        help="keep prefixes in files there, for other processes and other times",
    )
    caches.add_argument(
        "--file-cache-mib",
        type=positive,
        default=defaults.file_cache_bytes >> 20,
        help=f"what these files may take {default}",
    )


def engine_names(args: argparse.Namespace) -> dict[str, str]:
    """What the user types, for arguments of other names."""
    names = {
        "tp_size": "--tp",
        "cache_bytes": "--cache-mib",
        "host_cache_bytes": "--host-cache-mib",
        "file_cache_bytes": "--file-cache-mib",
    }
    for role, engines in (("prefill", args.prefill or ()), ("decode", args.decode or ("",))):
        for i, text in enumerate(engines):
            typed = {part.partition("=")[0].strip() for part in text.split(",")}
            for key, name in ENGINE_KEYS.items():
                option = names.get(name, f"--{name.replace('_', '-')}")
                names[f"{role}-{i}: {name}"] = f"--{role} {key}" if key in typed else option
    return names


def load_llm(args: argparse.Namespace, folder: Path, *, in_process: bool = True) -> LLM:
    """What the options ask for.

    Args:
        args: What was typed.
        folder: The checkpoint.
        in_process: Whether a single engine of one rank may run in this process.

    Raises:
        ValueError, OSError, RuntimeError: As `LLM`.
    """
    config = EngineConfig(
        layout=args.layout,
        policy=args.policy,
        block_size=args.block_size,
        cache_bytes=args.cache_mib << 20,
        max_num_seqs=args.max_num_seqs,
        prefill_chunk=args.prefill_chunk,
        max_len=args.max_len,
        kv_cache_dtype=args.kv_cache_dtype,
        ssm_dtype=args.ssm_dtype,
        conv_order=args.conv_order,
        tp_size=args.tp,
        prefix_caching=args.prefix_caching,
        host_cache_bytes=args.host_cache_mib and args.host_cache_mib << 20,
        file_cache=args.file_cache,
        file_cache_bytes=args.file_cache_mib << 20,
    )
    on = None if args.on is None else find_launcher(args.on, args.rank_cpus)
    options = {"dtype": args.dtype, "device": args.device, "on": on, "restarts": args.restarts}
    prefill = [engine_config("--prefill", text, config) for text in args.prefill or ()]
    decode = [engine_config("--decode", text, config) for text in args.decode or ("",)]
    try:
        if in_process and not args.prefill and not args.decode:
            return LLM(folder, config=config, **options)
        return LLM(folder, prefill=prefill, decode=decode, transfer=args.transfer, **options)
    finally:
        compiling.end()


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
    given: dict[str, Any] = {
        ENGINE_KEYS[key]: keys.text(key) if key in TEXT_KEYS else keys.number(key) for key in keys
    }
    if "cache_bytes" in given:
        given["cache_bytes"] <<= 20
    try:
        return replace(defaults, **given)
    except ValueError as error:
        options = {name: f"{option} {key}" for key, name in ENGINE_KEYS.items()}
        raise ValueError(with_options(str(error), options)) from error
