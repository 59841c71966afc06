"""How clients run: the one form that configurations, checkpoints and engines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast, get_args

from coterie.core.options import NonNegativeInt

ExecutionPath = Literal["auto", "vectorized", "sequential"]
CompileMode = Literal["auto", "yes", "trace", "no"]
Precision = Literal["float32", "bfloat16"]  # of a network's training passes


class ExecutionSettings(NamedTuple):
    """How the clients of one architecture run; what is open is chosen once and then reused."""

    # clients of a chunk run stacked ("vectorized") or one after another; auto: the faster by timing
    path: ExecutionPath = "auto"
    width: NonNegativeInt = 0  # clients per chunk; 0: chosen by timing
    # steps become machine code by a C compiler (yes), are traced once and replayed (trace), or run
    # as written (no); auto: the faster for the length of the run
    compile: CompileMode = "auto"

    @property
    def open(self) -> bool:
        """Whether anything is left to choose."""
        return self.path == "auto" or self.width == 0 or self.compile == "auto"

    def text(self) -> str:
        """The settings as one word, such as "vectorized:16:no"."""
        return f"{self.path}:{self.width}:{self.compile}"

    @classmethod
    def read(cls, text: str) -> ExecutionSettings:
        """The settings of such a word; ValueError where it is none."""
        path, width, compile_ = text.split(":")
        if (
            path not in get_args(ExecutionPath)
            or compile_ not in get_args(CompileMode)
            or int(width) < 0
        ):
            raise ValueError(text)
        return cls(cast(ExecutionPath, path), int(width), cast(CompileMode, compile_))


SEQUENTIAL = ExecutionSettings("sequential", 1, "no")  # one client after another, as real sites run


def text_of(settings: Sequence[ExecutionSettings]) -> str:
    """The settings of all architectures as one line."""
    return " ".join(s.text() for s in settings)


def read_settings(text: str) -> list[ExecutionSettings]:
    """The settings of such a line; ValueError where it is none."""
    return [ExecutionSettings.read(option) for option in text.split()]
