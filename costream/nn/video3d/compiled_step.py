"""Steps of X3D as one call of a compiled program, see ``nn.chain_program``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from costream.nn import chain_kernels as kernels
from costream.nn.chain_program import Map, ProgramBuilder
from costream.nn.operation import ConversionError
from costream.nn.video3d.convolution import VolumeStep


class Memory(Protocol):
    """A state whose steps are counted, and whose frames can be elsewhere in memory."""

    @property
    def frames(self) -> Tensor:
        """Frames [B, n, H, W, C]."""

    def tick(self, steps: int = 1) -> int:
        """Count these steps and return the number of those taken before."""

    def move(self, frames: Tensor) -> None:
        """Let these be the frames, which are equal to those so far."""


class Compilable(Protocol):
    """A part of a network that may have a program."""

    def compile(self, x: Map, program: ProgramBuilder) -> Map:
        """Append the step to a program, return its output; see ``folded.FoldedPart``."""


class CompiledStep:
    """The step of a network up to the mean of the newest frame's features.

    For streams that have all of their memory. Raises ConversionError for networks that have no
    program.

    Args:
        size: height and width of a frame.
        parts: of the network. ``last``: the convolution after them.
    """

    def __init__(
        self, size: tuple[int, int], parts: Sequence[Compilable], last: VolumeStep | None
    ) -> None:
        builder = ProgramBuilder((3, *size))
        y = builder.input
        for part in parts:
            y = part.compile(y, builder)
        if last is None:
            raise ConversionError("a network without a last convolution cannot be compiled")
        y = builder.apply(last.compile(y, builder), torch.relu)
        self.width = last.out_width
        self.program, self.held = builder.program(builder.mean(y)), builder.held


class StepBuffers:
    """The memory of compiled steps of B streams, in which their frames are held.

    Args:
        step: of the network. ``memories``: of the streams, in the order of its parts; they are
            moved into the buffers.
    """

    def __init__(self, step: CompiledStep, memories: Sequence[Memory]) -> None:
        self.step, self._memories = step, memories
        program, streams = step.program, len(memories[0].frames)
        with torch.inference_mode(False):
            buffers = torch.zeros(streams, program.length)
            self._rows, self._weights = program.arrays()
            self._each = list(buffers.numpy())
            self._input, self._output = buffers[:, program.input :], buffers[:, program.output :]
            for held, memory in zip(step.held, memories, strict=True):
                memory.move(held.view(buffers).copy_(memory.frames))

    def run(self, x: Tensor) -> Tensor:
        """Take a frame [B, 3, H, W] of every stream, return the means of its features, [B, C].

        The next call overwrites them.
        """
        times = [memory.tick() for memory in self._memories]
        for row, number in self.step.program.rings:
            slots = self.step.held[number].shape[0]
            self._rows[row, kernels.PHASE] = times[number] % slots
        frames = x.flatten(1)
        self._input[:, : frames.shape[1]].copy_(frames)
        for buffer in self._each:
            kernels.run(self._rows, self._weights, buffer)
        return self._output[:, : self.step.width]

    def leave(self) -> None:
        """Move the memories out of the buffers, to where steps by PyTorch are fast."""
        for memory in self._memories:
            memory.move(memory.frames.clone(memory_format=torch.contiguous_format))
