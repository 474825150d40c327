"""Folders of images become Parquet with the same bytes, whatever interrupts the import, and say what they left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ParquetDataset, Scalar, SourceError, WriteError, WriteOptions
from parquet_loader.errors import ConfigurationError, SystemReadError
from parquet_loader.schema import encode_array
from parquet_loader.write.imports import import_images

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff\xe0"
SMALL = WriteOptions(row_group_bytes=300, file_bytes=1000)


def image(number: int, nbytes: int = 100) -> bytes:
    return (JPEG if number % 2 else PNG) + np.random.default_rng(number).bytes(nbytes)


def folder_of(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def rows_of(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.glob("*.parquet"))
    assert {file.name for file in path.iterdir()} == {file.name for file in files}
    rows: list[dict[str, Any]] = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()
    return rows


CLASSES = {f"{name}/{number:02}.jpg": image(number + 100 * at) for at, name in enumerate("abc") for number in range(9)}


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "photos", CLASSES)


def expected() -> list[dict[str, Any]]:
    return [{"image": data, "label": "abc".index(path[0]), "path": path} for path, data in sorted(CLASSES.items())]


def test_an_import_without_threads_is_a_system_error(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(SystemReadError, match=r"photos: the import: can't start new thread; allow the process more"):
        import_images(classes, tmp_path / "out")


def test_directories_are_classes_and_bytes_stay_as_they_are(classes: Path, tmp_path: Path) -> None:
    report = import_images(classes, tmp_path / "out", options=SMALL)
    assert rows_of(tmp_path / "out") == expected()
    assert (report.rows, report.files, report.resumed_rows) == (27, len(list((tmp_path / "out").iterdir())), 0)
    assert report.bytes_read == sum(map(len, CLASSES.values()))
    assert report.kinds == {"png": 15, "jpeg": 12}
    assert report.skipped == ()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "photos"]


def test_class_names_are_kept_in_the_schema_and_as_a_class_label(classes: Path, tmp_path: Path) -> None:
    import_images(classes, tmp_path / "out")
    label = ParquetDataset(str(tmp_path / "out")).schema["label"]
    assert isinstance(label, Scalar)
    assert tuple(label.names) == ("a", "b", "c")
    (file,) = (tmp_path / "out").iterdir()
    features = json.loads(pq.read_schema(file).metadata[b"huggingface"])["info"]["features"]
    assert features["label"] == {"_type": "ClassLabel", "names": ["a", "b", "c"]}
    assert features["image"] == {"_type": "Image"}


def test_imported_images_are_decoded_by_a_loader(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pixels = {f"{name}/x.png": np.full((4 + at, 5, 3), at, np.uint8) for at, name in enumerate("abc")}
    folder_of(tmp_path / "photos", {name: encode_array(array, "png") for name, array in pixels.items()})
    import_images(tmp_path / "photos", tmp_path / "out")
    (batch,) = ParquetDataset(str(tmp_path / "out")).batches(3)
    assert [np.asarray(image).tolist() for image in batch["image"]] == [a.tolist() for a in pixels.values()]
    assert batch["label"].tolist() == [0, 1, 2]


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", {"b.png": image(0), "a.JPG": image(1)})
    import_images(tmp_path / "photos", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [
        {"image": image(1), "path": "a.JPG"},
        {"image": image(0), "path": "b.png"},
    ]


def test_images_next_to_directories_have_no_labels_and_a_note_says_so(tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", {"b.png": image(0), "sub/a.jpg": image(1)})
    report = import_images(tmp_path / "photos", tmp_path / "out")
    assert [row["path"] for row in rows_of(tmp_path / "out")] == ["b.png", "sub/a.jpg"]
    assert "no label column" in report.notes[0]


def test_classes_hold_what_is_in_their_subdirectories(tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", {"b/deep/er/1.png": image(0), "b/0.png": image(2), "a/9.png": image(4)})
    import_images(tmp_path / "photos", tmp_path / "out")
    found = [(row["path"], row["label"]) for row in rows_of(tmp_path / "out")]
    assert found == [("a/9.png", 0), ("b/0.png", 1), ("b/deep/er/1.png", 1)]


def test_everything_left_out_is_counted_with_its_reason(classes: Path, tmp_path: Path) -> None:
    folder_of(
        classes,
        {
            "a/notes.txt": b"x",
            "a/.DS_Store": b"x",
            "b/empty.png": b"",
            "b/page.jpg": b"<html>not found</html>",
            "c/LICENSE": b"x",
            "empty_class/readme.md": b"x",
        },
    )
    (classes / "c" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (classes / "c" / "itself.jpg").symlink_to(classes / "c" / "itself.jpg")
    (classes / "top.jpg").symlink_to(classes / "top.jpg")
    (classes / "c" / "loop").symlink_to(classes)
    os.mkfifo(classes / "c" / "pipe.jpg")
    report = import_images(classes, tmp_path / "out")
    assert rows_of(tmp_path / "out") == expected()
    assert {(s.reason, s.count, s.examples) for s in report.skipped} == {
        ("not an image by its name (.txt)", 1, ("a/notes.txt",)),
        ("hidden", 1, ("a/.DS_Store",)),
        ("empty", 1, ("b/empty.png",)),
        ("the bytes are not those of an image", 1, ("b/page.jpg",)),
        ("not an image by its name (no extension)", 1, ("c/LICENSE",)),
        ("not an image by its name (.md)", 1, ("empty_class/readme.md",)),
        ("a link to nothing", 3, ("top.jpg", "c/gone.jpg", "c/itself.jpg")),
        ("a link to a directory above it", 1, ("c/loop",)),
        ("not a file", 1, ("c/pipe.jpg",)),
    }
    assert report.notes == ("'empty_class' holds no image, and is not a class",)


def test_a_folder_of_splits_is_refused_with_the_commands_to_run(tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", {"train/a/0.png": image(0), "val/a/1.png": image(0)})
    with pytest.raises(SourceError, match=r"train, val are splits.*import images .*/train OUT/train"):
        import_images(tmp_path / "photos", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["photos"]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_metadata_beside_the_images_becomes_columns(kind: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"file_name": "b.png", "text": "second, first", "score": 1.5},
        {"file_name": "sub/a.jpg", "text": "x", "score": None},
        {"file_name": "missing.jpg", "text": "y", "score": 2.0},
    ]
    if kind == "csv":
        text = 'file_name,text,score\nb.png,"second, first",1.5\nsub/a.jpg,x,\nmissing.jpg,y,2.0\n'
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    files = {"b.png": image(0), "sub/a.jpg": image(1), "c.png": image(2), f"metadata.{kind}": text.encode()}
    folder_of(tmp_path / "photos", files)
    report = import_images(tmp_path / "photos", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [
        {"image": image(0), "path": "b.png", "text": "second, first", "score": 1.5},
        {"image": image(1), "path": "sub/a.jpg", "text": "x", "score": None},
    ]
    assert {(s.reason, s.examples) for s in report.skipped} == {
        (f"named in metadata.{kind}, but not there", ("missing.jpg",)),
        (f"not named in metadata.{kind}", ("c.png",)),
    }


def test_columns_of_metadata_without_values_are_left_out_with_a_note(tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", {"a.png": image(0), "metadata.csv": b"file_name,x,y\na.png,,1\n"})
    report = import_images(tmp_path / "photos", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [{"image": image(0), "path": "a.png", "y": 1}]
    assert report.notes == ("column 'x' of metadata.csv holds no values, and is left out",)


def test_columns_of_metadata_with_one_name_are_refused(tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", {"a.png": image(0), "metadata.csv": b"file_name,x,x\na.png,1,2\n"})
    with pytest.raises(SourceError, match=r"metadata.csv: several columns have the name 'x'; rename them"):
        import_images(tmp_path / "photos", tmp_path / "out")


def test_metadata_may_name_files_that_begin_with_two_dots(tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", {"..a.png": image(0), "metadata.csv": b"file_name,x\n..a.png,1\n"})
    import_images(tmp_path / "photos", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [{"image": image(0), "path": "..a.png", "x": 1}]


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret.png", "sub/../../secret.png"])
def test_metadata_that_names_a_file_outside_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", {"metadata.csv": f"file_name,x\n{name},1\n".encode()})
    (tmp_path / "secret.png").write_bytes(image(0))
    with pytest.raises(SourceError, match="which is not in"):
        import_images(tmp_path / "photos", tmp_path / "out")


def test_names_that_are_not_utf8_are_imported(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/photos/\xff\xfe.png")).write_bytes(image(0))
    import_images(tmp_path / "photos", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [{"image": image(0), "path": "\\xff\\xfe.png"}]


def test_classes_of_one_name_after_escaping_are_refused(tmp_path: Path) -> None:
    for name in (b"\xff", b"\\xff"):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/photos/" + name))
        folder.mkdir(parents=True)
        (folder / "0.png").write_bytes(image(0))
    with pytest.raises(SourceError, match=r"photos: two directories become the class '\\\\xff' after bytes"):
        import_images(tmp_path / "photos", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_interrupted_at_any_step_the_same_call_finishes_with_the_same_files(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of the protocol forces something to the disk: each such call is interrupted once."""
    import_images(classes, tmp_path / "whole", options=SMALL)
    real, steps, resumed, at = os.fsync, 0, 0, 0
    while True:
        steps, at = 0, at + 1

        def interrupted(descriptor: int, at: int = at) -> None:
            nonlocal steps
            steps += 1
            if steps == at:
                raise KeyboardInterrupt
            real(descriptor)

        out = tmp_path / f"out{at}"
        monkeypatch.setattr(os, "fsync", interrupted)
        try:
            import_images(classes, out, options=SMALL)
            break
        except KeyboardInterrupt:
            pass
        except WriteError:  # the last one: everything is published, and the name is not forced to the disk
            pass
        monkeypatch.setattr(os, "fsync", real)
        if out.exists():
            assert contents(out) == contents(tmp_path / "whole")
        report = import_images(classes, out, options=SMALL)
        resumed += report.resumed_rows > 0
        assert (report.rows, report.bytes_read) == (27, sum(map(len, CLASSES.values())))
        assert contents(out) == contents(tmp_path / "whole")
        assert not (tmp_path / f".{out.name}.import").exists()
    assert at > 10
    assert resumed > 5


KILLED = """
import os, signal, sys
from parquet_loader.write import WriteOptions
from parquet_loader.write.imports import import_images
steps, real = int(sys.argv[3]), os.fsync
def fsync(descriptor):
    global steps
    steps -= 1
    if not steps:
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)
os.fsync = fsync
import_images(sys.argv[1], sys.argv[2], options=WriteOptions(row_group_bytes=300, file_bytes=1000))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.parametrize("step", [4, 9])
def test_killed_by_sigkill_the_same_call_finishes_with_the_same_files(step: int, classes: Path, tmp_path: Path) -> None:
    import_images(classes, tmp_path / "whole", options=SMALL)
    out = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", KILLED, classes, out, str(step)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    report = import_images(classes, out, options=SMALL)
    assert contents(out) == contents(tmp_path / "whole")
    assert report.rows == 27


def begun(classes: Path, out: Path, monkeypatch: pytest.MonkeyPatch, steps: int = 9) -> None:
    """Interrupt an import after its first files."""
    left = steps
    real = os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        import_images(classes, out, options=SMALL)
    monkeypatch.setattr(os, "fsync", real)


@pytest.mark.parametrize("change", ["another file", "another size", "another time", "one less"])
def test_a_folder_that_changed_before_the_position_is_refused(
    change: str, classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(classes, tmp_path / "out", monkeypatch)
    first = classes / "a" / "00.jpg"
    if change == "another file":
        (classes / "a" / "000.jpg").write_bytes(image(1))
    elif change == "another size":
        first.write_bytes(image(7, 200))
    elif change == "another time":
        os.utime(first, ns=(0, 0))
    else:
        first.unlink()
    with pytest.raises(SourceError, match="have changed since their import was interrupted"):
        import_images(classes, tmp_path / "out", options=SMALL)
    assert not (tmp_path / "out").exists()


def test_a_class_that_came_after_the_interruption_is_not_left_out(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(classes, tmp_path / "out", monkeypatch)
    folder_of(classes, {"d/0.jpg": image(1)})
    with pytest.raises(SourceError, match="changed since its import was interrupted; to start over, delete"):
        import_images(classes, tmp_path / "out", options=SMALL)


def test_an_import_without_a_finished_file_begins_anew_if_its_source_or_its_options_have_changed(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(classes, tmp_path / "out", monkeypatch, steps=4)
    assert (tmp_path / ".out.import" / "journal.jsonl").read_text().count("\n") == 1
    folder_of(classes, {"d/0.jpg": image(1)})
    report = import_images(classes, tmp_path / "out")
    assert (report.resumed_rows, report.skipped) == (0, ())
    assert rows_of(tmp_path / "out") == [*expected(), {"image": image(1), "label": 3, "path": "d/0.jpg"}]
    assert not (tmp_path / ".out.import").exists()


def test_files_that_come_after_the_position_are_imported_too(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(classes, tmp_path / "out", monkeypatch)
    (classes / "c" / "99.jpg").write_bytes(image(1))
    report = import_images(classes, tmp_path / "out", options=SMALL)
    assert 0 < report.resumed_rows < 27
    added = {"image": image(1), "label": 2, "path": "c/99.jpg"}
    assert rows_of(tmp_path / "out") == [*expected(), added]


def test_other_options_than_those_of_the_interrupted_import_are_refused(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(classes, tmp_path / "out", monkeypatch)
    with pytest.raises(WriteError, match="with file_bytes=1000 was interrupted, and this one has"):
        import_images(classes, tmp_path / "out")


def test_a_file_that_was_damaged_between_two_runs_is_found(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(classes, tmp_path / "out", monkeypatch)
    (tmp_path / ".out.import" / "data" / "part-000000.parquet").write_bytes(b"x")
    with pytest.raises(WriteError, match=r"part-000000.parquet is not as the interrupted import wrote it"):
        import_images(classes, tmp_path / "out", options=SMALL)


def test_a_second_import_to_the_same_directory_waits_for_no_one(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    seen: list[str] = []

    def fsync(descriptor: int) -> None:
        if not seen:
            seen.append("")
            with pytest.raises(WriteError) as refused:
                import_images(classes, tmp_path / "out", options=SMALL)
            seen.append(str(refused.value))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    import_images(classes, tmp_path / "out", options=SMALL)
    assert "another import to this directory is running" in seen[1]
    assert rows_of(tmp_path / "out") == expected()


def test_a_target_that_holds_something_is_refused(classes: Path, tmp_path: Path) -> None:
    folder_of(tmp_path / "out", {"precious.txt": b"x"})
    with pytest.raises(WriteError, match=r"not empty, it holds 'precious.txt'"):
        import_images(classes, tmp_path / "out")
    assert contents(tmp_path / "out") == {"precious.txt": b"x"}
    assert not (tmp_path / ".out.import").exists()
    with pytest.raises(ConfigurationError, match="local directory"):
        import_images(classes, "mock://bucket/out")


def test_an_empty_target_directory_is_filled(classes: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    import_images(classes, tmp_path / "out")
    assert rows_of(tmp_path / "out") == expected()


@pytest.mark.parametrize("files", [{}, {"readme.txt": b"x"}, {"a/x.png": b"no"}], ids=["empty", "text", "damaged"])
def test_a_folder_without_images_is_an_error_and_leaves_nothing(files: dict[str, bytes], tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", files).mkdir(exist_ok=True)
    with pytest.raises(SourceError, match="nothing to import"):
        import_images(tmp_path / "photos", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["photos"]


def test_a_file_that_changes_during_the_import_is_an_error(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def growing(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("b/03.jpg"):
            with open(path, "ab") as file:
                file.write(b"more")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", growing)
    with pytest.raises(SourceError, match=r"b/03.jpg: the file changed during the import"):
        import_images(classes, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_reports_and_fails_like_other_commands(classes: Path, tmp_path: Path) -> None:
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from tests.support.command_line import run_here

    (classes / "a" / "notes.txt").write_text("x")
    done = run_here("import", "images", classes, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{tmp_path / 'out'}: 27 rows in 1 file," in done.stdout
    assert "skipped 1, not an image by its name (.txt): a/notes.txt" in done.stdout
    again = run_here("import", "images", classes, tmp_path / "json", "--json")
    report = json.loads(again.stdout)
    assert (report["rows"], report["skipped_count"], report["format"]) == (27, 1, "images")
    refused = run_here("import", "images", classes, tmp_path / "out")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: ")
    assert run_here("import", "images", classes).returncode == 2


def test_ctrl_c_ends_the_command_with_130_and_says_how_to_go_on(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from tests.support.command_line import run_here

    def fsync(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        stopped = run_here("import", "images", classes, tmp_path / "out")
    assert stopped.returncode == 130
    assert "the same command continues the import" in stopped.stderr
    assert run_here("import", "images", classes, tmp_path / "out").returncode == 0
    assert rows_of(tmp_path / "out") == expected()


def test_the_datasets_library_finds_the_names_of_classes(classes: Path, tmp_path: Path) -> None:
    """It compares fields with those that its features make, which may be null."""
    import_images(classes, tmp_path / "out")
    (file,) = (tmp_path / "out").iterdir()
    assert pq.read_schema(file).field("label").equals(pa.field("label", pa.int64()))
