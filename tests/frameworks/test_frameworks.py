"""Training frameworks on two processes: each reads its part once, however the framework treats the loader."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.support.datasets import write_numbered
from tests.support.gloo import on_ranks

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]


def needs(package: str) -> Any:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install '.[frameworks]'")


def assert_each_row_once(results: list[list[list[list[int]]]], epochs: int) -> None:
    """Rank by rank the batches of ids; 67 rows on two ranks are padded by one."""
    for epoch in range(epochs):
        parts = [result[epoch] for result in results]
        assert [len(batches) for batches in parts] == [9, 9]
        seen = [row for batches in parts for batch in batches for row in batch]
        assert set(seen) == set(range(67))
        assert len(seen) == 68


@pytest.mark.slow  # test_framework_flags.py has loaders left alone and prepared, on files of equal length
@needs("accelerate")
@pytest.mark.parametrize("prepared", [False, True], ids=["left alone", "prepared"])
def test_accelerate_does_not_divide_the_rows_again(tmp_path: Path, prepared: bool) -> None:
    root = str(tmp_path / "data")
    write_numbered(root, ((30, 11), (25,), (), (1,)), ("double",))
    results = on_ranks(
        2,
        root,
        f"""
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        loader = BatchedDataLoader(root, 4, shuffle=True)
        model = accelerator.prepare(torch.nn.Linear(1, 1))
        if {prepared}:
            assert accelerator.prepare(loader) is loader
        epochs = []
        for epoch in range(2):
            epochs.append([])
            for batch in loader:
                accelerator.backward(model(batch["id"].float()[:, None]).mean())
                epochs[-1].append(batch["id"].tolist())
        loader.close()
        print(json.dumps(epochs))
        """,
        tmp_path,
    )
    assert_each_row_once(results, 2)


@needs("transformers")
@needs("accelerate")
def test_the_trainer_does_not_divide_the_rows_again(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    write_numbered(root, ((30, 11), (25,), (), (1,)))
    results = on_ranks(
        2,
        root,
        """
        from transformers import Trainer, TrainingArguments

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
                self.seen = []

            def forward(self, id):
                self.seen.append(id.tolist())
                return {"loss": self.layer(id.float()[:, None]).mean()}

        class ParquetTrainer(Trainer):
            def get_train_dataloader(self):
                return BatchedDataLoader(root, 4, shuffle=True)

        arguments = TrainingArguments(
            root + "/../out", num_train_epochs=2, use_cpu=True, report_to="none", disable_tqdm=True,
            save_strategy="no", ddp_backend="gloo",
        )
        model = Model()
        ParquetTrainer(model, arguments).train()
        print()
        print(json.dumps([model.seen[:9], model.seen[9:]]))
        """,
        tmp_path,
    )
    assert_each_row_once(results, 2)


@pytest.mark.slow  # test_framework_flags.py trains with Lightning on two ranks, on files of equal length
@needs("lightning")
def test_lightning_on_two_processes_reads_each_row_once(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    write_numbered(root, ((30, 11), (25,), (), (1,)))
    results = on_ranks(
        2,
        root,
        """
        dist.destroy_process_group()  # Lightning makes its own
        os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
        os.environ["TORCHELASTIC_RUN_ID"] = "1"
        import lightning as L

        class Model(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
                self.seen = []

            def train_dataloader(self):
                return BatchedDataLoader(root, 4, shuffle=True)

            def training_step(self, batch, batch_idx):
                self.seen.append(batch["id"].tolist())
                return self.layer(batch["id"].float()[:, None]).mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=1e-6)

        model = Model()
        L.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        ).fit(model)
        print()
        print(json.dumps([model.seen[:9], model.seen[9:]]))
        """,
        tmp_path,
    )
    assert_each_row_once(results, 2)
