"""Where tensors live: the device of a run, the way there and the way back.

Inside `with on(device)` torch makes its tensors on the device. Random numbers are drawn by the
processor and then moved, so that they are the same whatever the device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput, format_value

T = TypeVar("T")
CPU = torch.device("cpu")
AUTO = "auto"  # an accelerator where torch sees one, else the processor


ISA = "ONEDNN_MAX_CPU_ISA"  # bounds what oneDNN, torch's library for bfloat16, asks of a processor
TRIAL = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


@cache
def avoid_broken_amx() -> None:
    """Keep bfloat16 off the AMX unit of a processor that announces it and cannot run it, as in some
    virtual machines, where the first product would end the process: another process tries one.
    """
    flags = Path("/proc/cpuinfo")
    if ISA in os.environ or not flags.exists() or "amx_tile" not in flags.read_text():
        return
    if subprocess.run([sys.executable, "-c", TRIAL], capture_output=True).returncode < 0:
        os.environ[ISA] = "AVX512_CORE_BF16"


def device_of(option: str) -> torch.device:
    """The named device; refused where torch does not see it."""
    seen = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if option == AUTO:
        return seen or CPU
    try:
        device = torch.device(option)
    except RuntimeError:
        raise BadInput(
            f"device = {format_value(option)}: give auto, cpu, cuda, cuda:1 or mps"
        ) from None
    if device.type == CPU.type:
        return CPU
    kind = device.type.upper()
    if seen is None or seen.type != device.type:
        raise BadInput(f"device = '{option}': torch sees no {kind} device here; use cpu or auto")
    count = torch.accelerator.device_count()
    if (device.index or 0) >= count:
        last = f"{device.type}:{count - 1}"
        raise BadInput(f"device = '{option}': the last {kind} device here is {last}; use that one")
    return device


def use_device(device: torch.device) -> AbstractContextManager[Any]:
    """A place in which torch makes its tensors on the device."""
    return nullcontext() if device == torch.get_default_device() else device


def to_default_device(tree: T) -> T:
    """The same tree with its tensors on the device that torch makes tensors on now."""
    device = torch.get_default_device()
    moved: T = pytree.tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, tree)
    return moved


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The values of a tensor for numpy, which reads the processor's memory only."""
    values: np.ndarray = tensor.cpu().numpy()
    return values


def to_double(tensor: Tensor) -> Tensor:
    """The values in double precision, on the processor: not every device has it."""
    return tensor.cpu().double()
