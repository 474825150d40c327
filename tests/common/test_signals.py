import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from parquet_loader.common import in_order


class Buffer:
    """Stands for the memory of a job that fails."""


@pytest.mark.parametrize("failing", [0, 3])
def test_an_error_of_a_pool_releases_the_memory_of_its_job_without_a_garbage_collection(failing: int) -> None:
    buffers: list[weakref.ref[Buffer]] = []

    def work(number: int) -> int:
        buffer = Buffer()
        buffers.append(weakref.ref(buffer))
        if number == failing:
            raise ValueError(number)
        return number

    done: list[int] = []
    gc.disable()
    try:
        with ThreadPoolExecutor(2) as pool:
            with pytest.raises(ValueError, match=str(failing)) as raised:
                done.extend(in_order(pool, work, range(6)))
            del raised
        alive = [reference for reference in buffers if reference() is not None]
    finally:
        gc.enable()
    assert not alive
    assert done == list(range(failing))
