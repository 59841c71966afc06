"""One client's model as files: weights with a card, a torch program, an ONNX graph."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from coterie.core.errors import BadInput
from coterie.core.files import catch_write_errors, digest, read_text, save_tensors, write_text
from coterie.results.models import Build, Weights
from coterie.results.personal_models import PersonalModel, from_card
from coterie.serving.cards import render_markdown, render_page
from coterie.serving.pipeline import build_pipeline, example_of

WEIGHTS, CARD, TOKENIZER = "model.safetensors", "model.json", "tokenizer.json"
Writer = Callable[[PersonalModel, Path], None]  # writes into an empty folder


def folder_name(client: str) -> str:
    """A name for a client's folder that any system takes."""
    return quote(client, safe=" ")[:200].strip(". ") or "client"


def export_model(model: PersonalModel, folder: Path, writer: Writer) -> Path:
    """A new folder with the model and its card, whole or not at all."""
    if folder.exists():
        raise BadInput(f"{folder} exists already and is not overwritten: give another --out")
    temporary = folder.with_name(folder.name + ".part")
    with catch_write_errors(folder):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    try:
        writer(model, temporary)
        write_text(temporary / "README.md", render_markdown(model.card))
        write_text(temporary / "card.html", render_page(model.card))
        with catch_write_errors(folder):
            os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def write_safetensors(model: PersonalModel, folder: Path) -> None:
    """The weights by their plain names, and all else as JSON."""
    network = {k: v for k, v in model.card["network"].items() if k != "parameters"}
    about = network | {"lacks": [], "task": model.task.kind, "client": model.client}
    tensors = {k: t.contiguous().clone() for k, t in model.state_dict().items()}
    save_tensors(tensors, folder / WEIGHTS, {"coterie": json.dumps(about)})
    card = model.card | {"weights": digest(folder / WEIGHTS)}
    write_text(folder / CARD, json.dumps(card, indent=1))


def load_model_files(folder: Path, build: Build | None = None) -> PersonalModel:
    """The model that `write_safetensors` wrote."""
    path = folder / WEIGHTS
    try:
        card = json.loads(read_text(folder / CARD))
        if digest(path) != card["weights"]:
            raise BadInput(f"{path} is damaged (it is not as it was written): export it again")
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["coterie"])
        return from_card(card, Weights(about, load_file(path)), path, build)
    except FileNotFoundError:
        raise BadInput(f"{folder} is no exported model: it lacks {CARD} or {WEIGHTS}") from None
    except (ValueError, KeyError, TypeError, SafetensorError) as problem:
        if isinstance(problem, BadInput):
            raise
        raise BadInput(f"{folder} is damaged ({problem}): export it again") from None


def write_torch(model: PersonalModel, folder: Path) -> None:
    """A program of torch.export, preparation inside, and what its columns mean."""
    whole = build_pipeline(model, "torch")
    rows = torch.export.Dim("rows", min=1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.export.export(whole, (example_of(model),), dynamic_shapes=({0: rows},))
        torch.export.save(program, folder / "model.pt2")
    write_text(folder / CARD, json.dumps(model.card, indent=1))
    write_tokenizer(model, folder)


def write_tokenizer(model: PersonalModel, folder: Path) -> None:
    """What makes numbers of texts, in the tokenizers library's own format, where rows are texts."""
    kept = model.intake.preparation
    if kept is not None and kept.text:
        write_text(folder / TOKENIZER, kept.text.tokenizer)
