"""Judges what the network and the top server answered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fedgsp.messages import WouldTake
from fedgsp_node.check.facts import Answered, Certificate, Facts, Model, Pace, Reached
from fedgsp_node.check.finding import Finding, bad, good, warning

#: Difference of two clocks, in seconds, from which it is told, and from which it is an obstacle.
CLOCKS_DIFFER_S, CLOCKS_WRONG_S = 5.0, 300.0
#: Longest round trip, and longest transfer of the model one way, in seconds, that are good.
LONG_ROUND_TRIP_S, LONG_TRANSFER_S = 1.0, 60.0
#: Most characters of a version, or of --manager-ports, that the top server tells.
MOST_TOLD = 40
_NTP = "let both machines set their clocks by NTP (timedatectl set-ntp true)"


def judge_reached(reached: Reached, facts: Facts) -> Finding:
    """The TCP connection to the top server."""
    named = "" if reached.address == facts.address else f" is {reached.address}"
    return good(f"{facts.address}{named}, connected in {_duration(reached.seconds)}")


def judge_proxy(proxy: Reached, facts: Facts) -> Finding:
    """The connection that the proxy opened to the top server."""
    return good(f"{proxy.address} opens connections to {facts.address}, in {_duration(proxy.seconds)}")


def judge_answered(answered: Answered, facts: Facts) -> Finding:
    """The first answer of the top server to a call of this node."""
    how = "with --insecure, without TLS: everybody on the way can read and change models" if facts.insecure else ""
    how = how or ("as a process of the same user" if facts.own is None else "and accepts the certificate of this node")
    return good(f"it answers {facts.name}, {how}")


def judge_versions(answered: Answered, facts: Facts) -> Finding:
    """The software of the top server against that of this node."""
    theirs, ours = answered.about.versions, facts.own_versions
    words = f"here {_versions(ours, ours)}; top server {_versions(theirs, ours)}"
    if answered.about.protocol != facts.protocol:
        what = f"this node speaks protocol {facts.protocol}, and the top server {answered.about.protocol}"
        return bad(f"{what} ({words})", "install the same version of fedgsp on both machines")
    if theirs.get("fedgsp") != ours.get("fedgsp"):
        return warning(f"the versions of fedgsp differ: {words}", "install the same version on all machines")
    return good(words)


def judge_clocks(answered: Answered, facts: Facts) -> Finding:
    """The clock of the top server against that of this machine."""
    ahead = answered.ahead_s
    if not math.isfinite(ahead):
        return bad("the top server tells no time", "install the same version of fedgsp on both machines")
    which = "ahead of" if ahead > 0 else "behind"
    certain = f"give or take {_duration(answered.uncertain_s)}"
    words = f"the top server is {_duration(abs(ahead))} {which} this machine, {certain}"
    at, own = answered.heard + ahead, facts.own
    if isinstance(own, Certificate) and not own.begins.timestamp() <= at < own.ends.timestamp():
        return bad(f"{words}: by its clock the certificate of this node is not valid", _NTP)
    least = abs(ahead) - answered.uncertain_s
    if least > CLOCKS_WRONG_S:
        return bad(words, _NTP)
    return warning(words, _NTP) if least > CLOCKS_DIFFER_S else good(words)


def judge_manager(manager: Reached, facts: Facts) -> Finding:
    """A connection to the port of a group manager."""
    ports = facts.answered.about.manager_ports if isinstance(facts.answered, Answered) else ""
    of = (
        f"one of {ports[:MOST_TOLD]}"
        if ports
        else "the top server has no --manager-ports, so managers listen at any port"
    )
    return good(f"{manager.address} is open, connected in {_duration(manager.seconds)} ({of})")


def judge_pace(pace: Pace, facts: Facts) -> Finding:
    """Round trip and rate, and how long the model takes with them."""
    size = facts.model.size if isinstance(facts.model, Model) else 0
    takes = size / pace.bytes_per_s
    least, rate = "at most" if pace.at_most else "about", pace.bytes_per_s / 1e6
    words = f"round trip {_duration(pace.round_trip_s)}, {least} {rate:.3g} MB/s"
    if size:
        words += f": the model ({size / 1e6:.3g} MB) takes about {_duration(takes)} each way"
    if pace.round_trip_s > LONG_ROUND_TRIP_S:
        return warning(words, "find out what slows this connection: each round takes several round trips")
    if takes > LONG_TRANSFER_S or pace.at_most:
        return warning(words, "use a faster connection, a smaller model, or `top-server --wire-dtype bfloat16`")
    return good(words)


def judge_admission(taken: WouldTake, facts: Facts) -> Finding:
    """The answer to the question whether this node could join."""
    if taken.other_torch:
        return warning(
            "this node could join, but the first node has another version of torch: bits of models may differ",
            "install the same version of torch on all nodes",
        )
    return good("the top server would take this node with these clients; it has not joined")


def judge_task_file(taken: WouldTake, facts: Facts) -> Finding:
    """The source file of the task against that of the first node."""
    if taken.other_task_file:
        return bad(
            "the first node of the run has another file of the task",
            "give all nodes the same file" if facts.own_task else "install the same version of fedgsp on all nodes",
        )
    return good("it is that of the first node, or no other node has joined yet")


def _versions(found: Mapping[str, str], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {found[name][:MOST_TOLD]}" for name in names if name in found)


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
