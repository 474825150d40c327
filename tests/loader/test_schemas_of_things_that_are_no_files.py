"""`Schema.infer` names `from_frame` for what is a frame, and no error shows the rows of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from parquet_loader import ConfigurationError, Schema, rewrite_dataset


@pytest.mark.parametrize("frame", [pd.DataFrame({"a": [1]}), {"a": [1]}, pa.table({"a": [1]})])
def test_infer_sends_frames_to_from_frame(frame: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"Schema.infer: the source is a .*; Schema.from_frame\(frame\)"
    ) as error:
        Schema.infer(frame)
    assert "\n" not in str(error.value)


def test_a_frame_in_the_place_of_a_path_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        rewrite_dataset(pd.DataFrame({"a": range(100)}), tmp_path / "copy")
    assert len(str(error.value)) < 200
    assert "\n" not in str(error.value)
