"""A transformer with LoRA adapters on text by person: only the adapters and the classifier travel.

The network comes from `transformers` (small, with random weights: nothing is downloaded), its
adapters from `peft`; with a pretrained network all else stays as it is. Persons mean different
things by the same words, so that one model for all must fail some of them.

Run it: pip install coterie[lora]; python examples/lora_text.py
"""

import tempfile
from pathlib import Path

import numpy as np
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import coterie
from coterie.data.dataset import Dataset
from coterie.results.metric_table import total_of
from coterie.results.run import Run

LENGTH = 8  # tokens per sentence
WORDS = 40  # tokens at most
THINGS = ["soup", "bread", "tea", "song", "film", "match", "road", "shop"]
PLAIN = {"good": 1, "lovely": 1, "bad": 0, "awful": 0}
SLANG = ("sick", "wicked", "mad")  # praise for some persons, blame for the others


def sentences(persons: int, each: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(text, praise or blame, person) of made sentences."""
    rng = np.random.default_rng(0)
    texts, labels, owners = [], [], []
    for person in range(persons):
        meaning = PLAIN | dict.fromkeys(SLANG, person % 2)
        for _ in range(each):
            word = str(rng.choice(list(meaning)))
            texts.append(f"the {rng.choice(THINGS)} was so {word}")
            labels.append(meaning[word])
            owners.append(person)
    return texts, np.array(labels), np.array(owners)


def tokens(texts: list[str]) -> np.ndarray:
    """[n, LENGTH] token numbers, by a tokenizer that is trained on the texts."""
    tokenizer = Tokenizer(WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.train_from_iterator(
        texts, WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"], vocab_size=WORDS)
    )
    tokenizer.enable_padding(length=LENGTH)
    tokenizer.enable_truncation(LENGTH)
    return np.array([found.ids for found in tokenizer.encode_batch(texts)], dtype=np.int64)


def dataset(persons: int = 6, each: int = 40) -> Dataset:
    """The sentences as rows of token numbers, each with its person."""
    texts, labels, owners = sentences(persons, each)
    return Dataset(
        name="sentences",
        x=tokens(texts),
        y=labels,
        classes=2,
        train=np.ones(len(labels), bool),
        users=owners,
    )


def full() -> nn.Module:
    """The transformer itself; coterie takes the `logits` of its output.

    Attention draws its dropout outside of modules, where it could not be drawn again: it is off.
    """
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
        num_labels=2,
        attn_implementation="eager",  # plain operations, which can be stacked over clients
    )
    return BertForSequenceClassification(config)


def lora() -> nn.Module:
    """The transformer frozen, with adapters of rank 4 and a classifier that train."""
    adapters = LoraConfig(
        task_type="SEQ_CLS", r=4, lora_alpha=16, target_modules=["query", "value", "dense"]
    )
    return get_peft_model(full(), adapters)


def bytes_per_round(run: Run) -> float:
    """What travels in one round, down and up, of all clients."""
    rounds = run.experiment.schedule.rounds
    return (total_of(run.table, "bytes_down") + total_of(run.table, "bytes_up")) / rounds


def main(folder: Path | None = None, rounds: int = 30) -> None:
    folder = folder or Path(tempfile.mkdtemp())
    words = {
        "dataset": dataset(),
        "lr": 0.1,
        "batch_size": 8,
        "eval_every": rounds,
        "compile": "no",
    }
    words |= {"path": "vectorized", "width": 6}
    whole = coterie.run("fedavg", model=full, rounds=1, out=folder / "full", **words)
    runs = {
        "fedavg": coterie.run("fedavg", model=lora, rounds=rounds, out=folder / "fedavg", **words),
        "ditto": coterie.run("ditto", model=lora, rounds=rounds, out=folder / "ditto", **words),
        "fedper": coterie.run("fedper", model=lora, rounds=rounds, out=folder / "fedper", **words),
        "fedper, own adapters": coterie.run(
            "fedper", model=lora, own="*lora*", rounds=rounds, out=folder / "adapters", **words
        ),
    }
    print(f"{'full fedavg':22}{bytes_per_round(whole):12,.0f} bytes per round")
    for name, run in runs.items():
        accuracy = 100 * run.summary().mean
        print(f"{name:22}{bytes_per_round(run):12,.0f} bytes per round, {accuracy:.1f} % right")
    models = runs["ditto"].folder / "models"
    print(
        "stored once:",
        (models / "frozen-0.safetensors").stat().st_size,
        "bytes; per person:",
        (models / "client-00000.safetensors").stat().st_size,
    )
    module = coterie.load_model(runs["ditto"].folder, 0, build=lora)
    print(f"{type(module).__name__} of person 0 is ready to use")


if __name__ == "__main__":
    main()
