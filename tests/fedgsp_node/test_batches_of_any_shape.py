"""Batches whose tensors do not have a row for each sample: graphs, lists of images, boxes in images."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import ClientData, Split, Task
from fedgsp.errors import TaskError
from fedgsp.messages import OptimizerSettings, TrainingSettings
from fedgsp_node.clients import Clients
from fedgsp_node.training.control import Control
from tests.support.items import Items
from tests.support.trainings import ALGORITHMS

SIZE, MOST = 11, 4
#: Of each image: its pixels, and the places of its boxes, of which some images have none.
IMAGES = np.random.default_rng(0).standard_normal((300, 3, 4)).astype(np.float32)
BOXES = np.random.default_rng(1).standard_normal((300, MOST, 2)).astype(np.float32)
COUNTS = np.random.default_rng(2).integers(0, MOST + 1, 300)
COUNTS[0] = 0


class Where(nn.Module):
    """Finds one place in each image; takes a tensor of images, or a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(12, 2)

    def forward(self, images: Any) -> torch.Tensor:
        found: torch.Tensor = self.last((torch.stack(images) if isinstance(images, list) else images).flatten(1))
        return found


class Arrays(Task):
    """One client; the boxes of an image are filled up to as many in all images."""

    num_clients, num_classes = 1, 0

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def model(self) -> nn.Module:
        return Where()

    def data(self, client: int) -> ClientData:
        part = self.part()
        return ClientData(part, part)

    def part(self) -> Any:
        return Split(IMAGES[: self.size], {"boxes": BOXES[: self.size], "count": COUNTS[: self.size]})

    def boxes(self, targets: Any) -> list[torch.Tensor]:
        return [some[:count] for some, count in zip(targets["boxes"], targets["count"], strict=True)]

    def loss(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        pairs = zip(outputs, self.boxes(targets), strict=True)
        return torch.stack([(output - boxes).square().sum() for output, boxes in pairs]).mean()

    def correct(self, outputs: torch.Tensor, targets: Any) -> int:
        return sum(not len(boxes) for boxes in self.boxes(targets))

    def metrics(self, outputs: torch.Tensor, targets: Any) -> dict[str, float]:
        boxes = self.boxes(targets)
        return {"images": len(outputs), "targets": len(boxes), "boxes": sum(map(len, boxes))}


class Lists(Arrays):
    """The same with a list of images, and a list of boxes of any number: the first image has none."""

    def part(self) -> Any:
        boxes = [torch.from_numpy(some[:count]) for some, count in zip(BOXES, COUNTS, strict=True)]
        return Items(list(zip(torch.from_numpy(IMAGES), boxes, strict=True))[: self.size])

    def collate(self, items: Any) -> Any:
        return [image for image, _ in items], [{"boxes": boxes} for _, boxes in items]

    def boxes(self, targets: Any) -> list[torch.Tensor]:
        return [one["boxes"] for one in targets]


def clients_of(task: Task) -> Clients:
    clients = Clients(task, None)
    clients.rehearse()
    return clients


@pytest.mark.parametrize("size", [SIZE, 300])
def test_lists_are_evaluated_like_arrays(size: int) -> None:
    """300 are more than one batch of an evaluation: metrics() gets the targets of all of them."""
    arrays, lists = (clients_of(task(size)) for task in (Arrays, Lists))
    model = arrays.initial_weights(0)
    expected, found = (clients.evaluate(0, model, Control()) for clients in (arrays, lists))
    assert found == expected
    assert expected.metrics["images"] == expected.metrics["targets"] == size
    assert expected.metrics["boxes"] == COUNTS[:size].sum()
    assert lists.training_flop == arrays.training_flop


@pytest.mark.parametrize(
    ("algorithm", "accumulate"),
    [*((name, 1) for name in ALGORITHMS if name not in ("fedfusion", "fedmmd")), ("sgd", 3), ("fedprox", 3)],
)
def test_lists_train_to_the_bits_of_arrays(algorithm: str, accumulate: int) -> None:
    how = TrainingSettings(algorithm, 2, 2, 0.05, seed=3, optimizer=OptimizerSettings("sgd", accumulate=accumulate))
    learned = [
        clients.train(0, clients.initial_weights(0), how, 1, Control())
        for clients in (clients_of(Arrays()), clients_of(Lists()))
    ]
    assert learned[0].after.digest == learned[1].after.digest
    assert learned[0].loss == learned[1].loss


class Graphs(Task):
    """One client with paths of 2 to 5 nodes; the nodes of a batch stand below each other, and edges are columns."""

    num_clients, num_classes = 1, 2

    def model(self) -> nn.Module:
        return Degrees()

    def data(self, client: int) -> ClientData:
        paths = Items([(2 + number % 4, number % 2) for number in range(SIZE)])
        return ClientData(paths, paths)

    def collate(self, items: Any) -> Any:
        begins = np.cumsum([0, *(nodes for nodes, _ in items)])
        edges = [
            (begin + at, begin + at + 1) for begin, (n, _) in zip(begins, items, strict=False) for at in range(n - 1)
        ]
        graph = torch.repeat_interleave(torch.tensor([nodes for nodes, _ in items]))
        return {"edges": torch.tensor(edges).T, "graph": graph}, torch.tensor([label for _, label in items])


class Degrees(nn.Module):
    """Classifies a graph by the degrees of its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(1, 3), nn.Linear(3, 2)

    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        nodes = len(x["graph"])
        degrees = torch.zeros(nodes, 1).index_add(0, x["edges"].flatten(), torch.ones(x["edges"].numel(), 1))
        mixed = torch.tanh(self.layer(degrees))
        graphs = torch.zeros(int(x["graph"].max()) + 1, 3).index_add(0, x["graph"], mixed)
        found: torch.Tensor = self.last(graphs)
        return found


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "fedfusion"])
def test_graphs_train(algorithm: str) -> None:
    clients = clients_of(Graphs())
    before = clients.initial_weights(0)
    after = clients.train(0, before, TrainingSettings(algorithm, 1, 4, 0.05, seed=3), 1, Control()).after
    assert after.digest != before.digest
    assert clients.training_flop == 6 * (2 * 3 + 3 * 2)  # of a path of two nodes


class Nodes(Graphs):
    """A label for each node: whether it is an end of its path."""

    def model(self) -> nn.Module:
        return nn.Sequential(OfNodes(), nn.Linear(1, 2))

    def collate(self, items: Any) -> Any:
        x, _ = super().collate(items)
        return x, (torch.bincount(x["edges"].flatten()) == 1).long()


class OfNodes(nn.Module):
    """The degree of each node."""

    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.bincount(x["edges"].flatten())[:, None].float()


def test_the_accuracy_of_a_label_per_node_is_that_of_nodes_and_the_loss_counts_for_graphs() -> None:
    clients = clients_of(Nodes())
    model = clients.initial_weights(0)
    found, module = clients.evaluate(0, model, Control()), clients.task.model()
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in model.arrays.items()})
    x, y = clients.task.collate(clients.task.data(0).test)
    with torch.no_grad():
        outputs = module(x)
    assert (found.correct, found.judged) == (int((outputs.argmax(1) == y).sum()), len(y))
    assert found.samples == SIZE
    assert found.loss_sum == pytest.approx(SIZE * float(nn.functional.cross_entropy(outputs, y)))


class Padded(Graphs):
    """Metrics that need outputs which are as wide as the longest of a batch."""

    def data(self, client: int) -> ClientData:
        paths = Items([(2 + (number > 256), number % 2) for number in range(300)])
        return ClientData(paths, paths)

    def collate(self, items: Any) -> Any:
        x, y = super().collate(items)
        return x, y[:, None].expand(-1, max(nodes for nodes, _ in items))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets[:, 0])

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        return None

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        return {"mean": float(targets.float().mean())}


def test_tensors_that_cannot_be_joined_for_metrics_are_told(caplog: pytest.LogCaptureFixture) -> None:
    clients = clients_of(Padded())
    found = clients.evaluate(0, clients.initial_weights(0), Control())
    assert not found.metrics
    assert found.samples == 300
    assert "tensors of the shapes (256, 2), (44, 3) of several batches cannot be joined for metrics()" in caplog.text
    assert "pad all to one shape, or return a list with one tensor for each sample" in caplog.text


def test_inputs_of_several_tensors_need_features_of_the_task() -> None:
    with pytest.raises(
        TaskError, match=r"inputs are a dict, of which features\(\) makes no numbers.*override features"
    ):
        Graphs().features({"edges": torch.zeros(2, 1)})


class Drawn(Arrays):
    """Its model draws from all generators that programs share."""

    def model(self) -> nn.Module:
        made = Where()
        made.last.weight.data += float(np.random.standard_normal()) + random.random()
        made.register_buffer("code", torch.from_numpy(np.random.standard_normal(3)), persistent=False)
        return made


def test_a_model_that_draws_from_numpy_and_python_is_the_same_on_every_node() -> None:
    digests = set()
    for _ in range(2):
        np.random.standard_normal(5)  # a node has done other things before
        random.random()
        clients = clients_of(Drawn())
        trained = clients.train(
            0, clients.initial_weights(7), TrainingSettings("sgd", 1, 4, 0.1, seed=3), 1, Control()
        )
        digests.add((clients.initial_weights(7).digest, trained.after.digest))
    assert len(digests) == 1
