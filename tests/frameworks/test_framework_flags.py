"""The usual flags of Lightning, Accelerate, transformers' Trainer and Ignite work, with text columns and validation."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    MixedLoader,
    ParquetIterable,
    Ragged,
    write_dataset,
)
from tests.support.gloo import on_ranks

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own
]


def needs(package: str) -> Any:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install '.[frameworks]'")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """100 rows to train on and 40 to validate, in the current directory; the first column is a Ragged."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, rows in (("train", 100), ("val", 40)):
        columns = {
            "tokens": [rng.integers(0, 9, row % 5) for row in range(rows)],
            "text": ["w" * (row % 4) for row in range(rows)],
            "x": rng.random((rows, 8), dtype=np.float32),
            "y": np.arange(rows) % 2,
            "id": np.arange(rows),
        }
        write_dataset(columns, name)
    return tmp_path


def loader(name: str = "train", **options: Any) -> BatchedDataLoader:
    return BatchedDataLoader(name, 10, num_threads=1, **options)


def train() -> BatchedDataLoader:
    return loader(shuffle=True)


def val() -> BatchedDataLoader:
    return loader("val")


def loss_of(layer: Any, batch: Any) -> Any:
    assert isinstance(batch["tokens"], Ragged)
    assert len(batch["text"].to_list()) == len(batch["tokens"]) == len(batch["x"])
    return torch.nn.functional.cross_entropy(layer(batch["x"]), batch["y"])


# ---- Lightning ------------------------------------------------------------------------------------------------------


def lightning_model() -> Any:
    import lightning as L  # noqa: N812

    class Model(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 2)
            self.seen: list[tuple[int, int]] = []
            self.checked: list[tuple[bool, int]] = []
            self.tested = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if "x" not in batch:  # of several loaders
                batch = next(one for one in batch.values() if one is not None)
            self.seen.append((self.current_epoch, int(batch["id"][0])))
            loss = loss_of(self.layer, batch)
            self.log("loss", loss)  # looks for the batch size, and must not find it in a Ragged
            return loss

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("val_loss", loss_of(self.layer, batch))
            self.checked.append((self.trainer.sanity_checking, self.current_epoch))

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.tested += 1

        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return batch["id"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model()


QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


def fit(flags: dict[str, Any], train_loaders: Any = None, val_loaders: Any = None) -> Any:
    import lightning as L  # noqa: N812

    model = lightning_model()
    trainer = L.Trainer(**{**QUIET, "max_epochs": 2, **flags})
    trainer.fit(model, train() if train_loaders is None else train_loaders, val_loaders or val())
    return model


@needs("lightning")
@pytest.mark.parametrize(
    ("flags", "trained", "validated", "sanity"),
    [
        ({}, [10, 10], [4, 4], 2),
        ({"fast_dev_run": True}, [1], [1], 0),
        ({"fast_dev_run": 3}, [3], [3], 0),
        ({"limit_train_batches": 3, "limit_val_batches": 2}, [3, 3], [2, 2], 2),
        ({"limit_train_batches": 0.5, "limit_val_batches": 0.5, "max_epochs": 3}, [5] * 3, [2] * 3, 2),
        ({"limit_val_batches": 0}, [10, 10], [], 0),
        ({"overfit_batches": 2, "max_epochs": 3}, [2] * 3, [2] * 3, 2),
        ({"overfit_batches": 0.5}, [5, 5], [2, 2], 2),
        ({"num_sanity_val_steps": -1}, [10, 10], [4, 4], 4),
        ({"num_sanity_val_steps": 0}, [10, 10], [4, 4], 0),
        ({"check_val_every_n_epoch": 2, "max_epochs": 4}, [10] * 4, [0, 4, 0, 4], 2),
        ({"val_check_interval": 0.25}, [10, 10], [20, 20], 2),
        ({"val_check_interval": 15, "check_val_every_n_epoch": None, "max_epochs": 3}, [10] * 3, [0, 4, 4], 2),
        ({"accumulate_grad_batches": 3}, [10, 10], [4, 4], 2),
        ({"max_steps": 13, "max_epochs": -1}, [10, 3], [4], 2),
        ({"precision": "64-true"}, [10, 10], [4, 4], 2),
        ({"gradient_clip_val": 0.5, "detect_anomaly": True}, [10, 10], [4, 4], 2),
    ],
    ids=str,
)
def test_lightning_fit_takes_its_usual_flags(
    folder: Path, flags: dict[str, Any], trained: list[int], validated: list[int], sanity: int
) -> None:
    model = fit(flags)
    counted = Counter(epoch for epoch, _ in model.seen)
    assert [counted[epoch] for epoch in range(len(trained))] == trained
    assert len(model.seen) == sum(trained)
    checked = Counter(epoch for is_sanity, epoch in model.checked if not is_sanity)
    assert [checked[epoch] for epoch in range(len(validated))] == validated
    assert sum(is_sanity for is_sanity, _ in model.checked) == sanity
    assert len(set(model.seen)) == len(model.seen)


@needs("lightning")
def test_lightning_overfits_the_same_batches_of_an_unshuffled_loader(folder: Path) -> None:
    model = fit({"overfit_batches": 2, "max_epochs": 3}, loader())
    assert [first for _, first in model.seen] == [0, 10] * 3


@needs("lightning")
@pytest.mark.parametrize(
    ("make", "batches"),
    [
        (lambda combined: combined({"a": train(), "b": val()}, "max_size_cycle"), 10),
        (lambda combined: combined({"a": train(), "b": val()}, "min_size"), 4),
        (lambda combined: {"a": train(), "b": val()}, 10),
        (lambda combined: MixedLoader({"a": train(), "b": val()}, {"a": 1, "b": 1}), 8),
        (lambda combined: torch.utils.data.DataLoader(ParquetIterable(train()), batch_size=None), 10),
        (lambda combined: loader(shuffle=True, isolation="process"), 10),
    ],
    ids=["cycle", "min", "dict", "MixedLoader", "ParquetIterable", "process"],
)
def test_lightning_takes_several_loaders_and_those_of_other_kinds(folder: Path, make: Any, batches: int) -> None:
    from lightning.pytorch.utilities.combined_loader import CombinedLoader

    model = fit({}, make(CombinedLoader), [val(), val()])
    assert Counter(epoch for epoch, _ in model.seen) == {0: batches, 1: batches}
    assert len([1 for is_sanity, _ in model.checked if not is_sanity]) == 16


@needs("lightning")
def test_lightning_validates_tests_predicts_and_does_so_again(folder: Path) -> None:
    import lightning as L  # noqa: N812

    trainer = L.Trainer(**QUIET)
    model, rows = lightning_model(), val()
    for _ in range(2):
        trainer.validate(model, rows, verbose=False)
        trainer.test(model, rows, verbose=False)
        assert torch.cat(trainer.predict(model, rows)).tolist() == list(range(40))
    assert (len(model.checked), model.tested) == (8, 8)
    limited = L.Trainer(**QUIET, limit_test_batches=2, limit_predict_batches=0.5)
    limited.test(model, rows, verbose=False)
    assert model.tested == 10
    assert len(limited.predict(model, rows)) == 2


@needs("lightning")
@pytest.mark.parametrize("flags", [{}, {"limit_train_batches": 7}, {"accumulate_grad_batches": 2}], ids=str)
def test_lightning_goes_on_from_a_checkpoint_with_reloaded_loaders(folder: Path, flags: dict[str, Any]) -> None:
    import lightning as L  # noqa: N812
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Data(L.LightningDataModule):  # type: ignore[misc]
        def train_dataloader(self) -> Any:
            return train()

        def val_dataloader(self) -> Any:
            return val()

    flags = {**QUIET, "max_epochs": 3, "reload_dataloaders_every_n_epochs": 1, "enable_checkpointing": True, **flags}
    saving = ModelCheckpoint("saved", "{step}", every_n_train_steps=4, save_top_k=-1)
    whole = lightning_model()
    L.Trainer(**flags, callbacks=[saving]).fit(whole, datamodule=Data())
    for step in (4, 12):
        resumed = lightning_model()
        trainer = L.Trainer(**{**flags, "enable_checkpointing": False})
        trainer.fit(resumed, datamodule=Data(), ckpt_path=f"saved/step={step}.ckpt", weights_only=False)
        done = step * flags.get("accumulate_grad_batches", 1)
        assert resumed.seen == whole.seen[done:]


@needs("lightning")
def test_lightning_moves_a_ragged_and_reads_the_batch_size_off_the_tensors(folder: Path) -> None:
    from lightning.fabric.utilities.apply_func import move_data_to_device
    from lightning.pytorch.utilities.data import extract_batch_size
    from lightning_utilities.core.apply_func import apply_to_collection

    batch = next(iter(train()))
    assert list(batch)[0] == "tokens"  # noqa: RUF015
    assert extract_batch_size(batch) == 10
    moved = move_data_to_device(batch, torch.device("meta"))
    assert {str(value.device) for value in moved.values()} == {"meta"}
    assert apply_to_collection(batch, torch.Tensor, lambda tensor: tensor + 1)["tokens"] is batch["tokens"]


# ---- Accelerate -----------------------------------------------------------------------------------------------------


@needs("accelerate")
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"dispatch_batches": True},
        {"dispatch_batches": False},
        {"split_batches": True},
        {"even_batches": False},
        {"use_stateful_dataloader": True},
        {"non_blocking": True},
    ],
    ids=str,
)
def test_accelerate_takes_its_usual_flags(folder: Path, flags: dict[str, Any]) -> None:
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=3, dataloader_config=DataLoaderConfiguration(**flags)
    )
    layer = torch.nn.Linear(8, 2)
    rows, checked = train(), val()
    assert accelerator.prepare(rows, checked) == (rows, checked)
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    for _ in range(2):
        seen, gathered, texts = [], [], []
        for batch in rows:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
            seen += batch["id"].tolist()
        for batch in checked:
            gathered += accelerator.gather_for_metrics(batch["id"]).tolist()
            texts += accelerator.gather_for_metrics(batch["text"].to_list(), use_gather_object=True)
        assert sorted(seen) == list(range(100))
        assert gathered == list(range(40))
        assert texts == ["w" * (row % 4) for row in range(40)]


@needs("accelerate")
def test_accelerate_moves_a_ragged_with_the_tensors(folder: Path) -> None:
    from accelerate.utils import send_to_device

    moved = send_to_device(next(iter(train())), torch.device("meta"), non_blocking=True)
    assert {str(value.device) for value in moved.values()} == {"meta"}


@needs("accelerate")
def test_accelerate_says_what_to_use_instead_of_skip_first_batches(folder: Path) -> None:
    from accelerate import skip_first_batches

    with pytest.raises(ConfigurationError, match=r"loader\.seek\(epoch, batch\), and set ignore_data_skip=True"):
        skip_first_batches(train(), 7)
    with pytest.raises(AttributeError, match=r"loader\.seek\(epoch, batch\), and set ignore_data_skip=True"):
        skip_first_batches(MixedLoader({"a": train()}, {"a": 1}), 7)
    around = torch.utils.data.DataLoader(ParquetIterable(loader()), batch_size=None)
    assert [int(batch["id"][0]) for batch in skip_first_batches(around, 7)] == [70, 80, 90]


# ---- transformers ---------------------------------------------------------------------------------------------------


def trainer_of(callbacks: Any = (), **flags: Any) -> Any:
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

    class Model(PreTrainedModel):  # type: ignore[misc]
        config_class = PretrainedConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.layer = torch.nn.Linear(8, 2)
            self.seen: list[list[int]] = []
            self.post_init()

        def forward(self, x: Any, y: Any, id: Any, tokens: Any, text: Any) -> Any:  # noqa: A002
            if self.training:
                self.seen.append(id.tolist())
            loss = loss_of(self.layer, {"x": x, "y": y, "tokens": tokens, "text": text})
            return {"loss": loss, "logits": self.layer(x)}

    class ParquetTrainer(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return train()

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return loader(eval_dataset if isinstance(eval_dataset, str) else "val")

        def get_test_dataloader(self, test_dataset: Any) -> Any:
            return loader(test_dataset)

    usual = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 10,
        "per_device_eval_batch_size": 10,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "label_names": ["y"],
    }
    arguments = TrainingArguments("saved", **{**usual, **flags})
    return ParquetTrainer(Model(PretrainedConfig()), arguments, eval_dataset="val", callbacks=list(callbacks))


@needs("transformers")
@needs("accelerate")
@pytest.mark.parametrize(
    ("flags", "batches", "steps", "evaluations"),
    [
        ({}, 20, 20, 0),
        ({"eval_strategy": "epoch"}, 20, 20, 2),
        ({"eval_strategy": "steps", "eval_steps": 5}, 20, 20, 4),
        ({"max_steps": 13}, 13, 13, 0),
        ({"gradient_accumulation_steps": 3}, 20, 8, 0),
        ({"dataloader_num_workers": 2, "dataloader_drop_last": True}, 20, 20, 0),
        ({"train_sampling_strategy": "group_by_length"}, 20, 20, 0),
    ],
    ids=str,
)
def test_the_trainer_takes_its_usual_flags(
    folder: Path, flags: dict[str, Any], batches: int, steps: int, evaluations: int
) -> None:
    trainer = trainer_of(**flags)
    trainer.train()
    assert len(trainer.model.seen) == batches
    assert trainer.state.global_step == steps
    assert len([entry for entry in trainer.state.log_history if "eval_loss" in entry]) == evaluations


@needs("transformers")
@needs("accelerate")
def test_the_trainer_evaluates_and_predicts_all_rows(folder: Path) -> None:
    trainer = trainer_of(max_steps=1)
    trainer.train()
    assert set(trainer.evaluate()) >= {"eval_loss", "eval_samples_per_second"}
    predicted = trainer.predict("val")
    assert np.shape(predicted.predictions) == (40, 2)
    assert predicted.label_ids.tolist() == [row % 2 for row in range(40)]


@needs("transformers")
@needs("accelerate")
def test_the_trainer_says_how_to_resume_and_then_does(folder: Path) -> None:
    from transformers import TrainerCallback

    class GoOn(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
            epoch, batch = divmod(state.global_step * args.gradient_accumulation_steps, len(train_dataloader))
            train_dataloader.seek(epoch, batch)

    saving = {"save_strategy": "steps", "save_steps": 7}
    whole = trainer_of([GoOn()], ignore_data_skip=True, **saving)
    whole.train()
    for step in (7, 14):
        resumed = trainer_of([GoOn()], ignore_data_skip=True, **saving)
        resumed.train(resume_from_checkpoint=f"saved/checkpoint-{step}")
        assert resumed.model.seen == whole.model.seen[step:]
    with pytest.raises(ConfigurationError, match="set ignore_data_skip=True for transformers' Trainer"):
        trainer_of(**saving).train(resume_from_checkpoint="saved/checkpoint-14")


# ---- Ignite ---------------------------------------------------------------------------------------------------------


@needs("ignite")
@pytest.mark.parametrize(
    ("flags", "iterations"),
    [
        ({"max_epochs": 2}, 20),
        ({"max_epochs": 5, "epoch_length": 4}, 20),
        ({"max_epochs": 2, "epoch_length": 15}, 30),
        ({"max_iters": 13}, 13),
    ],
    ids=str,
)
def test_ignite_takes_its_usual_flags_with_an_evaluator(folder: Path, flags: dict[str, Any], iterations: int) -> None:
    from ignite.engine import Engine, Events
    from ignite.metrics import Accuracy

    layer, rows, checked = torch.nn.Linear(8, 2), train(), val()
    seen: list[list[int]] = []

    def step(_: Any, batch: Any) -> Any:
        seen.append(batch["id"].tolist())
        return loss_of(layer, batch)

    trainer = Engine(step)
    evaluator = Engine(lambda _, batch: (layer(batch["x"]), batch["y"]))
    Accuracy().attach(evaluator, "accuracy")
    evaluated = []

    def evaluate(_: Any) -> None:
        evaluated.append(evaluator.run(checked).iteration)

    trainer.add_event_handler(Events.EPOCH_COMPLETED, evaluate)
    assert trainer.run(rows, **flags).iteration == iterations
    assert len(seen) == iterations
    assert set(evaluated) == {4}


# ---- trees of arrays ------------------------------------------------------------------------------------------------


@needs("jax")
def test_jax_walks_through_a_ragged() -> None:
    import jax

    batch = {"tokens": Ragged.from_list([[1, 2], []])}
    assert jax.tree_util.tree_map(lambda array: array * 2, batch)["tokens"].values.tolist() == [2, 4]
    assert int(jax.jit(lambda one: one["tokens"].values.sum())(batch)) == 3


@needs("optree")
def test_optree_walks_through_a_ragged() -> None:
    import optree

    batch = {"tokens": Ragged.from_list([[1, 2], []])}
    assert optree.tree_map(lambda array: array * 2, batch)["tokens"].values.tolist() == [2, 4]


# ---- two ranks ------------------------------------------------------------------------------------------------------


@needs("lightning")
def test_lightning_on_two_ranks_validates_limits_and_reads_text(folder: Path) -> None:
    results = on_ranks(
        2,
        str(folder),
        """
        dist.destroy_process_group()  # Lightning makes its own
        os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
        os.environ["TORCHELASTIC_RUN_ID"] = "1"
        import lightning as L  # noqa: N812

        class Model(L.LightningModule):  # type: ignore[misc]
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 2)
                self.seen, self.checked = [], []

            def train_dataloader(self):
                return BatchedDataLoader(root + "/train", 10, shuffle=True)

            def val_dataloader(self):
                return BatchedDataLoader(root + "/val", 10)

            def loss(self, batch):
                assert len(batch["tokens"]) == len(batch["text"].to_list()) == len(batch["x"])
                return torch.nn.functional.cross_entropy(self.layer(batch["x"]), batch["y"])

            def training_step(self, batch, batch_idx):
                self.seen += batch["id"].tolist()
                return self.loss(batch)

            def validation_step(self, batch, batch_idx):
                self.log("val_loss", self.loss(batch), sync_dist=True)
                if not self.trainer.sanity_checking:
                    self.checked += batch["id"].tolist()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=1e-6)

        found = []
        for limit in (1.0, 2):
            model = Model()
            L.Trainer(
                accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, limit_train_batches=limit,
            ).fit(model)
            found.append([model.seen, model.checked])
        print()
        print(json.dumps(found))
        """,
        folder,
    )
    whole, limited = zip(*results, strict=True)
    assert sorted(row for seen, _ in whole for row in seen) == sorted([*range(100)] * 2)
    assert sorted(row for _, checked in whole for row in checked) == sorted([*range(40)] * 2)
    assert [len(seen) for seen, _ in limited] == [40, 40]
    assert not set(limited[0][0][:20]) & set(limited[1][0][:20])


@needs("accelerate")
def test_accelerate_on_two_ranks_gathers_all_and_goes_on_and_refuses_to_lose_rows(folder: Path) -> None:
    results = on_ranks(
        2,
        str(folder),
        """
        from accelerate import Accelerator
        from torch.utils.data import DataLoader
        from parquet_loader import ParquetIterable

        accelerator = Accelerator(cpu=True)

        def run(stop=None, resume=False):
            rows = BatchedDataLoader(root + "/train", 10, shuffle=True)
            checked = BatchedDataLoader(root + "/val", 10)
            model, seen = accelerator.prepare(torch.nn.Linear(8, 2)), []
            assert accelerator.prepare(rows) is rows
            accelerator.register_for_checkpointing(rows)
            if resume:
                accelerator.load_state(root + "/saved")
            while rows.state_dict()["epoch"] < 2:
                for batch in rows:
                    accelerator.backward(model(batch["x"]).mean())
                    seen.append(batch["id"].tolist())
                    if len(seen) == stop:
                        accelerator.save_state(root + "/saved")
                        break
                if len(seen) == stop:
                    break
            gathered, texts = [], []
            for batch in checked:
                gathered += accelerator.gather_for_metrics(batch["id"]).tolist()
                texts += accelerator.gather_for_metrics(batch["text"].to_list(), use_gather_object=True)
            accelerator._custom_objects.clear()
            accelerator._models.clear()
            return seen, gathered, len(texts)

        whole, stopped = run(), run(stop=7)
        resumed = run(resume=True)
        said = []
        for stateful in (False, True):
            from accelerate import DataLoaderConfiguration
            accelerator.dataloader_config = DataLoaderConfiguration(use_stateful_dataloader=stateful)
            if not rank:
                iterable = accelerator.prepare(DataLoader(ParquetIterable(
                    BatchedDataLoader(root + "/train", 10, shard=__import__("parquet_loader").Shard(0, 2))
                ), batch_size=None))
                try:
                    next(iter(iterable))
                except ParquetLoaderError as error:
                    said.append(str(error))
        print()
        print(json.dumps([whole, stopped, resumed, said]))
        """,
        folder,
    )
    for whole, stopped, resumed, _ in results:
        assert stopped[0] + resumed[0] == whole[0]
        assert sorted(whole[1]) == list(range(40))
        assert whole[2] == 40
    assert sorted(row for whole, *_ in results for batch in whole[0] for row in batch) == sorted([*range(100)] * 2)
    errors = results[0][3]
    assert len(errors) == 2
    assert all("accelerator.prepare divides the rows of rank 0 over all ranks" in error for error in errors)
