"""Tiny networks of transformers with random weights, and texts by speaker."""

from pathlib import Path

import numpy as np
import polars as pl
import torch
from tokenizers import Tokenizer, processors
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    ModernBertConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

WORDS = [f"w{k}" for k in range(20)]
SPECIAL = ["[pad]", "[bos]", "[eos]"]
TOKENS = 8
SMALL = {"initializer_range": 0.3}  # so that adapters and padding make a visible difference


def save_tokenizer(folder: Path) -> None:
    """A word is a token, between [bos] and [eos]."""
    names = {word: k for k, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(WordLevel(names, unk_token="[pad]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[bos] $A [eos]", special_tokens=[("[bos]", 1), ("[eos]", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[pad]", bos_token="[bos]", eos_token="[eos]"
    ).save_pretrained(folder)


def gpt2(folder: Path) -> Path:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=23,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **SMALL,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def bert(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 16}
    config = BertConfig(
        vocab_size=23, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0, **sizes, **SMALL
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def write_others(folder: Path) -> dict[str, str]:
    """Networks whose layers see a window, distances of words, or draw dropout by functions."""
    sizes = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "pad_token_id": 0}
    sizes |= {"bos_token_id": 1, "eos_token_id": 2, **SMALL}
    heads = {"num_attention_heads": 2, "max_position_embeddings": 16}
    wide = {"intermediate_size": 32, **heads}
    window = {**wide, "num_key_value_heads": 1, "sliding_window": 4}
    made = {
        "mistral": (MistralConfig(**sizes, **window), AutoModelForCausalLM),
        "gemma3": (Gemma3TextConfig(**sizes, **window, head_dim=8), AutoModelForCausalLM),
        "opt": (
            OPTConfig(**sizes, **heads, ffn_dim=32, word_embed_proj_dim=16),
            AutoModelForCausalLM,
        ),
        "bloom": (BloomConfig(**sizes, n_head=2), AutoModelForCausalLM),
        "modernbert": (
            ModernBertConfig(
                **sizes, **wide, local_attention=4, cls_token_id=1, sep_token_id=2, num_labels=2
            ),
            AutoModelForSequenceClassification,
        ),
    }
    for name, (config, maker) in made.items():
        torch.manual_seed(0)
        maker.from_config(config).save_pretrained(folder / name)
    return {name: str(folder / name) for name in made}


def vit(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "image_size": 16, "patch_size": 4}
    config = ViTConfig(num_hidden_layers=2, num_attention_heads=2, num_channels=1, **sizes)
    ViTForImageClassification(config).save_pretrained(folder)
    return folder


def resnet(folder: Path) -> Path:
    torch.manual_seed(0)
    config = ResNetConfig(
        num_channels=1, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic"
    )
    ResNetForImageClassification(config).save_pretrained(folder)
    return folder


def speakers_frame(speakers: int = 3, each: int = 20) -> pl.DataFrame:
    """Texts of 2 to 6 words by speaker, and whether each has the word w0."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(speakers):
        own = rng.permutation(WORDS)[:8]
        for _ in range(each):
            said = rng.choice([*own, "w0"], int(rng.integers(2, 7)))
            mood = "yes" if "w0" in said else "no"
            rows.append({"speaker": f"s{k}", "text": " ".join(said), "mood": mood})
    return pl.DataFrame(rows)
