"""Many hand-overs between processes, over real NIXL.

python -m tests.transfer.connector.prove [--cases N] [--first N]
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from tests.transfer.connector.cases import carry_out, cases
from tests.transfer.connector.processes import Crew


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="cases to leave out")
    args = parser.parse_args(argv)
    crew, ways = Crew(), Counter()
    try:
        chosen = cases(args.first + args.cases)[args.first :]
        for i, case in enumerate(chosen, start=1):
            try:
                carry_out(case, crew)
            except Exception as error:
                raise RuntimeError(f"{case}: {error}") from error
            ways[f"{case.strategy}, {'written' if case.push else 'read'}"] += 1
            if i % 50 == 0 or i == args.cases:
                sys.stdout.write(f"{i} hand-overs between processes right: {dict(ways)}\n")
                sys.stdout.flush()
    finally:
        crew.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
