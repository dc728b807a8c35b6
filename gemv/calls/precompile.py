""":func:`gemv.precompile`: a call's kernel is compiled and loaded ahead of the call."""

from __future__ import annotations

from typing import Any

from gemv.calls import short, torch_old_y
from gemv.calls.bind import BlasArguments, bind
from gemv.calls.execute import refuse_on_host, selected, to_be_selected
from gemv.engines import backend as engines_backend


def precompile(
    arguments: BlasArguments,
    kernel: str | None,
    coefficients: Any,
    accumulate: Any,
    out_dtype: Any,
    peer: Any,
) -> None:
    """What :func:`gemv.precompile` does."""
    call = bind(
        "gemv", None, *arguments, coefficients=coefficients, accumulate=accumulate,
        out_dtype=out_dtype, peer=peer,
    )  # fmt: skip
    if call.nothing is not None:
        return
    if engines_backend.backend() == "host":
        return refuse_on_host(call, kernel)
    problem, engine = to_be_selected(call), engines_backend.engine()
    with engine.on(call.device):
        choice = selected(call, problem, kernel)[0]
        if engine.name == "cuda":
            engine.load(choice, engine.device())
            if call.y is not None and not call.in_place:
                engine.prepare_copy(call.y)
                if kernel is None and torch_old_y.is_wanted(engine, choice, call):
                    engine.load(choice.with_old_y, engine.device())
            if not call.on_host:
                short.prepare(engine, call.a.kind)
