"""One engine in a process of its own, timed on request.

Run as `python worker.py ENGINE CHECKPOINT`, with the interpreter of the engine's environment. Reads
one JSON object a line, `{"op": "prefill", "tokens": 512}` or `{"op": "decode", "batch": 8}`, and
answers with the seconds of the prompt, or of one decode step. Engines run float32 on the threads
given by `OMP_NUM_THREADS`, from the same checkpoint, on the same tokens.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

DECODE_STEPS = 48
CONTEXT = 128


def prompt(vocab_size: int, length: int, seed: int = 0) -> list[int]:
    """Tokens that look random and are the same everywhere."""
    state, tokens = 12345 + seed, []
    for _ in range(length):
        state = (1103515245 * state + 12345) % (1 << 31)
        tokens.append(3 + (state >> 8) % (vocab_size - 3))
    return tokens


def main() -> None:
    """Answers requests until standard input ends."""
    # the engine logs where it likes; answers go where the parent reads
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, str(Path(__file__).parent))
    engine = import_module(f"run_{sys.argv[1]}").Engine(sys.argv[2])
    vocab = json.loads((Path(sys.argv[2]) / "config.json").read_text())["vocab_size"]
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "prefill":
            seconds = engine.prefill(prompt(vocab, request["tokens"]))
        else:
            prompts = [prompt(vocab, CONTEXT, seed) for seed in range(request["batch"])]
            seconds = engine.decode(prompts, DECODE_STEPS)
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
