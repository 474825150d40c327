"""Runs the tutorials as a new user would: in an empty environment, from a wheel, each page in an empty directory.

    python release/tutorials.py dist/*manylinux*x86_64.whl [--pages docs/quickstart.md ...] [--environment DIRECTORY]

The Python and shell blocks of a page run in order, as one script. Before that, the first `pip install` of the page is
run, with the wheel in place of the package's name.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/quickstart.md", *(f"docs/tutorials/{name}.md" for name in (
    "first_training", "object_store", "lakehouse", "language_model", "growing_store", "many_gpus")),
    "docs/image_folders.md")  # fmt: skip
FENCE = re.compile(r"^```(?P<language>python|sh)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"pip install ([^\n`]*)")


def installs(text: str, wheel: Path) -> list[str]:
    """Return the arguments of the first `pip install` of a page, with the wheel for the package."""
    found = INSTALL.search(text)
    if found is None:
        return [str(wheel)]
    words = [word.strip("'\"") for word in found.group(1).split()]
    return [re.sub(r"^(torch-parquet-loader|\.)(?=\[|$)", lambda _: str(wheel), word) for word in words]


def script(text: str) -> str:
    """Return the blocks of a page as one script."""
    parts = []
    for block in FENCE.finditer(text):
        code = block["code"]
        if block["language"] == "python":
            parts.append(code)
        elif not code.lstrip().startswith("pip install"):
            parts.append(f"import subprocess\nsubprocess.run(['bash', '-ec', {code!r}], check=True)\n")
    return "\n".join(parts)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--pages", nargs="+", default=PAGES)
    parser.add_argument("--environment", type=Path, help="Keep the environment here; default: a temporary one.")
    given = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        environment = (given.environment or Path(temporary, "environment")).absolute()
        if not (environment / "bin").is_dir():
            venv.create(environment, with_pip=True)
        paths = os.pathsep.join([str(environment / "bin"), "/usr/bin", "/bin"])
        variables = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
        variables |= {"PATH": paths, "VIRTUAL_ENV": str(environment)}
        for page in given.pages:
            text = (ROOT / page).read_text(encoding="utf-8")
            directory = Path(temporary, Path(page).stem)
            directory.mkdir()
            command = ["pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
            python = str(environment / "bin" / "python")
            subprocess.run([python, "-m", *command, *installs(text, given.wheel.absolute())], check=True, env=variables)
            (directory / "page.py").write_text(script(text), encoding="utf-8")
            began = time.perf_counter()
            done = subprocess.run(
                [python, "page.py"], cwd=directory, env=variables, capture_output=True, text=True, check=False
            )
            print(f"{page}: status {done.returncode}, {time.perf_counter() - began:.1f} s", flush=True)
            if done.returncode:
                failed.append(page)
                print(done.stdout[-2000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
