"""What TASER costs, how that grows, and what each switch saves: `taser bench` in one go.

    python benchmarks/overhead.py --out benchmarks/results

An hour on two cores. The same as `taser bench overhead`, `memory`, `growth` and `switches`.
"""

import sys

from taser.cli import app

if __name__ == "__main__":
    for command in ("overhead", "memory", "growth", "switches"):
        if code := app(["bench", command, *sys.argv[1:]], standalone_mode=False):
            sys.exit(code)
