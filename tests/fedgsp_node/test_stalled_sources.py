"""A source that begins to send, and then hangs while its connection lives: it is not asked first every time."""

from __future__ import annotations

import pytest

from fedgsp.connections.channels import Channels
from fedgsp.messages import Source, SourceKind, Start
from fedgsp.transfers import stalls
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.fetching import Fetcher
from tests.support.holders import Says, header, registered, serving_store
from tests.support.serving import serving
from tests.support.weights import TENSORS, said, some_weights


async def test_a_source_from_which_no_bytes_come_is_passed_over_and_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.05)
    stuck, store = Says([header()], "silence"), ModelStore()
    for model_id in ("m", "other"):
        store.put(model_id, some_weights())
    async with serving(registered(stuck)) as first, serving_store(store) as second, Channels() as channels:
        sources = Source(SourceKind.NODE, "n1", first.address), Source(SourceKind.MANAGER, "m0", second.address)
        fetcher = Fetcher(ModelStore(), channels, TENSORS, "127.0.0.1")
        assert (await fetcher.get(Start("m", sources)))[1] == said(sources[1], 40)
        await stuck.cancelled.wait()
        stuck.said.clear()
        assert (await fetcher.get(Start("other", sources)))[1] == said(sources[1], 40)
        assert not stuck.said.is_set()
