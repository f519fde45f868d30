"""`blockstride generate`: continue prompts with a model."""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from blockstride.checks import expect
from blockstride.models.commands.answers import Answers, Style
from blockstride.models.commands.engine_options import (
    add_engine,
    add_model,
    engine_names,
    load_llm,
)
from blockstride.models.commands.output import Output, kept_at_end, say
from blockstride.models.commands.prompts import (
    expect_text,
    read_json_prompts,
    read_prompts,
    typed_prompts,
    typed_tokens,
)
from blockstride.models.commands.sampling_options import (
    SAMPLING_HELP,
    add_sampling,
    given_sampling,
)
from blockstride.models.engine import EngineReport
from blockstride.models.engine.prefix_store import PrefixStats
from blockstride.models.hub import find_checkpoint
from blockstride.models.llm import LLM

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", action="append", help="a prompt; repeat for several")
    given.add_argument("--prompt-file", help="a file with one prompt a line, - for standard input")
    given.add_argument(
        "--prompt-jsonl",
        metavar="FILE",
        help="a file with a JSON string a line, or an object with one as its prompt, for prompts "
        "of several lines; - for standard input",
    )
    given.add_argument(
        "--token-ids",
        action="append",
        type=typed_tokens,
        metavar="IDS",
        help="a prompt as tokens, as in 1,2,3, for checkpoints without a tokenizer.json as well; "
        "repeat for several; the new tokens of each are printed in a line, and no text",
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="each prompt is a message of a user, which the checkpoint's chat template makes a "
        "prompt of; the answer alone is printed",
    )
    parser.add_argument("--system", help="what the system says before each message of --chat")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print an object a line for each answer, with its prompt, text, tokens, why it ended "
        "(finish_reason) and how many tokens it took (usage)",
    )
    parser.add_argument("--stats", action="store_true", help="say what it cost, on standard error")
    add_sampling(parser.add_argument_group("sampling", SAMPLING_HELP))
    add_engine(parser)


def option_names(args: argparse.Namespace) -> dict[str, str]:
    """What the user types, for arguments of other names."""
    names = engine_names(args)
    for option in ("prompt_file", "prompt_jsonl", "token_ids"):
        if getattr(args, option) is not None:
            names["prompt"] = f"--{option.replace('_', '-')}"
    return names


def run(args: argparse.Namespace) -> int:
    """Generates, and writes texts as they come, in the order of their prompts.

    A signal ends it when all that was generated is written.

    Returns:
        1 if any prompt wasn't answered to the end, else 0.
    """
    folder = find_checkpoint(args.model, revision=args.revision, download=args.download)
    prompts = _prompts(args, folder)
    # told before the model is loaded
    given = given_sampling(args)
    begin = time.perf_counter()
    with load_llm(args, folder) as llm:
        loaded = time.perf_counter()
        params = replace(llm.default_params, **given)
        logger.info("%s loaded in %.2f s, %s", args.model, loaded - begin, params)
        asked = [_chat_prompt(llm, args.system, p) for p in prompts] if args.chat else prompts
        answers = Answers(llm, asked, prompts, params, _style(args))
        has_failed = False
        with kept_at_end(answers.rest):
            for i, completion in enumerate(answers):
                if completion.finish_reason == "error":
                    has_failed = True
                    say(f"blockstride generate: prompt {1 + i // params.n}: {completion.error}")
        if args.stats:
            _print_stats(llm, loaded - begin, time.perf_counter() - loaded)
    return int(has_failed)


def _style(args: argparse.Namespace) -> Style:
    if args.json:
        return "json"
    return "answer" if args.chat else "tokens" if args.token_ids else "text"


def _prompts(args: argparse.Namespace, folder: Path) -> list[str] | list[tuple[int, ...]]:
    """What was given, if the checkpoint has a use for it; told before the model is loaded."""
    expect(args.chat or args.system is None, "--system", "--chat beside it", "none")
    if args.system is not None:
        expect_text("--system", args.system)
    if args.token_ids is not None:
        expect(not args.chat, "--chat", "messages in words", "--token-ids")
        return args.token_ids
    is_bare = (folder / "config.json").is_file() and not (folder / "tokenizer.json").is_file()
    expect(not is_bare, "prompt", f"--token-ids, as {folder} has no tokenizer.json", "a text")
    if args.prompt_jsonl is not None:
        return read_json_prompts(args.prompt_jsonl)
    return read_prompts(args.prompt_file) if args.prompt is None else typed_prompts(args.prompt)


def _chat_prompt(llm: LLM, system: str | None, text: Any) -> tuple[int, ...]:
    """The tokens of a conversation that begins with what a user says."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return llm.chat_prompt([*before, {"role": "user", "content": text}])


def _print_stats(llm: LLM, load_seconds: float, seconds: float) -> None:
    table = Table(title="generate", show_header=False)
    table.add_row("model loaded in", f"{load_seconds:.2f} s")
    table.add_row("time", f"{seconds:.2f} s")
    for report in llm.reports():
        if report.engine_id:
            table.add_section()
            table.add_row(report.engine_id, "", style="bold")
        _add_engine(table, report)
        _add_hand_overs(table, report)
    Output(stderr=True).print(table)


def _add_engine(table: Table, report: EngineReport) -> None:
    stats = report.stats
    table.add_row("compiled in", f"{stats.compile_seconds:.2f} s")
    table.add_row("steps", f"{stats.steps}")
    table.add_row("prompt tokens", f"{stats.prefill_tokens} at {stats.prefill_rate:,.0f} tokens/s")
    table.add_row("new tokens", f"{stats.decode_tokens} at {stats.decode_rate:,.0f} tokens/s")
    table.add_row("preemptions", f"{report.num_preemptions}")
    if (prefixes := report.prefixes) is not None:
        hits = f"{prefixes.hit_tokens} of {prefixes.asked_tokens} tokens"
        kept = f"{prefixes.kept_states} states kept, {prefixes.evicted_blocks} blocks evicted"
        table.add_row("known prefixes", f"{hits}; {kept}")
        if prefixes.unread_tokens:
            table.add_row("known, and not read", f"{prefixes.unread_tokens} tokens")
        _add_tiers(table, prefixes)
    for layout in report.pools:
        kinds = ", ".join(dict.fromkeys(placement.group.spec.kind for placement in layout.groups))
        blocks = f"{layout.num_blocks - 1} blocks of {layout.block_bytes:,} bytes"
        table.add_row(f"pool of {kinds}", f"{layout.layout}, {blocks}")


def _add_tiers(table: Table, prefixes: PrefixStats) -> None:
    """What came back from host memory and files, where there are any."""
    if prefixes.demoted_blocks or prefixes.host_tokens:
        moved = f"{prefixes.demoted_blocks} blocks moved there, {prefixes.host_tokens} tokens back"
        table.add_row("host memory", f"{moved}, {prefixes.host_bytes / 1e6:.1f} MB kept")
    if prefixes.file_bytes or prefixes.file_tokens or prefixes.damaged_files:
        damaged = f", {prefixes.damaged_files} damaged" if prefixes.damaged_files else ""
        size = f"{prefixes.file_bytes / 1e6:.1f} MB kept{damaged}"
        table.add_row("files", f"{prefixes.file_tokens} tokens loaded, {size}")


def _add_hand_overs(table: Table, report: EngineReport) -> None:
    """What rank 0 of an engine has read, if it has."""
    counters = report.transfers
    if counters is None or not (counters.requests or report.failed_reads):
        return
    seconds = counters.plan_seconds + counters.post_seconds + counters.wait_seconds
    size = f"{counters.nbytes / 1e6:.1f} MB in {counters.merged} descriptors"
    table.add_row("sequences taken over", f"{counters.requests}: {size}, {1e3 * seconds:.1f} ms")
    if report.failed_reads:
        table.add_row("computed again", f"{report.failed_reads}")
