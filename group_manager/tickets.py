"""The tickets that a manager makes for one group: for the readers of models, and for those who upload to it."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from fedgsp.identity import HOLDERS, TOP_SERVER, Identity, manager, node
from fedgsp.messages import Order, OrderKey, RunGroupRequest, SendUp, Source, Start, Train
from fedgsp.security.tickets import Issuer, Ticket, Verb


@dataclass(frozen=True, slots=True)
class Tickets:
    """Makes the tickets of one group."""

    _issuer: Issuer
    _manager: str
    _request: RunGroupRequest

    def own(self, model_id: str) -> bytes:
        """The ticket by which this manager fetches a model from the top server."""
        ticket = Ticket(Verb.FETCH, model_id, manager(self._manager), self._request.run_id, self._request.round)
        return self._issuer.ticket(TOP_SERVER, ticket)

    def stamped(self, order: Order, reader: str) -> Order:
        """The order with the tickets that the node `reader` needs to carry it out."""
        key, work, changes = order.key, order.work, dict[str, Any]()
        assert key is not None
        assert work is not None
        start = getattr(work, "start", None)
        if isinstance(start, Start):
            changes["start"] = dataclasses.replace(
                start, sources=tuple(self._for_source(source, start.model_id, key, reader) for source in start.sources)
            )
        if isinstance(work, Train) and work.bring:
            changes["ticket"] = self._issue(manager(self._manager), Verb.UPLOAD, work.produces, key, reader)
        if isinstance(work, SendUp):
            changes["ticket"] = self._issue(manager(self._manager), Verb.UPLOAD, work.model_id, key, reader)
        return dataclasses.replace(order, work=dataclasses.replace(work, **changes)) if changes else order

    def _for_source(self, source: Source, model_id: str, key: OrderKey, reader: str) -> Source:
        if source.kind not in HOLDERS:
            return source
        holder = HOLDERS[source.kind](source.name)
        return dataclasses.replace(source, ticket=self._issue(holder, Verb.FETCH, model_id, key, reader))

    def _issue(self, holder: Identity, verb: Verb, model_id: str, key: OrderKey, reader: str) -> bytes:
        return self._issuer.ticket(holder, Ticket(verb, model_id, node(reader), key.run, key.round, key.attempt))
