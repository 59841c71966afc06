"""Pretrained networks of the transformers library: where their folders lie, and their checksums."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from coterie.core.errors import BadInput
from coterie.core.files import digest

WEIGHTS = ("*.safetensors", "*.bin")


def _require_libraries() -> None:
    try:
        import peft  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        raise BadInput("net 'hf' needs more packages: pip install 'coterie[lora]'") from None


def find_base(base: str) -> Path:
    """The folder of a pretrained network, which may be a name on the Hugging Face hub."""
    _require_libraries()
    folder = Path(base).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise BadInput(f"{folder} is no folder of transformers: it has no config.json")
        return folder.resolve()
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(base, allow_patterns=["*.json", *WEIGHTS, "*.txt"]))
    except Exception as problem:  # no network, no such name: many kinds, one line
        why = " ".join(str(problem).split())[:120]
        raise BadInput(
            f"model = 'hf:{base}': there is no such folder, and the hub gives none ({why}): give "
            "the folder of config.json and weights"
        ) from None


def digest_base(base: str) -> str:
    """The checksum of a pretrained network: of its config and weights."""
    folder = find_base(base)
    files = sorted(file for pattern in ("config.json", *WEIGHTS) for file in folder.glob(pattern))
    if len(files) < 2:
        raise BadInput(f"{folder} has no weights ({' or '.join(WEIGHTS)})")
    stamps = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return _digest_files(stamps)


@lru_cache(16)
def _digest_files(stamps: tuple[tuple[str, int, int], ...]) -> str:
    sums = "\n".join(f"{Path(file).name} {digest(Path(file))}" for file, _, _ in stamps)
    return hashlib.sha256(sums.encode()).hexdigest()
