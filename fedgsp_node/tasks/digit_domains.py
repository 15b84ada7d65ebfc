"""The task digit_domains: digits from several sources. Each source is a domain with its own style of images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedgsp.errors import DataError
from fedgsp.partitions import hold_out
from fedgsp.require import require
from fedgsp.seeds import stream
from fedgsp.task import ClientData, Split, Task
from fedgsp_node.tasks.channels_last import ChannelsLast
from fedgsp_node.tasks.decoded import decoded
from fedgsp_node.tasks.digit_images import SIDE, blended, rendered
from fedgsp_node.tasks.reading import digits, labelled, read_npz

_OWN = ("digits", "blended", "rendered")
_RENDERED_TEST = 2000
_SIDES = (8, 16, 28, 32)
_SHAPES = [*((side, side) for side in _SIDES), *((side, side, 3) for side in _SIDES)]
_FORM = "an .npz file with digits x_train and x_test (uint8) and their labels y_train and y_test"


class DigitDomains(Task):
    """Several clients per domain. Each client has its own training samples; clients of a domain share its test part.

    docs/tasks.md describes the options. Raises DataError for missing or wrong files, TaskError for wrong options.
    """

    num_classes = 10
    extractor = "11"  # the last convolution, after batch norm and ReLU
    data_is_repeatable = True
    local_options = ("data",)  # a text with several paths, which differ between machines

    def __init__(
        self,
        data: str | None = None,
        domains: str | None = None,
        clients_per_domain: int = 2,
        samples: int = 185,
        test_samples: int | None = 500,
        blend: str = "digits",
        width: float = 1.0,
        drop_last: bool = True,
        validation: bool = False,
        seed: int = 0,
    ) -> None:
        self.drop_last = drop_last
        for name, number in (("clients_per_domain", clients_per_domain), ("samples", samples)):
            require(number >= 1, f"{name} is {number}", "give a whole number above 0")
        require(
            test_samples is None or test_samples >= 1,
            f"test_samples is {test_samples}",
            "give a whole number above 0, or none for all test samples",
        )
        require(0 < width <= 1, f"width is {width}", "give a number above 0 and at most 1")
        self._clients_per_domain = clients_per_domain
        self._samples = samples
        self._test_samples = test_samples
        self._width = width
        self._validation = validation
        self._seed = seed
        self._files = _files(data)
        self._blend = blend
        self._domains = [self._domain(name) for name in self._chosen(domains)]

    @property
    def num_clients(self) -> int:
        """`clients_per_domain` times the number of domains. Clients are numbered domain by domain."""
        return self._clients_per_domain * len(self._domains)

    def model(self) -> nn.Module:
        """HCCT's CNN; with width 1 it has 14,219,210 parameters and 5,637 buffer entries."""
        return nn.Sequential(ChannelsLast(), *layers(self._width))

    def data(self, client: int) -> ClientData:
        """Images as float32 of shape (n, 3, 28, 28) from -1 to 1; labels as int64 of shape (n,)."""
        domain, number = divmod(client, self._clients_per_domain)
        held = self._domains[domain]
        own = slice(number * self._samples, (number + 1) * self._samples)
        return ClientData(
            Split(_planes(held.train.x[own]), held.train.y[own]), Split(_planes(held.test.x), held.test.y)
        )

    def _chosen(self, domains: str | None) -> list[str]:
        known = [*self._files, *_OWN]
        names = known if domains is None else [name.strip() for name in domains.split(",")]
        for name in names:
            require(name in known, f"there is no domain {name!r}", f"choose from {', '.join(known)}")
        require(len(set(names)) == len(names), f"a domain is named twice in {domains!r}", "name each domain once")
        bases = [*self._files, "digits"]
        require(
            self._blend in bases,
            f"the domain {self._blend!r} cannot be blended",
            f"set blend to one of {', '.join(bases)}",
        )
        return names

    def _domain(self, name: str) -> ClientData:
        """The 28 x 28 samples for all clients of a domain, drawn with random streams that no other domain uses.

        Images are uint8 of shape (n, 28, 28) or (n, 28, 28, 3).
        """
        train_count = self._clients_per_domain * self._samples
        rngs = [stream(self._seed, f"domain-{name}", number) for number in ((0, 2) if self._validation else (0, 1))]
        if name == "rendered":
            counts = (train_count, self._test_samples or _RENDERED_TEST)
            return ClientData(*(_from_fonts(count, rng) for count, rng in zip(counts, rngs, strict=True)))
        base = self._blend if name == "blended" else name
        source = _read(self._files[base]) if base in self._files else _digits()
        require(
            train_count <= len(source.train),
            f"domain {name!r} has {len(source.train)} training samples,"
            f" too few for {self._clients_per_domain} clients with {self._samples} each",
            f"set samples to 1 .. {len(source.train) // self._clients_per_domain} or leave the domain out",
        )
        if self._validation:
            # Domains of one base hold out the same samples, so no domain trains on another's validation samples.
            source = _held_out(source, train_count, stream(self._seed, f"held-out-{base}"))
        test_count = min(len(source.test), self._test_samples or len(source.test))
        drawn = []
        for part, count, rng in zip((source.train, source.test), (train_count, test_count), rngs, strict=True):
            rows = rng.permutation(len(part))[:count]
            x = _resized(part.x[rows])
            drawn.append(Split(blended(x, rng) if name == "blended" else x, part.y[rows]))
        return ClientData(*drawn)


def layers(width: float) -> list[nn.Module]:
    """The layers of HCCT's CNN, with the share `width` (0 to 1) of its channels and hidden units."""

    def wide(units: int) -> int:
        return max(1, round(width * units))

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, kernel_size=5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]

    def dense(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]

    return [
        *convolution(3, wide(64)),
        nn.MaxPool2d(2),
        *convolution(wide(64), wide(64)),
        nn.MaxPool2d(2),
        *convolution(wide(64), wide(128)),
        nn.Flatten(),
        *dense(7 * 7 * wide(128), wide(2048)),
        *dense(wide(2048), wide(512)),
        nn.Linear(wide(512), DigitDomains.num_classes),
    ]


def _held_out(source: ClientData, count: int, rng: np.random.Generator) -> ClientData:
    """A source whose test part is taken from its training part. At least `count` training samples remain."""
    order = rng.permutation(len(source.train))
    held = min(len(source.test), len(order) - count)
    require(held >= 1, "no training samples of a domain are left for validation", "lower the option samples")
    return ClientData(*(Split(source.train.x[rows], source.train.y[rows]) for rows in (order[held:], order[:held])))


def _files(data: str | None) -> dict[str, Path]:
    """Domain -> file, for every .npz file in `data` and in its folders: in the order of `data`, folders by name."""
    files: dict[str, Path] = {}
    for entry in data.split(",") if data is not None else ():
        path = Path(entry.strip()).expanduser()
        DataError.require(
            path.exists(),
            f"{path} does not exist",
            "give folders or .npz files with digits, separated by commas",
        )
        found = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        DataError.require(found, f"{path} holds no .npz file", f"give a folder in which each file is {_FORM}")
        for file in found:
            DataError.require(
                file.stem not in {*files, *_OWN},
                f"{file} is a second domain called {file.stem!r}",
                "rename the file",
            )
            files[file.stem] = file
    return files


def _read(path: Path) -> ClientData:
    def read() -> dict[str, NDArray[Any]]:
        held = read_npz(path, ["x_train", "y_train", "x_test", "y_test"])
        for part in ("train", "test"):
            images, labels = held[f"x_{part}"], held[f"y_{part}"]
            held[f"y_{part}"] = labelled(path, images, _SHAPES, path, labels, DigitDomains.num_classes, _FORM).y
        return held

    held = decoded("digits", [path], read)
    return ClientData(Split(held["x_train"], held["y_train"]), Split(held["x_test"], held["y_test"]))


def _digits() -> ClientData:
    """scikit-learn's digits. They have no test part, so a fifth is held out, the same for every seed."""
    images, labels = digits()
    x = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    return ClientData(*(Split(x[rows], labels[rows]) for rows in hold_out(labels, 0.2, stream(0, "digits-test-part"))))


def _from_fonts(count: int, rng: np.random.Generator) -> Split:
    labels = rng.permutation(np.arange(count) % DigitDomains.num_classes)
    return Split(rendered(labels, rng), labels)


def _resized(x: NDArray[Any]) -> NDArray[Any]:
    """Resizes uint8 images of shape (n, side, side[, 3]) to shape (n, 28, 28[, 3])."""
    if x.shape[1] == SIDE:
        return x
    planes = torch.from_numpy(x.reshape(*x.shape[:3], -1)).permute(0, 3, 1, 2).float()
    resized = nn.functional.interpolate(planes, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return resized.round().byte().permute(0, 2, 3, 1).numpy().reshape(len(x), SIDE, SIDE, *x.shape[3:])


def _planes(x: NDArray[Any]) -> NDArray[Any]:
    """Converts uint8 images of shape (n, 28, 28[, 3]) to float32 of shape (n, 3, 28, 28), from -1 to 1."""
    scaled = x / np.float32(127.5) - 1
    if x.ndim == 3:
        return np.repeat(scaled[:, None], 3, axis=1)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))
