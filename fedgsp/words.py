"""Numbers with nouns and names, for messages to people."""

from collections.abc import Mapping

from fedgsp.visible import visible


def counted(number: int | None, noun: str) -> str:
    """The number with its noun, such as "1 node" or "2 nodes"; "- nodes" for an unknown number."""
    return f"{'-' if number is None else f'{number:,}'} {noun if number == 1 else f'{noun}s'}"


def share(number: int, total: int, noun: str) -> str:
    """A number and its total, such as "1 of 4 nodes"; only "4 nodes" if both are equal."""
    return counted(number, noun) if number >= total else f"{number:,} of {counted(total, noun)}"


def with_name(client: int, names: Mapping[int, str]) -> str:
    """The number of a client, and what people call it if it has a name, such as "3 (Charité)"."""
    return f"{client} ({visible(names[client])})" if client in names else str(client)
