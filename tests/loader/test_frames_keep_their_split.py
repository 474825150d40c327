"""A frame that is written to the cache again, as by another process, has the same splits, order and states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from parquet_loader import WriteOptions, from_pandas, split_rows

FRAME = pd.DataFrame({"id": np.arange(1000), "x": np.random.default_rng(0).random(1000)})
SMALL = WriteOptions(row_group_bytes="1KiB", file_bytes="4KiB")


def ids(cache: Path, **options: Any) -> list[int]:
    with from_pandas(FRAME, 100, cache_dir=cache, write_options=SMALL, **options) as loader:
        found = [row for batch in loader for row in batch["id"].tolist()]
    loader.delete()
    return found


def test_both_sides_of_one_cache_hold_all_rows(tmp_path: Path) -> None:
    training, validation = (ids(tmp_path, filters=split_rows(*part)) for part in ((0, 0.8), (0.8, 1)))
    assert sorted(training + validation) == list(range(1000))


def test_a_frame_written_again_is_split_in_the_same_way(tmp_path: Path) -> None:
    training = ids(tmp_path / "first", filters=split_rows(0, 0.8))
    validation = ids(tmp_path / "second", filters=split_rows(0.8, 1))
    assert sorted(training + validation) == list(range(1000))


def test_a_state_resumes_with_the_frame_written_again(tmp_path: Path) -> None:
    with from_pandas(FRAME, 100, cache_dir=tmp_path / "first", shuffle=True, write_options=SMALL) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch["id"].tolist() for batch in batches]
    loader.delete()
    with from_pandas(FRAME, 100, cache_dir=tmp_path / "second", shuffle=True, write_options=SMALL) as loader:
        loader.load_state_dict(state)
        assert [batch["id"].tolist() for batch in loader] == rest
    loader.delete()


def test_frames_of_other_content_have_other_names(tmp_path: Path) -> None:
    with (
        from_pandas(FRAME, 100, cache_dir=tmp_path) as one,
        from_pandas(FRAME.iloc[:500], 100, cache_dir=tmp_path) as other,
    ):
        names = [{path.name for path in Path(loader.path).iterdir()} for loader in (one, other)]
        assert not names[0] & names[1]
    assert one.delete()
    assert other.delete()
