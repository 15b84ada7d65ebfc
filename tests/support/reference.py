"""An independent FedGSP and FedAvg in one process: what distributed runs must equal, bit for bit.

Shares with the system only the task, the grouping (a pure function with an oracle of its own) and the rule by which
random streams are named; relay, local SGD (torch.optim), sampling, growth and merging are written again, plainly.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import torch

from fedgsp.task import Task
from top_server.grouping import GROUPINGS, GroupingRequest

torch.set_num_threads(1)  # as nodes do by default; another number may round otherwise

CPU = torch.device("cpu")
State = dict[str, np.ndarray]
#: (round, group, client) -> whether the client takes part.
TakesPart = Callable[[int, int, int], bool]
Merge = Callable[[list[State], list[int]], State]
#: (global model before the round, results of its groups) -> global model after it
Step = Callable[[State, list[State]], State]


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *keys])


def stream_seed(seed: int, purpose: str, *keys: int) -> int:
    return int(stream(seed, purpose, *keys).integers(2**63))


@dataclass
class Reference:
    """The settings of a run; `play` returns the global model after every round."""

    task: Task
    clients: Collection[int]
    rounds: int
    alpha: float = 2.0
    beta: int = 10
    sampling_rate: float = 0.3
    learning_rate: float = 0.01
    batch_size: int = 5
    local_epochs: int = 1
    seed: int = 0
    grouping: str = "icg"
    options: Mapping[str, str] = field(default_factory=dict)
    takes_part: TakesPart = lambda *_: True
    wire_dtype: str = "exact"
    #: Names of tensors that nobody trains. Each node has them from its own task, so they do not travel.
    constants: Sequence[str] = ()
    #: Where clients train.
    device: torch.device = CPU
    #: Makes an optimiser of a model's parameters and a step size.
    optimizer: Callable[[list[torch.nn.Parameter], float], torch.optim.Optimizer] = lambda parameters, rate: (
        torch.optim.SGD(parameters, lr=rate)
    )
    #: Factors on the step size: (round, from 1), and (step of a training, from 0; number of its steps).
    of_round: Callable[[int], float] = lambda _: 1.0
    of_step: Callable[[int, int], float] = lambda *_: 1.0
    clip_norm: float = 0.0
    accumulate: int = 1
    #: What the results of a round become, of these states with these weights.
    merge: Merge | None = None
    #: What the global model becomes, if not the mean of the groups' results.
    step: Step | None = None
    #: Round -> how long each client is expected to take; None: groups are not dealt by time.
    seconds: Callable[[int], Mapping[int, float]] | None = None
    #: Is told the number and the global model of every round.
    told: Callable[[int, State], None] = lambda *_: None

    def play_fedgsp(self) -> list[State]:
        models, model = [], self.handed_on(self.initial())
        for number in range(1, self.rounds + 1):
            results = []
            for group, members in enumerate(self.sampled_groups(number)):
                order = stream(self.seed, "client-order", number, group).permutation(len(members))
                state = model
                for client in [members[i] for i in order]:
                    if self.takes_part(number, group, client):
                        state = self.handed_on(self.train(state, client, number))
                if state is not model:
                    results.append(state)
            model = self.stepped(model, results)
            models.append(model)
            self.told(number, model)
        return models

    def play_fedavg(self) -> list[State]:
        models, model = [], self.handed_on(self.initial())
        everyone = sorted(self.clients)
        for number in range(1, self.rounds + 1):
            size = max(1, math.floor(self.sampling_rate * len(everyone) + 0.5))
            rng = stream(self.seed, "sampling", number)
            chosen = [everyone[i] for i in sorted(rng.choice(len(everyone), size, replace=False))]
            taking_part = [client for client in chosen if self.takes_part(number, 0, client)]
            states = [self.handed_on(self.train(model, client, number)) for client in taking_part]
            mean = self.handed_on(self.aggregated(states, taking_part))
            model = self.handed_on(self.step(model, [mean])) if self.step else mean
            models.append(model)
            self.told(number, model)
        return models

    def stepped(self, model: State, results: list[State]) -> State:
        """The global model after a round, as it travels."""
        merged = self.step(model, results) if self.step else (self.merge or weighted_mean)(results, [1] * len(results))
        return self.handed_on(merged)

    def aggregated(self, states: list[State], clients: list[int]) -> State:
        """What a group makes of its members' models."""
        return (self.merge or weighted_mean)(states, [len(self.task.data(client).train) for client in clients])

    def initial(self) -> State:
        torch.manual_seed(stream_seed(self.seed, "initial-weights"))
        return _state(self.task.model())

    def handed_on(self, state: State) -> State:
        """A model as it travels: float32 rounded by torch; beyond the largest bfloat16 it would be infinite."""
        if self.wire_dtype == "exact":
            return state
        most = torch.finfo(torch.bfloat16).max
        return {
            name: torch.from_numpy(array).bfloat16().float().clamp(-most, most).numpy()
            if array.dtype == np.float32 and name not in self.constants
            else array
            for name, array in state.items()
        }

    def train(self, state: State, client: int, number: int) -> State:
        model = self.task.model()
        model.load_state_dict({name: as_torch(array.copy()) for name, array in state.items()})
        model.to(self.device).train()
        torch.manual_seed(stream_seed(self.seed, "training", number, client))
        orders = stream(self.seed, "batch-order", number, client)
        data = self.task.data(client).train
        batches = [
            order[begin : begin + self.batch_size]
            for order in (orders.permutation(len(data)) for _ in range(self.local_epochs))
            for begin in range(0, len(data), self.batch_size)
        ]
        steps = [batches[begin : begin + self.accumulate] for begin in range(0, len(batches), self.accumulate)]
        rate = self.learning_rate * self.of_round(number)
        optimiser = self.optimizer(list(model.parameters()), rate)
        for place, together in enumerate(steps):
            optimiser.zero_grad()
            for rows in together:
                x, y = (torch.from_numpy(one[rows]).to(self.device) for one in (data.x, data.y))
                loss = self.task.loss(model(x), y)
                (loss * len(rows) if self.accumulate > 1 else loss).backward()
            if self.accumulate > 1:
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad /= sum(map(len, together))
            if self.clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.clip_norm)
            for group in optimiser.param_groups:
                group["lr"] = rate * self.of_step(place, len(steps))
            optimiser.step()
        return _state(model)

    def sampled_groups(self, number: int) -> list[tuple[int, ...]]:
        clients = sorted(self.clients)
        wanted = min(len(clients), self.beta * math.floor(self.alpha * math.log(number) + 1))
        data = [self.task.data(client).train for client in clients]
        request = GroupingRequest(
            round=number,
            groups=wanted,
            seed=self.seed,
            clients=tuple(clients),
            sizes=np.array([len(part) for part in data]),
            histograms=np.stack([np.bincount(part.y, minlength=self.task.num_classes) for part in data]),
            options=self.options,
            seconds=np.array([self.seconds(number)[client] for client in clients]) if self.seconds else None,
        )
        groups = GROUPINGS[self.grouping](request).groups
        size = max(1, math.floor(self.sampling_rate * len(groups) + 0.5))
        chosen = stream(self.seed, "sampling", number).choice(len(groups), size, replace=False)
        return [groups[i] for i in sorted(chosen)]


def weighted_mean(states: list[State], weights: Sequence[float]) -> State:
    """Mean of float tensors in float64, in the order given; integers of the first."""
    mean = {}
    for name, first in states[0].items():
        if not is_float(first):
            mean[name] = first.copy()
            continue
        total = np.zeros(first.shape)
        for state, weight in zip(states, weights, strict=True):
            total = total + weight * state[name].astype(np.float64)
        mean[name] = cast(total / sum(weights), first.dtype)
    return mean


def median(states: list[State], _: list[int]) -> State:
    """Of float tensors, in float64; integers of the first."""
    return {
        name: cast(np.median([state[name].astype(np.float64) for state in states], axis=0) + 0.0, first.dtype)
        if is_float(first)
        else first.copy()
        for name, first in states[0].items()
    }


def _state(model: torch.nn.Module) -> State:
    return {name: as_numpy(tensor.detach().cpu()).copy() for name, tensor in model.state_dict().items()}


def as_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor in the memory of an array; numpy knows bfloat16 by the package ml_dtypes, torch does not know that."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The other way round."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16


def cast(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers in float64 as another dtype; torch rounds to bfloat16."""
    if dtype == ml_dtypes.bfloat16:
        return as_numpy(torch.from_numpy(np.asarray(exact)).to(torch.bfloat16))
    return np.asarray(exact).astype(dtype)


def assert_same_bits(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].tobytes() == array.tobytes(), f"tensor {name} differs"
