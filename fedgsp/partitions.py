"""Partitions: functions that divide the samples of a data set among clients.

Each function takes the labels, shape (n,), the number of clients and a random generator, and returns one array of
sample indices per client. No sample goes to two clients. The same state of the generator gives the same partition.
Every function raises TaskError if the options do not fit the number of samples or clients.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedgsp.require import require
from fedgsp.seeds import stream

#: Numbers of samples, shape (n,).
Indices: TypeAlias = NDArray[np.int64]


def partition(labels: Any, name: str, clients: int, seed: int = 0, **options: float) -> list[Indices]:
    """Divides samples among clients: the numbers of the samples of each client, for tasks that deal their own data.

    `labels` has shape (n,). `name` is a partition of this table, such as "dirichlet" or "shards", and `options` are
    its options, such as `alpha=0.5`. The same arguments give the same partition on every node. Raises TaskError for an
    unknown partition or option, and for numbers that do not fit.
    """
    found = np.asarray(labels)
    require(found.ndim == 1, f"labels have shape {found.shape}", "give one label for each sample, shape (n,)")
    return partition_indices(name, found, clients, stream(seed, "partition"), options)


def iid(labels: NDArray[Any], clients: int, rng: np.random.Generator) -> list[Indices]:
    """Divides all samples at random. The numbers of samples per client differ by at most one."""
    _check_clients(clients, len(labels))
    return np.array_split(rng.permutation(len(labels)), clients)


def shards(
    labels: NDArray[Any], clients: int, rng: np.random.Generator, *, shards_per_client: int = 2
) -> list[Indices]:
    """Sorts samples by label, cuts them into equal shards, and gives each client `shards_per_client` random shards.

    Source: McMahan and others, 2017. Sizes of shards differ by at most one sample.
    """
    _check_clients(clients, len(labels))
    require(
        1 <= shards_per_client <= len(labels) // clients,
        f"{shards_per_client} shards for each of {clients} clients cannot be cut from {len(labels)} samples",
        f"set shards_per_client to 1 .. {len(labels) // clients}",
    )
    pieces = np.array_split(_by_label(labels, rng), clients * shards_per_client)
    owners = rng.permutation(len(pieces)).reshape(clients, shards_per_client)
    return [np.concatenate([pieces[piece] for piece in own]) for own in owners]


def dirichlet(
    labels: NDArray[Any], clients: int, rng: np.random.Generator, *, alpha: float = 0.5, min_size: int = 10
) -> list[Indices]:
    """Divides each class by shares drawn from Dirichlet(alpha) (Yurochkin and others, 2019).

    Then the largest clients give samples to clients with fewer than `min_size`.
    """
    _check_clients(clients, len(labels))
    require(
        math.isfinite(alpha) and alpha > 0,
        f"alpha of a Dirichlet partition is {alpha}",
        "give a positive number, for example 0.5",
    )
    require(
        1 <= min_size <= len(labels) // clients,
        f"{clients} clients cannot have {min_size} of {len(labels)} samples each",
        f"set min_size to 1 .. {len(labels) // clients}, or take fewer clients",
    )

    def cuts(_label: int, count: int) -> NDArray[np.float64]:
        return np.rint(np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * count)

    # Shuffled, so that the samples that a large client gives away have its label distribution.
    own = [rng.permutation(part) for part in cut_by_label(labels, np.unique(labels), cuts, rng)]
    for client in range(clients):
        while (lacking := min_size - len(own[client])) > 0:
            giver = max(range(clients), key=lambda other: len(own[other]))
            taken = min(lacking, len(own[giver]) - min_size)
            own[client] = np.concatenate([own[client], own[giver][:taken]])
            own[giver] = own[giver][taken:]
    return own


def half_normal(labels: NDArray[Any], clients: int, rng: np.random.Generator) -> list[Indices]:
    """Random samples for each client; their number is proportional to |N(0, 1)|, at least 1 (HCCT, Fashion-MNIST)."""
    _check_clients(clients, len(labels))
    sizes = _half_normal_sizes(len(labels), clients, rng)
    return np.split(rng.permutation(len(labels)), np.cumsum(sizes))[:-1]


def half_normal_shards(
    labels: NDArray[Any], clients: int, rng: np.random.Generator, *, shards: int = 100
) -> list[Indices]:
    """Shards of samples sorted by label; a client's number of shards is proportional to |N(0, 1)| (HCCT, CIFAR-10)."""
    _check_clients(clients, len(labels))
    require(
        clients <= shards <= len(labels),
        f"{shards} shards cannot be cut from {len(labels)} samples for {clients} clients",
        f"set shards to {clients} .. {len(labels)}",
    )
    pieces = np.array_split(_by_label(labels, rng), shards)
    owners = np.split(rng.permutation(shards), np.cumsum(_half_normal_sizes(shards, clients, rng)))[:-1]
    return [np.concatenate([pieces[piece] for piece in own]) for own in owners]


def three_clients(labels: NDArray[Any], clients: int, rng: np.random.Generator) -> list[Indices]:
    """Clients 0 and 1 get 20 % and 80 % of the samples of each class in the first half of the classes.

    Client 2 gets all samples of the other classes (HCCT, Table 2).
    """
    require(clients == 3, f"the partition three_clients cannot have {clients} clients", "set clients to 3")
    classes = np.unique(labels)
    first, others = np.split(classes, [len(classes) // 2])
    parts = cut_by_label(labels, first, lambda _, count: [round(0.2 * count)], rng)
    require(
        parts and len(parts[0]),
        f"{len(labels)} samples of {len(classes)} classes are too few for three_clients",
        "use a data set with more samples",
    )
    return [*parts, rng.permutation(np.flatnonzero(np.isin(labels, others)))]


def cut_by_label(
    labels: NDArray[Any],
    of: Iterable[int],
    cuts: Callable[[int, int], NDArray[np.float64] | Sequence[int]],
    rng: np.random.Generator,
) -> list[Indices]:
    """Sample indices of each part, label by label, in random order; only the labels `of` are divided.

    `cuts(label, count)` says where the `count` samples of a label are cut, rounded down to whole numbers.
    """
    pieces = []
    for label in of:
        rows = rng.permutation(np.flatnonzero(labels == label))
        pieces.append(np.split(rows, np.asarray(cuts(label, len(rows))).astype(np.int64)))
    return [np.concatenate(part) for part in zip(*pieces, strict=True)]


PARTITIONS: dict[str, Callable[..., list[Indices]]] = {
    "dirichlet": dirichlet,
    "half_normal": half_normal,
    "half_normal_shards": half_normal_shards,
    "iid": iid,
    "shards": shards,
    "three_clients": three_clients,
}


def partition_indices(
    name: str,
    labels: NDArray[Any],
    clients: int,
    rng: np.random.Generator,
    options: Mapping[str, float | None],
    others: Iterable[str] = (),
) -> list[Indices]:
    """Applies the partition called `name`. Options that are None have the default of the partition.

    An error also names the `others`, which the caller knows besides.

    Raises TaskError for an unknown name, for an option that the partition does not have, and for impossible values.
    """
    require(
        name in PARTITIONS,
        f"there is no partition {name!r}",
        f"choose one of {', '.join(sorted({*PARTITIONS, *others}))}",
    )
    accepted = [
        key
        for key, parameter in inspect.signature(PARTITIONS[name]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    given = accepted_options(name, accepted, options)
    for key, parameter in inspect.signature(PARTITIONS[name]).parameters.items():
        if key in {"clients": clients, **given}:
            _check_number(name, key, {"clients": clients, **given}[key], whole=parameter.annotation is int)
    return PARTITIONS[name](labels, clients, rng, **given)


def _check_number(name: str, key: str, value: Any, whole: bool) -> None:
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    require(
        isinstance(value, kinds) and not isinstance(value, bool),
        f"{key} of partition {name!r} is {value!r}",
        f"give a {'whole ' if whole else ''}number",
    )


def accepted_options(name: str, accepted: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not None; TaskError if the partition `name` does not accept one of them."""
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        require(
            key in accepted,
            f"partition {name!r} has no option {key}",
            f"it has {', '.join(accepted) or 'no options'}; leave {key} out",
        )
    return given


def hold_out(labels: NDArray[Any], share: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Sorted indices of one client's samples to keep, and of those to hold out: the share `share`, 0 to 1.

    Every sample has the same probability of being held out. Both parts have nearly the same label distribution. At
    least one sample is kept, and one is held out if there are two or more. Raises TaskError for an impossible share.
    """
    require(0 < share < 1, f"a share of {share} cannot be held out", "give a number between 0 and 1, for example 0.2")
    count = len(labels)
    wanted = min(max(1, round(share * count)), count - 1)
    if wanted < 1:
        return np.arange(count), np.arange(0)
    # Systematic sampling: samples at equal distances in a list sorted by label. Drawing within each label instead
    # would never hold out the only sample of a label, so the test part would be easier than the training part.
    line = np.lexsort((rng.permutation(count), labels))
    held = np.sort(line[np.floor((rng.random() + np.arange(wanted)) * (count / wanted)).astype(np.int64)])
    return np.setdiff1d(np.arange(count), held), held


def _check_clients(clients: int, samples: int) -> None:
    require(
        1 <= clients <= samples,
        f"{samples} samples cannot be divided among {clients} clients",
        f"set clients to 1 .. {samples}",
    )


def _by_label(labels: NDArray[Any], rng: np.random.Generator) -> Indices:
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def _half_normal_sizes(total: int, clients: int, rng: np.random.Generator) -> Indices:
    draws = np.abs(rng.standard_normal(clients))
    sizes: Indices = np.maximum(1, np.floor(total * draws / draws.sum()).astype(np.int64))
    # Raising small sizes to 1 may add more samples than rounding down removed.
    while sizes.sum() > total:
        sizes[sizes.argmax()] -= 1
    return sizes
