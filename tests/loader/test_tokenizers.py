"""`TokenLoader` over text: the same sequences as over stored tokens, from any form of tokenizer."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    ConfigurationError,
    DataError,
    OpenFilesError,
    OutputOptions,
    ParquetDataset,
    Ragged,
    ResumeError,
    Schema,
    SchemaError,
    Shard,
    SourceError,
    SystemReadError,
    TokenizerOptions,
    TokenLoader,
    UnsupportedError,
)
from parquet_loader.loader.tokens.documents import BATCH_KEYS
from parquet_loader.loader.tokens.tokenizing import DocumentEncoder
from tests.support.gloo import on_ranks

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install '.[tokenizers]'")

WORDS = "the loader reads rows shuffles windows batch épochs 日本語 naïve 🙂 tokens packs".split()  # noqa: SIM905
ROW_GROUP_ROWS = 10
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
    """Write the texts with their tokens: `<s>`, those of the text, `</s>`.

    Row groups are small enough for windows of whole ones: how many share a window depends on the bytes of the column.
    """
    ids = [[0, *tokenizer.encode(text).ids, 1] for text in texts()]
    table = pa.table({"text": texts(), "ids": ids, "number": range(len(ids)), "count": [len(row) for row in ids]})
    folder.mkdir()
    for number in range(2):
        pq.write_table(table.slice(number * 90, 90), folder / f"{number}.parquet", row_group_size=ROW_GROUP_ROWS)


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


def pieces_of(batches: Any, *columns: str) -> list[Any]:
    """Return the tokens of each piece, with the values of carried columns, in an order of their own."""
    found = []
    for batch in batches:
        carried = [batch[name] for name in columns]
        values = [c.to_list() if isinstance(c, Ragged) else c.tolist() for c in carried]
        for number in range(len(batch["seq_lens"])):
            tokens = batch["input_ids"][batch["document_ids"] == number].tolist()
            found.append(repr((tokens, [column[number] for column in values])))
    return sorted(found)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of documents of all calls of tokenizers."""
    calls: list[int] = []
    encode = DocumentEncoder.__call__

    def counted(self: DocumentEncoder, texts: Any) -> Any:
        calls.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(DocumentEncoder, "__call__", counted)
    return calls


def test_a_cache_holds_the_tokens_of_the_same_files_rows_and_tokenizer(
    tmp_path: Path, tokenizer: Any, encoded: list[int]
) -> None:
    write(tmp_path / "d", tokenizer)
    with TokenLoader(tmp_path / "d", "ids", **ARGUMENTS) as loader:
        expected = pieces_of(loader, "number")
    cache = tmp_path / "cache" / "tokens"

    def open_loader(**arguments: Any) -> TokenLoader:
        encoded.clear()
        options = TokenizerOptions(tokenizer, bos=0, eos=arguments.pop("eos", 1), cache=cache)
        return TokenLoader(tmp_path / "d", "text", tokenizer=options, **{**ARGUMENTS, **arguments})

    for documents in (len(texts()), 0):
        with open_loader() as loader:
            batches = list(loader)
            assert pieces_of(batches, "number") == expected
            assert sum(encoded) == documents
            for number, batch in enumerate(batches):
                own = loader.lineage(number, 0)
                files = [90 * int(Path(path).stem) for path in own.paths]
                assert batch["number"].tolist() == (files + ROW_GROUP_ROWS * own.row_groups + own.rows).tolist()
    (kept,) = cache.iterdir()
    others: list[dict[str, Any]] = [{"eos": 2}, {"filters": [("number", "<", 100)]}, {"carry": None}]
    for number, other in enumerate(others, 2):
        for is_new in (True, False):
            with open_loader(**other) as loader:
                assert (sum(encoded) > 0) == is_new
                assert len(list(loader)) == len(loader)
        assert len(list(cache.iterdir())) == number
    dataset = ParquetDataset(tmp_path / "d", filters=[("number", "<", 50)])
    options = TokenizerOptions(tokenizer, bos=0, eos=1, cache=cache)
    for _ in range(2):
        with TokenLoader(dataset, "text", tokenizer=options, **ARGUMENTS) as loader:
            assert {int(n) for batch in loader for n in batch["number"]} == set(range(50))
    (file,) = kept.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    (cache / f".{kept.name}.tmp").mkdir()  # of a process that was killed
    with open_loader() as loader:
        assert sum(encoded) == len(texts())
        assert pieces_of(loader, "number") == expected
    assert not list(cache.glob(".*"))
    pq.write_table(pq.read_table(tmp_path / "d" / "1.parquet").slice(1), tmp_path / "d" / "1.parquet")
    with open_loader():
        assert sum(encoded) == len(texts()) - 1


@pytest.mark.parametrize("refused", ["directory", "file"])
def test_a_cache_that_cannot_be_read_for_now_is_not_deleted(
    tmp_path: Path, tokenizer: Any, encoded: list[int], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Failed on c4ba27e2: the tokens were deleted, though another process may use them, and made again."""
    write(tmp_path / "d", tokenizer)
    options = TokenizerOptions(tokenizer, cache=tmp_path / "cache")
    with TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS) as loader:
        expected = pieces_of(loader, "number")
    (kept,) = (tmp_path / "cache").iterdir()
    listdir = os.listdir

    def refuse(path: Any) -> list[str]:
        if path == kept:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listdir(path)

    def no_descriptor(*_: Any, **__: Any) -> None:
        raise OpenFilesError("no free file descriptor is left")

    encoded.clear()
    with monkeypatch.context() as patch:
        if refused == "directory":
            patch.setattr(os, "listdir", refuse)
        else:
            patch.setattr("parquet_loader.loader.tokens.token_cache.ListedDataset", no_descriptor)
        with pytest.raises((SystemReadError, OpenFilesError), match=f"{kept}: .*Permission denied|no free file"):
            TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS)
    with TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS) as loader:
        assert pieces_of(loader, "number") == expected
    assert encoded == []


def test_other_tokens_are_written_to_a_cache_at_the_same_time(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d", tokenizer)
    begun, done = threading.Event(), threading.Event()
    encode = DocumentEncoder.__call__

    def paused(self: DocumentEncoder, texts: Any) -> Any:
        if self.identity == slow_identity:
            begun.set()
            assert done.wait(60)
        return encode(self, texts)

    def deliver(bos: int) -> int:
        options = TokenizerOptions(tokenizer, bos=bos, cache=tmp_path / "cache")
        with TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS) as loader:
            return len(list(loader))

    with TokenLoader(tmp_path / "d", "text", tokenizer=TokenizerOptions(tokenizer, bos=0), **ARGUMENTS) as loader:
        slow_identity = loader._tokenizer
    monkeypatch.setattr(DocumentEncoder, "__call__", paused)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(deliver, 0)
        assert begun.wait(60)
        other = pool.submit(deliver, 1)
        try:
            assert other.result(60)
            assert not slow.done()
        finally:
            done.set()
        assert slow.result()
    assert len(list((tmp_path / "cache").glob("tokens-*"))) == 2
    assert not list((tmp_path / "cache").glob(".*"))


def test_lineage_of_a_cache_of_many_files_names_the_rows_of_the_text(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    options = TokenizerOptions(tokenizer, bos=0, eos=1, cache=tmp_path / "cache")
    with TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS) as loader:
        expected = pieces_of(loader, "number")
    (file,) = (tmp_path / "cache").glob("*/*.parquet")
    tokens = pq.read_table(file)
    for number in range(12):  # as the writer divides more tokens than these
        part = file.with_name(file.name.replace("-0.parquet", f"-{number}.parquet"))
        pq.write_table(tokens.slice(number * 13, 13), part)
    with TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS) as loader:
        batches = list(loader)
        lineage = [loader.lineage(number, 0) for number in range(len(batches))]
    assert pieces_of(batches, "number") == expected
    for batch, own in zip(batches, lineage, strict=True):
        files = [90 * int(Path(path).stem) for path in own.paths]
        assert batch["number"].tolist() == (files + ROW_GROUP_ROWS * own.row_groups + own.rows).tolist()


def test_the_members_of_a_struct_are_carried_from_a_cache(tmp_path: Path, tokenizer: Any) -> None:
    pq.write_table(pa.table({"text": ["rows"], "meta": [{"stars": 3, "tag": "a"}]}), tmp_path / "a.parquet")
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        options = TokenizerOptions(tokenizer, cache=cache)
        with TokenLoader(
            tmp_path / "a.parquet", "text", tokenizer=options, length=8, batch_size=1, carry=["meta"]
        ) as loader:
            (batch,) = loader
        assert (batch["meta.stars"].tolist(), batch["meta.tag"].to_list()) == ([3], ["a"])


def test_columns_that_are_carried_from_a_cache_are_those_of_the_files(tmp_path: Path, tokenizer: Any) -> None:
    rows = range(120)
    table = pa.table(
        {
            "text": [f"rows {n} batch" * (n % 9) for n in rows],
            "words": ["" if n % 7 == 0 else f"w{n}" for n in rows],
            "score": pa.array([None if n % 5 == 0 else n / 4 for n in rows], pa.float32()),
            "kind": pa.array([f"k{n % 3}" for n in rows]).dictionary_encode(),
            "flag": [n % 2 == 0 for n in rows],
            "day": pa.array([n * 86400 for n in rows], pa.timestamp("s")),
            "vector": pa.array([[n, n + 1] for n in rows], pa.list_(pa.int16(), 2)),
            "numbers": [list(range(n % 4)) for n in rows],
            "raw": [bytes([n]) * (n % 3) for n in rows],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    schema = Schema.infer(tmp_path / "a.parquet", nulls="mask")
    carry = [name for name in schema if name != "text"]
    arguments = {**ARGUMENTS, "carry": carry, "schema": schema}
    with (
        TokenLoader(tmp_path / "a.parquet", "text", tokenizer=tokenizer, **arguments) as plain,
        TokenLoader(
            tmp_path / "a.parquet", "text", tokenizer=TokenizerOptions(tokenizer, cache=tmp_path / "c"), **arguments
        ) as cached,
    ):
        own, others = list(plain), list(cached)
        assert list(own[0]) == list(others[0])
        assert [getattr(a, "dtype", None) for a in own[0].values()] == [
            getattr(a, "dtype", None) for a in others[0].values()
        ]
        names = [name for name in own[0] if name not in BATCH_KEYS]
        assert {"score_valid", "kind", "numbers", "raw"} <= set(names)
        assert pieces_of(own, *names) == pieces_of(others, *names)


def test_loaders_that_need_the_same_tokens_tokenize_once(tmp_path: Path, tokenizer: Any, encoded: list[int]) -> None:
    write(tmp_path / "d", tokenizer)
    options = TokenizerOptions(tokenizer, cache=tmp_path / "cache")

    def deliver(rank: int) -> list[Any]:
        arguments = {**ARGUMENTS, "shard": Shard(rank, 3)}
        with TokenLoader(tmp_path / "d", "text", tokenizer=options, **arguments) as loader:
            return list(loader)

    with ThreadPoolExecutor(3) as pool:
        of_ranks = list(pool.map(deliver, range(3)))
    assert sum(encoded) == len(texts())
    assert len({len(batches) for batches in of_ranks}) == 1
    with TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS) as loader:
        alone = sum(int(batch["seq_lens"].sum()) for batch in loader)
    assert sum(int(b["seq_lens"].sum()) for batches in of_ranks for b in batches) >= alone


def test_a_directory_that_another_process_renames_is_made_again(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d", tokenizer)
    make, renamed = os.mkdir, list[str]()

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        if str(path).endswith(".tmp") and not renamed:
            renamed.append(str(path))
            raise FileExistsError(errno.EEXIST, "it was there, and is renamed now", str(path))
        make(path, *args, **kwargs)

    monkeypatch.setattr(os, "mkdir", mkdir)
    options = TokenizerOptions(tokenizer, cache=tmp_path / "cache")
    with TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS) as loader:
        assert sum(int(batch["seq_lens"].sum()) for batch in loader)
    assert len(renamed) == 1


@pytest.mark.parametrize("is_link", [False, True])
def test_a_cache_with_a_file_in_the_place_of_its_directory_is_refused(
    tmp_path: Path, tokenizer: Any, is_link: bool
) -> None:
    write(tmp_path / "d", tokenizer)
    options = TokenizerOptions(tokenizer, cache=tmp_path / "cache")
    with TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS):
        (made,) = (tmp_path / "cache").glob("tokens-*")
    shutil.rmtree(made)
    temporary = made.parent / f".{made.name}.tmp"
    if is_link:
        temporary.symlink_to(tmp_path / "missing")
    else:
        temporary.touch()
    with pytest.raises(SourceError, match="name a directory that can be read and written"):
        TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS)


def test_ranks_with_caches_of_their_own_deliver_the_sequences_of_a_shared_one(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    script = """
    from pathlib import Path
    from parquet_loader import OutputOptions, TokenLoader, TokenizerOptions
    delivered = []
    for cache in ("shared", f"own-{rank}"):
        options = TokenizerOptions(Path(folder) / "tokenizer.json", cache=Path(folder) / cache)
        with TokenLoader(
            root, "text", tokenizer=options, length=32, batch_size=4, shuffle=True, window_rows=40,
            output_options=OutputOptions(format="numpy"),
        ) as loader:
            delivered.append([batch["input_ids"].tolist() for batch in loader])
    print(json.dumps(delivered))
    """
    of_ranks = on_ranks(2, str(tmp_path / "d"), script, tmp_path)
    assert all(shared == own for shared, own in of_ranks)
    assert of_ranks[0][0] != of_ranks[1][0]
    assert len(of_ranks[0][0]) == len(of_ranks[1][0])


def test_a_cache_that_one_rank_cannot_write_is_an_error_on_all(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "file").write_text("")
    script = """
    from pathlib import Path
    from parquet_loader import TokenLoader, TokenizerOptions
    options = TokenizerOptions(Path(folder) / "tokenizer.json", cache=Path(folder) / ("own", "file")[rank])
    try:
        TokenLoader(root, "text", tokenizer=options, length=32, batch_size=4)
    except ParquetLoaderError as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
    """
    first, second = on_ranks(2, str(tmp_path / "d"), script, tmp_path)
    assert second.startswith("SourceError: TokenizerOptions(cache=")
    assert first.startswith("SourceError: rank 1: TokenizerOptions(cache=")


def test_a_state_continues_when_the_tokens_are_made_again(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)

    def open_loader(cache: str) -> TokenLoader:
        options = TokenizerOptions(tokenizer, cache=tmp_path / cache)
        return TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS)

    with open_loader("one") as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        rest = list(batches)
        loader.reset()
        loader.load_state_dict(state)
        with pickle.loads(pickle.dumps(loader)) as copied:
            assert same(rest, copied)
    with open_loader("two") as loader:
        loader.load_state_dict(state)
        assert same(rest, loader)
    with TokenLoader(tmp_path / "d", "text", tokenizer=tokenizer, **ARGUMENTS) as text, pytest.raises(ResumeError):
        text.load_state_dict(state)


def test_filters_that_are_printed_alike_have_caches_of_their_own(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    options = TokenizerOptions(tokenizer, cache=tmp_path / "cache")
    delivered, filters = [], []
    for left_out in (12, 13):
        chosen = [number for number in range(2, 25) if number != left_out]
        filters.append(pc.field("number").isin(chosen))
        with TokenLoader(tmp_path / "d", "text", tokenizer=options, filters=filters[-1], **ARGUMENTS) as loader:
            delivered.append({number for batch in loader for number in batch["number"].tolist()})
    assert str(filters[0]) == str(filters[1])
    assert 13 in delivered[0] - delivered[1]
    assert 12 in delivered[1] - delivered[0]


def test_text_that_is_overwritten_by_other_text_of_the_same_length_is_tokenized_again(
    tmp_path: Path, tokenizer: Any
) -> None:
    options = TokenizerOptions(tokenizer, cache=tmp_path / "cache")
    arguments = {**ARGUMENTS, "carry": None}
    delivered, sizes = [], []
    for mtime_ns, word in ((1_000, "a"), (2_000, "b")):
        table = pa.table({"text": ["c", word, "c"] * 40})
        pq.write_table(table, tmp_path / "a.parquet", write_statistics=False, use_dictionary=False)
        os.utime(tmp_path / "a.parquet", ns=(mtime_ns, mtime_ns))
        sizes.append((tmp_path / "a.parquet").stat().st_size)
        with TokenLoader(tmp_path / "a.parquet", "text", tokenizer=options, **arguments) as loader:
            delivered.append({token for batch in loader for token in batch["input_ids"].ravel().tolist()})
    assert sizes[0] == sizes[1]  # the footers are equal, too
    assert delivered[0] != delivered[1]


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    write(tmp_path / "d", tokenizer)
    (tmp_path / "file").write_text("")
    options = TokenizerOptions(tokenizer, cache=tmp_path / "file" / "tokens")
    with pytest.raises(SourceError, match=r"cache=.*name a local directory that can be written"):
        TokenLoader(tmp_path / "d", "text", tokenizer=options, **ARGUMENTS)


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
        (SchemaError, "pass tokenizer= if it holds the text of documents", "text", {}),
        (SchemaError, "column of text", "ids", {"tokenizer": tokenizer, "lengths": "count"}),
        (SchemaError, "tokens='ids': expected a column of text", "ids", {"tokenizer": tokenizer}),
        (ConfigurationError, "no such token", "text", {"tokenizer": TokenizerOptions(tokenizer, bos="<none>")}),
        (ConfigurationError, "no such token", "text", {"tokenizer": TokenizerOptions(tokenizer, eos=-1)}),
        (ConfigurationError, "expected a tokenizers.Tokenizer", "text", {"tokenizer": 3}),
        (ConfigurationError, "expected a tokenizers.Tokenizer", "text", {"tokenizer": tokenizers.Tokenizer}),
        (
            ConfigurationError,
            "cache='s3://bucket/tokens': expected the path of a local directory",
            "text",
            {"tokenizer": TokenizerOptions(tokenizer, cache="s3://bucket/tokens")},
        ),
        (ConfigurationError, "not a tokenizer.json", "text", {"tokenizer": tmp_path / "broken.json"}),
        (ConfigurationError, "not a tokenizer.json", "text", {"tokenizer": "missing.json"}),
        (ConfigurationError, "dropout", "text", {"tokenizer": drops}),
        (
            ConfigurationError,
            "vocabulary is empty",
            "text",
            {"tokenizer": tokenizers.Tokenizer(tokenizers.models.BPE())},
        ),
        (UnsupportedError, "threads of this process", "text", {"tokenizer": tokenizer, "isolation": "process"}),
        (UnsupportedError, "leave boundaries out", "text", {"tokenizer": tokenizer, "boundaries": "ids"}),
    ]
    for kind, text, column, arguments in wrong:
        with pytest.raises(kind, match=text):
            TokenLoader(tmp_path / "d", column, **{**ARGUMENTS, **arguments})
