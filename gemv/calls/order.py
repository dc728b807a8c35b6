"""The stream of a call: which one it is, what it waits for, and what waits for it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gemv.arrays import dlpack
from gemv.calls.bind import Call
from gemv.core.operand import Operand
from gemv.engines import backend as engines_backend


class Order:
    """The stream that a call runs on, the streams it waits for, and the memory it keeps alive.

    It runs on the stream that the caller passes, or on the current one of A's library. If work on
    another operand is pending on another stream, an event makes the call wait for it. Where the
    caller passed no stream, that other stream also waits for the call: the caller cannot know that
    there is something to wait for. `further` are operands beside those of `call`.
    """

    def __init__(
        self,
        call: Call,
        engine: Any,
        stream: Any,
        further: Sequence[tuple[str, Operand]] = (),
    ) -> None:
        self._engine = engine
        self._routine = call.routine
        self._named = stream is not None
        self.operands = [
            (name, operand)
            for name, operand in (
                ("a", call.a), ("x", call.x), ("y", call.y),
                ("alpha", call.alpha), ("beta", call.beta),
            )
            if isinstance(operand, Operand)
        ]  # fmt: skip
        self.operands += further
        #: Memory of earlier calls, each with the identity of the stream that it was made on.
        self._stayed: list[tuple[Operand, int]] = []
        own = self._producer(call.a)
        if stream is not None:
            self.stream = handle_of(call.routine, stream)
        else:
            self.stream = engine.default_stream() if own is None else own
        #: Ordinal of the GPU of the call's stream, and those of other operands that differ.
        self._device = call.device
        self._others: dict[tuple[int | None, int], str] = {}
        joined = set()
        for name, operand in self.operands:
            alike = operand.stream, operand.device, operand.exporter
            if alike not in joined:  # of a list there are many
                joined.add(alike)
                self._join(name, operand)
        self._exports = [o for _, o in self.operands if o.exporter.ordered_by_export]
        self.capture = None
        if self._others or self._exports:
            self._check_captures()
        # Memory of Numba's arrays is given back in the order of the default stream: a call on a
        # stream that is not ordered with it has to hold them. A captured stream is not asked, which
        # would break the capture, and a graph holds nothing.
        self._on_default = [o for _, o in self.operands if o.exporter.on_default_stream]
        self._unordered = bool(
            self._on_default
            and engine.name == "cuda"
            and self.capture_here() is None
            and engine.runs_by_itself(self.stream)
        )
        self.plain = not self._others and not self._exports and not self._unordered

    def _producer(self, operand: Operand) -> int | None:
        """The stream on which work on an operand may be pending; None where nothing tells."""
        if operand.stream is not None:
            return 0 if operand.stream == 1 else operand.stream
        return None if operand.device is None else operand.exporter.current_stream(operand.device)

    def _join(self, name: str, operand: Operand) -> None:
        """Note the operand's stream as one to wait for, if it is not the call's."""
        place = self._place(operand)
        if place is not None:
            self._others.setdefault(place, name)

    def _place(self, operand: Operand) -> tuple[int | None, int] | None:
        """GPU and stream of the work on an operand; None if the call's stream is the same."""
        producer = self._producer(operand)
        away = operand.device is not None and operand.device != self._device
        if away and producer is None:
            producer = self._engine.default_stream()
        if producer is None or (producer == self.stream and not away):
            return None
        return operand.device if away else self._device, producer

    def peers(self) -> set[int]:
        """Other GPUs that operands are on."""
        devices = {operand.device for _, operand in self.operands}
        return {device for device in devices if device not in (None, self._device)}

    def _check_captures(self) -> None:
        """Refuse to join a stream that is being captured with one outside of that capture."""
        capture = self.capture_here()
        for (device, other), name in self._others.items():
            with self._engine.on(device):
                theirs = self._engine.capture_of(other)
            if getattr(theirs, "identity", None) == getattr(capture, "identity", None):
                continue
            inside, outside = (f"{other:#x} of {name}", f"{self.stream:#x} of this call")
            if theirs is None:
                inside, outside = outside, inside
            raise ValueError(
                f"{self._routine}: stream {inside} is being captured into a graph, but stream"
                f" {outside} is neither captured nor joined to that capture, so the graph could"
                " not wait for it"
            )
        if capture is not None and self._exports:
            raise TypeError(
                f"{self._routine}: arrays of kind {self._exports[0].kind} cannot be used while a"
                " stream is captured: only their library can order work on them"
            )

    def capture_here(self) -> Any:
        """The capture that the call's stream is part of, or None."""
        return self._engine.capture_of(self.stream)

    def uses(self, operand: Operand) -> None:
        """Take in an array that was made for this call."""
        self.operands.append(("y", operand))
        self._join("y", operand)
        if operand.exporter.on_default_stream:
            self._on_default.append(operand)

    def made_on(self, operand: Operand) -> int | None:
        """The identity of the stream in whose order new memory of a library is given back.

        None where that needs no stream: see :meth:`stays`.
        """
        if self._engine.name != "cuda" or operand.device is None:
            return None
        current = operand.exporter.current_stream(operand.device)
        return None if current is None else int(self._engine.identity(current))

    def stays(self, operand: Operand, made_on: int | None) -> None:
        """Take in memory that an earlier call has made, and that nobody but this package knows.

        Its library gives it out anew, in the order of the stream that it was made on, as soon as
        this package lets go of it.
        """
        self.uses(operand)
        if made_on is not None:
            self._stayed.append((operand, made_on))

    def before(self) -> None:
        """Make the call's stream wait for pending work on the operands."""
        for device, other in self._others:
            self._engine.wait(self.stream, other, self._device, device)
        self._capsules = [
            dlpack.export(operand.origin, self.stream or 1) for operand in self._exports
        ]

    def after(self) -> None:
        """Keep memory alive until the call is done, and make the other streams wait for it."""
        if self._named:
            if self._others and self.capture_here() is None:
                self._keep([o for _, o in self.operands if self._place(o) is not None])
        else:
            for device, other in self._others:
                self._engine.wait(other, self.stream, device, self._device)
        if self._stayed and self.capture_here() is None:  # its number must not be asked for then
            mine = self._engine.identity(self.stream)
            self._keep([operand for operand, made_on in self._stayed if made_on != mine])
        loose = [o.origin for _, o in self.operands if o.exporter.held_until_done]
        if (self._capsules or loose) and self._engine.name == "cuda":
            if self.capture_here() is None:
                self._engine.held.hold((self._capsules, loose), self.stream)
        if self._unordered:
            self._engine.held.hold([operand.origin for operand in self._on_default], self.stream)

    def _keep(self, operands: list[Operand]) -> None:
        """Keep operands of other streams alive: tell their allocator, or else hold them here."""
        if self._engine.name != "cuda":
            return
        behind = functools.cache(functools.partial(self._engine.behind, self.stream))
        untold = [
            operand.origin
            for operand in operands
            if not operand.exporter.record(operand.origin, behind, self._device or 0)
        ]
        if untold:
            self._engine.held.hold(untold, self.stream)


def handle_of(routine: str, stream: Any) -> int:
    """The driver's handle of a stream that the caller passed; 0 in the simulator."""
    if engines_backend.backend() != "cuda":
        return 0
    from gemv.driver.streams import stream_handle

    try:
        return stream_handle(stream)
    except TypeError as error:
        raise TypeError(f"{routine}: {error}") from None
