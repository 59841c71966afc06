"""A second device for torch over ordinary memory, to see where tensors are made.

It has torch's own rules of devices: its tensors meet no tensor of the processor, numpy cannot read
them, and like some accelerators it has no double precision. It draws no random numbers. Torch
starts the threads of a device with its first gradient, so a process must call `load` before that.
"""

import subprocess
import sys
import types
from pathlib import Path

import torch

NAME = "second"
SOURCE = Path(__file__).with_suffix(".cpp")


def build(folder: Path) -> Path:
    """Compile the device into a folder; the file to load."""
    library, home = folder / f"{NAME}.so", Path(torch.__file__).parent
    headers = [f"-I{home / 'include'}", f"-L{home / 'lib'}"]
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared"]
    command = ["g++", *flags, *headers, str(SOURCE), "-o", str(library), "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True, timeout=300)
    return library


def load(library: Path) -> torch.device:
    """The device, known to torch from now on."""
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    vars(module).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
    )
    torch._register_device_module(NAME, module)
    sys.modules[module.__name__] = module
    torch.ops.load_library(library)
    return torch.device(NAME, 0)
