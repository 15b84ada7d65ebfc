"""Carries out orders for client discriminators. The samples of each client are encoded once and reused."""

import math
from collections.abc import Callable

from fedgsp.discriminators import MOST_BYTES
from fedgsp.messages import Discriminate, Discriminated, Failure, FailureCode, ModelRef, Order
from fedgsp.tensors.weights import Weights, total_bytes
from fedgsp_node import discriminators
from fedgsp_node.clients import Clients
from fedgsp_node.discriminators import Encoded
from fedgsp_node.fetching import Fetcher
from fedgsp_node.order_error import OrderError
from fedgsp_node.seeding import seeded_for_data
from fedgsp_node.slot import Slot
from fedgsp_node.training.control import Control, StoppedError


class Discriminating:
    """Trains and judges discriminators. Only networks and counts leave this class, no samples."""

    def __init__(self, clients: Clients, fetcher: Fetcher, slot: Slot, check_size: Callable[[int], None]) -> None:
        """`check_size` raises OrderError if this node may not hold networks of so many bytes."""
        self._check_size = check_size
        self._clients = clients
        self._fetcher = fetcher
        self._slot = slot
        self._samples: dict[tuple[int, float], Encoded] = {}
        self._scale = 1.0

    def forget(self) -> None:
        """Frees the encoded samples."""
        self._samples.clear()

    async def carry_out(self, order: Order, work: Discriminate) -> tuple[Discriminated, Weights | None]:
        """The answer, and the trained networks if the order produces any; raises OrderError or WeightsError."""
        settings = work.settings
        if settings is None:
            raise OrderError(Failure(FailureCode.BAD_ORDER, "a discriminator order without settings"))
        client = order.client
        try:
            size = discriminators.sizes(client, work.others, settings.shared)
            if not 0 < settings.feature_scale < math.inf:
                raise ValueError(f"features cannot be scaled by {settings.feature_scale}")
            samples = await self._slot.run(lambda control: self._encoded(client, settings.feature_scale, control))
            if not 1 <= settings.samples < len(samples):
                raise ValueError(f"{settings.samples} of {len(samples)} samples leave none on one side")
            expected = discriminators.tensors(*size, samples.x.shape[1], samples.classes)
            if total_bytes(expected) > MOST_BYTES:
                raise ValueError(f"{len(work.others)} networks do not fit into memory")
            self._check_size(total_bytes(expected))
            if work.start is None:
                networks = discriminators.fresh(settings.seed, *size, samples.x.shape[1], samples.classes)
                source, moved, came = None, 0, None
            else:
                fetched, source, moved = await self._fetcher.get(work.start, expected, to_change=True)
                came = ModelRef(work.start.model_id, digest=fetched.known_digest or b"")
                # Other clients of this node may start from the same networks, which must not change then.
                networks = fetched.to_change() if self._fetcher.given_away(fetched) else fetched.copy()

            def learn(control: Control) -> tuple[int, ...]:
                found: tuple[int, ...] = ()
                if work.judge:
                    found = discriminators.judge(networks, samples, client, work.others, settings, control)
                if work.produces:
                    discriminators.step(networks, samples, client, work.others, settings, work.exchange, control)
                return found

            correct = await self._slot.run(learn)
        except ValueError as error:
            raise OrderError(Failure(FailureCode.BAD_ORDER, str(error))) from error
        except StoppedError as stopped:
            raise OrderError(stopped.failure) from None
        answer = Discriminated(None, correct, len(samples) - settings.samples, source, moved, came)
        return answer, networks if work.produces else None

    def _encoded(self, client: int, scale: float, control: Control) -> Encoded:
        if (client, scale) not in self._samples:
            if scale != self._scale:  # a run has one scale: this is another run
                self.forget()
                self._scale = scale
            part = self._clients.training_part(client)
            with seeded_for_data(client):  # samples of a data set may be drawn
                self._samples[client, scale] = self._clients.call(
                    lambda: discriminators.encoded(self._clients.task, part, control, scale)
                )
        return self._samples[client, scale]
