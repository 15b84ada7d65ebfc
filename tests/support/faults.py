"""What goes wrong in a scene of scripted nodes, and when."""

from __future__ import annotations

from dataclasses import dataclass

from fedgsp.messages import FailureCode


@dataclass
class Fault:
    """Something that goes wrong at one moment, once or each time."""

    moment: tuple[str, object]
    what: str
    node: str = ""
    until: int = 0
    code: FailureCode = FailureCode.UNSPECIFIED
    used: bool = False
    #: Whether it goes wrong at this moment each time.
    always: bool = False


class Faults:
    """A fluent list; most faults happen once, and one that never happened fails the test."""

    def __init__(self) -> None:
        self._all: list[Fault] = []

    def fail(self, client: int, code: FailureCode = FailureCode.TASK_RAISED) -> Faults:
        """The client's order fails at its node."""
        return self._add(Fault(("order", client), "fail", code=code))

    def stall(self, client: int) -> Faults:
        """The client's order, after that of client - 1, is not answered until it is called off; the clock runs out."""
        return self._add(Fault(("order", client), "stall"))

    def crawl(self, client: int) -> Faults:
        """The client's order takes longer than the stall timeout, but makes progress."""
        return self._add(Fault(("order", client), "crawl"))

    def hold(self, client: int, until: int) -> Faults:
        """The client's order is done after `until`'s is."""
        return self._add(Fault(("order", client), "hold", until=until))

    def hold_for_good(self, client: int) -> Faults:
        """The client's order is not answered until it is called off; no time passes."""
        return self._add(Fault(("order", client), "hold", until=-1))

    def bring(self, client: int, what: str) -> Faults:
        """The client's node brings "nothing", or "another" model, and reports as if it had brought its own."""
        return self._add(Fault(("bring", client), what))

    def make_another(self, client: int, what: str = "tensors") -> Faults:
        """The client's node makes fresh weights with other "tensors" than those of the run, or with other "values"."""
        return self._add(Fault(("initialise", client), what))

    def lose_node(self, node: str, *, before: int | None = None, after: int | None = None) -> Faults:
        """The node goes away with its models: instead of answering one client's order, or when it is answered."""
        moment = ("order", before) if before is not None else ("answered", after)
        return self._add(Fault(moment, "lose", node))

    def restart_node(self, node: str, *, after: int) -> Faults:
        """The node goes away when a client's order is answered, and is back at once without its models."""
        return self._add(Fault(("answered", after), "restart", node))

    def vanish_node(self, node: str, *, after: int) -> Faults:
        """The node's peers lose it when a client's order is answered; the manager only when it sends an order."""
        return self._add(Fault(("answered", after), "vanish", node))

    def lose_node_when_collected(self, node: str) -> Faults:
        """The node goes away when it is asked for a model."""
        return self._add(Fault(("collect", node), "lose", node))

    def restart_node_when_collected(self, node: str) -> Faults:
        """The node goes away when it is asked for a model, and is back at once without its models."""
        return self._add(Fault(("collect", node), "restart", node))

    def never_send_up(self, node: str, always: bool = False) -> Faults:
        """The node takes an order to send a model up, once or always, and does nothing for an hour."""
        return self._add(Fault(("collect", node), "silent", node, always=always))

    def hold_upload(self, node: str, until: str) -> Faults:
        """The node sends a model up once another node was asked for one."""
        return self._add(Fault(("collect", node), "hold", node=until))

    def refuse_upload(self, node: str, always: bool = False, code: FailureCode = FailureCode.STALLED) -> Faults:
        """The node does not send a model up, once or always, and says so."""
        return self._add(Fault(("collect", node), "refuse", node, always=always, code=code))

    def upload_slowly(self, node: str) -> Faults:
        """The node sends a model up for longer than the stall timeout, and reports progress meanwhile."""
        return self._add(Fault(("collect", node), "crawl", node))

    def cut_upload(self, node: str) -> Faults:
        """The node's connection is cut for some seconds while it sends a model up."""
        return self._add(Fault(("collect", node), "cut", node))

    def reset(self, client: int) -> Faults:
        """The client's order fails because the connection of its node broke, which only the node has noticed."""
        return self._add(Fault(("order", client), "reset"))

    def report_twice(self, client: int) -> Faults:
        """The client's report comes again, as a failure."""
        return self._add(Fault(("answered", client), "repeat"))

    def unreachable(self, node: str) -> Faults:
        """The node's peers cannot dial it, ever."""
        return self._add(Fault(("dial", node), "unreachable", always=True))

    def serve_another(self, node: str, once: bool = False) -> Faults:
        """The node's peers get another model than it reports, once or always; the manager gets the right one."""
        return self._add(Fault(("serve", node), "another", node, always=not once))

    def withhold(self, node: str) -> Faults:
        """The node's peers never get the models that it has made, and the clock runs out; the manager gets them."""
        return self._add(Fault(("serve", node), "withhold", node, always=True))

    def collect_another(self, node: str) -> Faults:
        """The node sends another model up than it reports."""
        return self._add(Fault(("collect", node), "another", node))

    def take(self, *moment: object) -> Fault | None:
        """The next fault of this moment, used up."""
        for fault in self._all:
            if fault.moment == moment and (fault.always or not fault.used):
                fault.used = True
                return fault
        return None

    def check_used(self) -> None:
        unused = [fault for fault in self._all if not fault.used]
        assert not unused, f"never happened: {unused}"

    def _add(self, fault: Fault) -> Faults:
        self._all.append(fault)
        return self
