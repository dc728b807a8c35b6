"""Draw the figures of the documentation: ``python docs/figures [NAME ...]``.

They are written as SVG, for light and for dark pages, to ``docs/figures/out``. Building the
documentation does the same where they are out of date.
"""

from __future__ import annotations

import sys

from gallery import DRAWINGS, draw, draw_all


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(DRAWINGS))
    if unknown:
        print(f"no figure {', '.join(unknown)}; there are: {', '.join(DRAWINGS)}", file=sys.stderr)
        return 2
    if names:
        draw(names)
    else:
        draw_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
