"""Kinds of cells by their names, as options of programs give them."""

from __future__ import annotations

from gemv.selection.cells import Kind, kinds


def kinds_named(text: str) -> list[Kind]:
    """The kinds whose names begin with the words of `text`: all of them if it has no words.

    It may be several texts, with commas between.

    Raises
    ------
    ValueError
        If no kind has a name that begins so.

    Examples
    --------
    >>> [str(kind) for kind in kinds_named("h dot 4, z dot")]
    ['h dot 4 whole free', 'h dot 4 free', 'z dot 1 free', 'z dot 1']
    """
    every = {kind: str(kind).split() for kind in kinds()}
    if not text.strip():
        return list(every)
    wanted = [each.split() for each in text.split(",")]
    for words in wanted:
        if not words or not any(name[: len(words)] == words for name in every.values()):
            raise ValueError(
                f"kinds: no kind's name begins with {' '.join(words)!r}; names are like"
                f" {str(next(iter(every)))!r}, and bfloat16 has the kinds of float16, 'h'"
            )
    return [
        kind for kind, name in every.items() if any(name[: len(words)] == words for words in wanted)
    ]
