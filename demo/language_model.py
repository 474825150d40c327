"""Train a small GPT on Python's own documentation, stop in the middle, and resume with the same losses.

python -m demo.language_model                    a few minutes on two CPUs
python -m demo.language_model --steps 1000       a longer run
"""

from __future__ import annotations

import argparse
import ast
import json
import pydoc_data.topics
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn

from parquet_loader import TokenizerOptions, TokenLoader, write_dataset

LENGTH = 256
BATCH_TOKENS = 8 * LENGTH
VOCABULARY = 4096
END = "<|end|>"
SHORTEST_TEXT = 200


def documents() -> Iterator[dict[str, str]]:
    """Yield the topics of `help()` and the docstrings of the standard library: real text, under Python's licence."""
    for topic, text in sorted(pydoc_data.topics.topics.items()):
        yield {"text": text, "source": f"topic {topic}"}
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if name.startswith(("site-packages", "dist-packages", "lib2to3/tests", "test/")):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # for example, a file for another version of Python
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) >= SHORTEST_TEXT:
                    yield {"text": text, "source": name}


def trained_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Train and return a byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Block(nn.Module):
    """A transformer block: attention within documents, and two dense layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_dense = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Return the hidden states ``[B, L, width]``; `allowed` is bool ``[B, 1, L, L]``."""
        rows, length, width = hidden.shape
        qkv = self.qkv(self.before_attention(hidden)).view(rows, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        dense: Tensor = self.dense(self.before_dense(hidden))
        return hidden + dense


class Gpt(nn.Module):
    """A GPT whose first and last layer share their weights."""

    def __init__(self, vocabulary: int, length: int, width: int = 128, heads: int = 4, blocks: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.last = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the mean loss of a batch of `TokenLoader`."""
        at = batch["document_ids"]
        allowed = (at[:, :, None] == at[:, None, :]).tril()[:, None]  # earlier tokens of the same document
        hidden = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        for block in self.blocks:
            hidden = block(hidden, allowed)
        logits = self.last(hidden) @ self.tokens.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


class Run:
    """A model, its optimizer and its loader, which share one checkpoint."""

    def __init__(self, data: Path, tokenizer: Tokenizer, length: int, batch_tokens: int) -> None:
        torch.manual_seed(0)
        self.model = Gpt(tokenizer.get_vocab_size(), length)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)
        self.loader = TokenLoader(
            data,
            "text",
            tokenizer=TokenizerOptions(tokenizer, eos=END),
            length=length,
            batch_tokens=batch_tokens,
            shuffle=True,
            drop_last=True,
            memory_limit="256MiB",
            num_threads=1,
        )
        self.step = 0

    def losses(self, steps: int) -> Iterator[float]:
        """Train up to step `steps`, over as many epochs as necessary; yield the loss of each step."""
        while self.step < steps:
            for batch in self.loader:
                loss = self.model(batch)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step += 1
                yield loss.item()
                if self.step == steps:
                    return

    def state(self) -> dict[str, Any]:
        """Return the checkpoint."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "step": self.step,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.step = state["step"]


def train(
    folder: Path,
    texts: list[dict[str, str]],
    *,
    steps: int,
    vocabulary: int = VOCABULARY,
    length: int = LENGTH,
    batch_tokens: int = BATCH_TOKENS,
) -> tuple[list[float], list[float]]:
    """Train, with a checkpoint in the middle; then train the second half again from the checkpoint.

    Returns:
        The losses of the whole run, and those of the resumed half.
    """
    write_dataset(iter(texts), folder / "documents", mode="overwrite")
    tokenizer = trained_tokenizer([document["text"] for document in texts], vocabulary)
    run = Run(folder / "documents", tokenizer, length, batch_tokens)
    with run.loader:
        plan = run.loader.plan()
        print(
            f"{plan.documents:,} documents, {plan.tokens:,} tokens of a vocabulary of {tokenizer.get_vocab_size():,}; "
            f"{plan.sequences:,} sequences of {length}, {plan.fill:.2%} filled; {plan.steps} steps per epoch"
        )
        losses, began = [], time.perf_counter()
        for loss in run.losses(steps):
            losses.append(loss)
            if len(losses) == steps // 2:
                torch.save(run.state(), folder / "checkpoint.pt")
            if len(losses) % max(1, steps // 10) == 0:
                seconds = time.perf_counter() - began
                print(f"step {len(losses):4}: loss {loss:.3f}, {len(losses) * batch_tokens / seconds:,.0f} tokens/s")
        stats = run.loader.stats()
        print(f"the last epoch took {stats.seconds:.1f} s, and waited {stats.wait_s:.2f} s of it for batches")
    resumed = Run(folder / "documents", tokenizer, length, batch_tokens)
    with resumed.loader:
        state = torch.load(folder / "checkpoint.pt")
        resumed.load(state)
        nbytes = len(json.dumps(state["loader"]))
        print(f"resumed after step {resumed.step}, from a loader's state of {nbytes} bytes")
        again = list(resumed.losses(steps))
    return losses, again


def main() -> None:
    """Train, and compare the losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo/lm"), help="where data and checkpoint are written")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    losses, again = train(arguments.folder, list(documents()), steps=arguments.steps)
    difference = max(abs(a - b) for a, b in zip(losses[-len(again) :], again, strict=True))
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; resumed to {again[-1]:.3f}")
    print(f"the {len(again)} losses after the stop differ by at most {difference:.1e}")
    if difference > 1e-3:
        raise SystemExit("the resumed run has other losses")


if __name__ == "__main__":
    main()
