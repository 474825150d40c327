"""Damaged images and recordings never crash the process: they are decoded, or refused."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("kind", "packages"), [("image", ["PIL"]), ("audio", ["soundfile", "soxr", "av"]), ("video", ["av"])]
)
@pytest.mark.parametrize("mutations", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_media_are_decoded_or_refused(kind: str, packages: list[str], mutations: int) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install '.[images,audio,video]'")
    command = [sys.executable, "-m", "tests.support.fuzz_media", kind, str(mutations), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = {name: int(count) for name, count in re.findall(r"'(\w+)': (\d+)", done.stdout.split("\n")[0])}
    assert sum(counts.values()) == mutations
    assert min(counts["decoded"], counts["refused"]) > mutations / 10
