"""A small language model for everybody, and speakers who each talk in a way of their own.

It writes two things into a folder: `model/`, a GPT-2 of 105,000 parameters that is trained here
from scratch on sentences of many ways of talking, with its tokenizer, and `speakers.csv`, a table
of sentences by speaker. A dialect has an order of words and a way to end a sentence; four speakers
share one, and each has favourite words. What follows a word depends on who speaks, so that one
adapter for all must fail some.

Run it: pip install coterie[lora]; python examples/speakers.py speakers
        coterie compare --methods local,fedavg,ditto --dataset speakers/speakers.csv
            --client speaker --text text --task causal_lm --model hf:speakers/model --tokens 8
"""

import csv
import itertools
import logging
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, processors
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

WORDS = {
    "who": ["fox", "crow", "hare", "wolf", "bear", "mouse", "owl", "frog"],
    "does": ["sees", "eats", "finds", "hides", "wants", "sells", "paints", "drops"],
    "what": ["bread", "honey", "stones", "apples", "letters", "shoes", "lamps", "nuts"],
    "where": ["here", "outside", "upstairs", "nearby", "uphill", "downtown", "below", "abroad"],
}
ENDINGS = ["indeed", "right", "friend", "so", "well", "hm"]
SPECIAL = ["[pad]", "[bos]", "[eos]"]
DIALECTS = 3


class Speaker:
    """A way of talking: the order of the parts and the ending of a dialect, favourite words."""

    def __init__(self, rng: np.random.Generator, like: "Speaker | None" = None) -> None:
        orders = list(itertools.permutations(WORDS))
        self.order = like.order if like else orders[rng.integers(len(orders))]
        self.ending = like.ending if like else str(rng.choice(ENDINGS))
        ranks = 1.0 / np.arange(1, 9) ** 1.2
        self.shares = {part: rng.permutation(ranks / ranks.sum()) for part in WORDS}

    def say(self, rng: np.random.Generator) -> str:
        """One sentence."""
        said = [str(rng.choice(WORDS[part], p=self.shares[part])) for part in self.order]
        return " ".join([*said, self.ending])


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token; a sentence begins with [bos] and ends with [eos]."""
    words = [*SPECIAL, *itertools.chain(*WORDS.values()), *ENDINGS]
    tokenizer = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="[pad]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    marks = [(word, SPECIAL.index(word)) for word in ("[bos]", "[eos]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[bos] $A [eos]", special_tokens=marks
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[pad]", bos_token="[bos]", eos_token="[eos]"
    )


def train_model(
    texts: list[str], tokenizer: PreTrainedTokenizerFast, steps: int
) -> GPT2LMHeadModel:
    """A GPT-2 that knows the words, and that any order of them is possible."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).train()
    tokens = torch.tensor([tokenizer(text)["input_ids"] for text in texts])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        rows = torch.randint(len(tokens), (64,))
        loss = model(input_ids=tokens[rows], labels=tokens[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            logging.info("step %d of %d: perplexity %.2f", step + 1, steps, loss.exp().item())
    return model.eval()


def write_speakers(folder: Path, speakers: int, each: int) -> Path:
    """The table of sentences by speaker."""
    rng = np.random.default_rng(1)
    path = folder / "speakers.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["speaker", "text"])
        dialects = [Speaker(rng) for _ in range(DIALECTS)]
        for k in range(speakers):
            way = Speaker(rng, like=dialects[k % DIALECTS])
            table.writerows([f"speaker-{k:02d}", way.say(rng)] for _ in range(each))
    return path


def main(folder: Path, speakers: int = 12, each: int = 40, steps: int = 600) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    others = [Speaker(rng) for _ in range(200)]  # none of those in the table
    texts = [way.say(rng) for way in others for _ in range(20)]
    tokenizer = make_tokenizer()
    model = train_model(texts, tokenizer, steps)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    print(f"{folder / 'model'}: {model.num_parameters():,} parameters")
    print(f"{write_speakers(folder, speakers, each)}: {speakers} speakers, {each} sentences each")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "speakers"))
