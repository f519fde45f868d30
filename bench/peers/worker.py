"""One engine in a process of its own, timed on request.

Run as `python worker.py ENGINE CHECKPOINT`, with the interpreter of the engine's environment. Reads
one JSON object a line, `{"op": "prefill", "tokens": 512}` or `{"op": "decode", "batch": 8}`, and
answers with the seconds of the prompt, or of one decode step; `{"op": "greedy", "batch": 2}` is
answered with tokens, and `{"op": "request", ...}` with whatever the engine says to it. Engines run
float32 on the threads given by `OMP_NUM_THREADS`, from the same checkpoint, on the same tokens.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

DECODE_STEPS = 48
CONTEXT = 128


def prompt(vocab_size: int, length: int, seed: int = 0) -> list[int]:
    """Tokens that look random and are the same everywhere."""
    state, tokens = 12345 + seed, []
    for _ in range(length):
        state = (1103515245 * state + 12345) % (1 << 31)
        tokens.append(3 + (state >> 8) % (vocab_size - 3))
    return tokens


def answer(engine: Any, request: dict, vocab_size: int) -> dict:
    """What the engine measured, or its tokens."""
    if request["op"] == "request":
        return engine.request(request)
    if request["op"] == "prefill":
        return {"seconds": engine.prefill(prompt(vocab_size, request["tokens"]))}
    prompts = [prompt(vocab_size, CONTEXT, seed) for seed in range(request["batch"])]
    if request["op"] == "greedy":
        return {"tokens": engine.greedy(prompts, DECODE_STEPS)}
    return {"seconds": engine.decode(prompts, DECODE_STEPS)}


def main() -> None:
    """Answers requests until standard input ends."""
    # the engine and its processes log where they like; answers go where the parent reads
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.path.insert(0, str(Path(__file__).parent))
    name, path = sys.argv[1:]
    engine = import_module(f"run_{name.replace('-', '_')}").Engine(path)
    vocab_size = json.loads((Path(path) / "config.json").read_text())["vocab_size"]
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line), vocab_size)), file=answers, flush=True)


if __name__ == "__main__":
    main()
