"""What adapters cost: memory of training 1,000 clients, memory and speed of serving 1 to 1,000.

    python benchmarks/adapters.py --write

The base is a GPT-2 of random weights. Training is one round of `local` with an adapter per client.
Serving answers prompts of random clients with 8 tokens each, 64 prompts at a time: with one
backbone and gathered adapters, and beside it with a whole model per client, one prompt after
another, by `generate` of transformers. Every measurement is a process of its own, forked from this
one; memory is what it adds. --write puts the tables into docs/adapters.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import coterie
from coterie.core.version import __version__
from coterie.results.personal_models import Models
from coterie.serving.generation import Sampling, generate_text
from coterie.serving.generation_worker import Generator
from coterie.serving.service import Service, ServiceLimits

PAGE = Path(__file__).parents[1] / "docs" / "adapters.md"
BEGIN, END = "<!-- costs: begin -->", "<!-- costs: end -->"
CLIENTS, ROWS, TOKENS, NEW, GROUP = 1000, 6, 8, 8, 64
WORDS = [f"w{k}" for k in range(200)]


def make_base(folder: Path) -> int:
    """The base model and its tokenizer; its parameters."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS) + 1,
        n_positions=32,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=None,  # every text has all its tokens
        pad_token_id=0,
    )
    net = GPT2LMHeadModel(config)
    net.save_pretrained(folder)
    names = {word: k for k, word in enumerate(["[pad]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="[pad]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[pad]").save_pretrained(folder)
    return net.num_parameters()


def make_texts() -> pl.DataFrame:
    """A few texts for each of many clients."""
    rng = random.Random(0)
    rows = [
        {"speaker": f"c{k:04d}", "text": " ".join(rng.choices(WORDS, k=TOKENS))}
        for k in range(CLIENTS)
        for _ in range(ROWS)
    ]
    return pl.DataFrame(rows)


def memory(word: str) -> float:
    """MB of this process: VmRSS now, VmHWM at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(word)) / 1000


def apart(work: Callable[[], Any]) -> Any:
    """What a function finds, in a process of its own."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        with os.fdopen(write, "w") as out:
            json.dump(work(), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        found = told.read()
    os.waitpid(pid, 0)
    return json.loads(found)


def train(base: Path, out: Path) -> dict[str, float]:
    """One round of 1,000 clients: MB that it adds at most, and seconds."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark begins again
    before, began = memory("VmHWM"), time.perf_counter()
    coterie.run(
        "local",
        dataset=make_texts(),
        client="speaker",
        text="text",
        task="causal_lm",
        tokens=TOKENS,
        model=f"hf:{base}",
        rounds=1,
        lora_r=8,
        batch_size=4,
        path="vectorized",
        width=20,
        compile="no",
        threads=1,
        out=out,
        watch=lambda report: None,
    )
    return {"mb": memory("VmHWM") - before, "seconds": time.perf_counter() - began}


def draw_prompts(clients: int, requests: int) -> list[tuple[int, str]]:
    rng = random.Random(1)
    return [(rng.randrange(clients), " ".join(rng.choices(WORDS, k=4))) for _ in range(requests)]


def serve_together(run: Path, clients: int, requests: int) -> dict[str, float]:
    """One backbone, adapters gathered."""
    before = memory("VmRSS")
    service = Service(run, None, ServiceLimits(models=CLIENTS))
    generator, how = Generator(service.served), Sampling(NEW, temperature=0)
    for start in range(0, clients, GROUP):
        service.served.gather(list(range(start, min(start + GROUP, clients))))
    added = memory("VmRSS") - before
    asked = draw_prompts(clients, requests)
    began = time.perf_counter()
    for start in range(0, requests, GROUP):
        some = asked[start : start + GROUP]
        generate_text(
            generator.network(0),
            service.served.gather([client for client, _ in some]),
            generator.tokens(0),
            [generator.read_prompt(client, prompt, how) for client, prompt in some],
            [how] * len(some),
            lambda *piece: None,
        )
    return {"mb": added, "rate": requests / (time.perf_counter() - began)}


def serve_apart(run: Path, clients: int, requests: int) -> dict[str, float]:
    """A whole model for every client."""
    before = memory("VmRSS")
    known, held = Models(run), []
    first = known.model(0).module
    for k in range(clients):
        one = copy.deepcopy(first)  # the backbone too
        one.load_state_dict(known.weights(k).tensors, strict=False)
        held.append(one.net)
    added = memory("VmRSS") - before
    tokens = Generator(Service(run, None, ServiceLimits(models=1)).served).tokens(0)
    asked = draw_prompts(clients, requests)
    began = time.perf_counter()
    for client, prompt in asked:
        ids = torch.tensor([tokens.encode(prompt)])
        mask = torch.ones_like(ids)
        told = {"input_ids": ids, "attention_mask": mask, "do_sample": False}
        with torch.no_grad():
            held[client].generate(**told, max_new_tokens=NEW)
    return {"mb": added, "rate": requests / (time.perf_counter() - began)}


def render(size: int, trained: dict[str, float], rows: list[list[str]], requests: int) -> str:
    """The tables as the page has them."""
    one = 4 * size / 1e6
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        f"Training {CLIENTS:,} clients, one round of `local` with an adapter of rank 8 each, adds "
        f"at most {trained['mb']:,.0f} MB\nto the process ({trained['seconds']:.0f} s); "
        f"{CLIENTS:,} models of {one:.1f} MB would be {CLIENTS * one:,.0f} MB.\n\n"
        "| clients | way | memory, MB | requests per second |\n|---|---|---|---|\n"
        f"{table}\n\n"
        f"Measured by `python benchmarks/adapters.py --write --requests {requests}` on "
        f"{platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, version\n{__version__}, load "
        f"{os.getloadavg()[0]:.1f}: a GPT-2 of {size:,} parameters, prompts of 4 words, {NEW} new "
        f"tokens each, up to {GROUP}\nprompts together, one thread; memory is what models and "
        "adapters add."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    parser.add_argument("--requests", type=int, default=256)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        base, run = Path(place) / "base", Path(place) / "run"
        size = make_base(base)
        trained = apart(lambda: train(base, run))
        print(trained, flush=True)
        rows = []
        for clients in (1, 100, CLIENTS):
            for name, serve in (
                ("one backbone, adapters gathered", serve_together),
                ("a model per client", serve_apart),
            ):
                found = apart(lambda s=serve, n=clients: s(run, n, chosen.requests))
                rows.append([f"{clients:,}", name, f"{found['mb']:,.0f}", f"{found['rate']:.2g}"])
                print(rows[-1], flush=True)
    text = render(size, trained, rows, chosen.requests)
    print(text)
    if chosen.write:
        page = PAGE.read_text(encoding="utf-8")
        head, rest = page.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
