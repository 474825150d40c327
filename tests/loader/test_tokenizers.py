"""`TokenLoader` over text: the same sequences as over stored tokens, from any form of tokenizer."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    ConfigurationError,
    DataError,
    OutputOptions,
    PerformanceWarning,
    ResumeError,
    SchemaError,
    Shard,
    TokenizerOptions,
    TokenLoader,
    UnsupportedError,
)
from parquet_loader.loader.tokens.tokenizing import DocumentEncoder

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install '.[tokenizers]'")

WORDS = "the loader reads rows shuffles windows batch épochs 日本語 naïve 🙂 tokens packs".split()  # noqa: SIM905
ARGUMENTS = dict[str, Any](
    length=32,
    batch_size=4,
    shuffle=True,
    seed=3,
    window_rows=40,
    output_options=OutputOptions(format="numpy"),
    carry=["number"],
)


def texts() -> list[str]:
    chosen = random.Random(0)
    return ["", "🙂", *(" ".join(chosen.choices(WORDS, k=chosen.randrange(60))) for _ in range(150))]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(texts(), trainer)
    return made


def write(folder: Path, tokenizer: Any) -> None:
    """Write the texts with their tokens: `<s>`, those of the text, `</s>`."""
    ids = [[0, *tokenizer.encode(text).ids, 1] for text in texts()]
    table = pa.table({"text": texts(), "ids": ids, "number": range(len(ids)), "count": [len(row) for row in ids]})
    folder.mkdir()
    for number in range(2):
        pq.write_table(table.slice(number * 90, 90), folder / f"{number}.parquet", row_group_size=25)


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(one, other, strict=True))
    return bool(pairs) and all(np.array_equal(a[name], b[name]) for a, b in pairs for name in a)


def test_text_gives_the_sequences_of_its_tokens(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with TokenLoader(tmp_path / "d", "ids", **ARGUMENTS) as loader:
        expected = [list(loader) for _ in range(2)]
        figures = loader.plan()
    cropping = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    cropping.enable_truncation(5)
    cropping.enable_padding(length=100)
    for given in (tokenizer, str(tmp_path / "tokenizer.json"), tmp_path / "tokenizer.json", cropping):
        for options in (TokenizerOptions(given, "<s>", 1), TokenizerOptions(given, 0, "</s>")):
            with TokenLoader(tmp_path / "d", "text", tokenizer=options, num_threads=3, **ARGUMENTS) as loader:
                assert loader.plan().tokens == figures.tokens
                for epoch in expected:
                    assert same(loader, epoch)
    assert cropping.truncation is not None  # the caller's tokenizer stays as it is


def test_a_window_of_several_chunks_is_encoded_in_order(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d", tokenizer)
    with TokenLoader(tmp_path / "d", "ids", **ARGUMENTS) as loader:
        expected = list(loader)
    monkeypatch.setattr("parquet_loader.loader.tokens.tokenizing._CHUNK_BYTES", 300)
    options = TokenizerOptions(tokenizer, bos=0, eos=1)
    with TokenLoader(tmp_path / "d", "text", tokenizer=options, num_threads=4, **ARGUMENTS) as loader:
        assert same(loader, expected)


def test_lengths_are_those_of_a_column_and_are_checked(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    options = TokenizerOptions(tokenizer, bos=0, eos=1)
    with TokenLoader(tmp_path / "d", "ids", **ARGUMENTS) as loader:
        expected = list(loader)
    with TokenLoader(tmp_path / "d", "text", tokenizer=options, lengths="count", **ARGUMENTS) as loader:
        assert same(loader, expected)
    with (
        TokenLoader(tmp_path / "d", "text", tokenizer=tokenizer, lengths="count", **ARGUMENTS) as loader,
        pytest.raises(DataError, match=r"parquet, row group \d+, row \d+ .*'count' says"),
    ):
        next(iter(loader))


def test_counts_are_kept_for_the_same_files_rows_and_tokenizer(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d", tokenizer)
    counted: list[int] = []
    count = DocumentEncoder.counts

    def counts(self: DocumentEncoder, some: Any) -> Any:
        counted.append(len(some))
        return count(self, some)

    monkeypatch.setattr(DocumentEncoder, "counts", counts)
    cache = tmp_path / "cache" / "lengths"

    def delivered(**arguments: Any) -> tuple[int, Any]:
        """Return how many documents were counted, and the batches."""
        counted.clear()
        options = TokenizerOptions(tokenizer, bos=0, eos=arguments.pop("eos", 1), cache=cache)
        with TokenLoader(tmp_path / "d", "text", tokenizer=options, **{**ARGUMENTS, **arguments}) as loader:
            return sum(counted), list(loader)

    documents, expected = delivered()
    assert documents == len(texts())
    (kept,) = cache.iterdir()
    again, batches = delivered()
    assert again == 0
    assert same(batches, expected)
    others: list[dict[str, Any]] = [{"eos": 2}, {"filters": [("number", "<", 100)]}]
    for number, other in enumerate(others, 2):
        assert delivered(**other)[0] > 0
        assert delivered(**other)[0] == 0
        assert len(list(cache.iterdir())) == number
    for content in (b"", kept.read_bytes()[:-9]):
        kept.write_bytes(content)
        again, batches = delivered()
        assert again == documents
        assert same(batches, expected)
    pq.write_table(pq.read_table(tmp_path / "d" / "1.parquet").slice(1), tmp_path / "d" / "1.parquet")
    assert delivered()[0] == documents - 1


def test_counts_that_cannot_be_kept_are_a_warning(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    (tmp_path / "file").write_text("")
    options = TokenizerOptions(tokenizer, cache=tmp_path / "file" / "lengths")
    with (
        pytest.warns(PerformanceWarning, match="cannot be kept"),
        TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS) as loader,
    ):
        assert loader.plan().steps == len(list(loader)) > 0


def test_ranks_states_and_pickles_are_as_for_tokens(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    options = TokenizerOptions(tokenizer, bos="<s>", eos="</s>")
    state: dict[str, Any] = {}
    for rank in range(2):
        arguments = {**ARGUMENTS, "shard": Shard(rank, 2)}
        with TokenLoader(tmp_path / "d", "ids", **arguments) as loader:
            expected = list(loader)
        with TokenLoader(tmp_path / "d", "text", tokenizer=options, **arguments) as loader:
            batches = iter(loader)
            first = [next(batches) for _ in range(3)]
            state = loader.state_dict()
            loader.reset()
            loader.load_state_dict(state)
            with pickle.loads(pickle.dumps(loader)) as copy:
                assert same([*first, *copy], expected)
            assert same([*first, *loader], expected)
    with (
        TokenLoader(tmp_path / "d", "text", tokenizer=tokenizer, **{**ARGUMENTS, "shard": Shard(1, 2)}) as other,
        pytest.raises(ResumeError, match="tokenizer"),
    ):
        other.load_state_dict(state)


def test_wrong_uses_say_what_to_do(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    (tmp_path / "broken.json").write_text("{}")
    drops = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [], dropout=0.5))
    wrong: list[tuple[type[Exception], str, str, dict[str, Any]]] = [
        (SchemaError, "pass tokenizer= for text", "text", {"lengths": "count"}),
        (SchemaError, "column of text", "ids", {"tokenizer": tokenizer, "lengths": "count"}),
        (ConfigurationError, "no such token", "text", {"tokenizer": TokenizerOptions(tokenizer, bos="<none>")}),
        (ConfigurationError, "no such token", "text", {"tokenizer": TokenizerOptions(tokenizer, eos=-1)}),
        (ConfigurationError, "expected a tokenizers.Tokenizer", "text", {"tokenizer": 3}),
        (ConfigurationError, "not a tokenizer.json", "text", {"tokenizer": tmp_path / "broken.json"}),
        (ConfigurationError, "not a tokenizer.json", "text", {"tokenizer": "missing.json"}),
        (ConfigurationError, "dropout", "text", {"tokenizer": drops}),
        (UnsupportedError, "threads of this process", "text", {"tokenizer": tokenizer, "isolation": "process"}),
    ]
    for kind, text, column, arguments in wrong:
        with pytest.raises(kind, match=text):
            TokenLoader(tmp_path / "d", column, **{**ARGUMENTS, **arguments})
