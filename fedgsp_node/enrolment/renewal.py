"""Renews the certificate of a node while the node runs, long before it ends. New connections use the new one."""

import asyncio
import datetime as dt
import logging
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from fedgsp.connections.proxy import Proxy
from fedgsp.errors import UserError
from fedgsp.processes import lifecycle
from fedgsp.security.certificates import new_key, now, renewal_due
from fedgsp.security.tls import load
from fedgsp_node.enrolment import folder
from fedgsp_node.enrolment.client import renew

logger = logging.getLogger(__name__)

#: Longest wait between two looks at the clock, in seconds: a machine may sleep meanwhile.
LOOK_S = 60.0


def renewed(
    identity: Path, name: str, top_server: str, proxy: Proxy | None = None
) -> AbstractAsyncContextManager[None]:
    """While the body runs, the certificate in the folder `identity` is replaced at two thirds of its life."""
    return lifecycle.beside(_renew(identity, name, top_server, proxy), "renew the certificate")


async def _renew(identity: Path, name: str, top_server: str, proxy: Proxy | None) -> None:
    due = renewal_due(folder.certificate_in(identity))
    while True:
        if (left_s := (due - now()).total_seconds()) > 0:
            await asyncio.sleep(min(left_s, LOOK_S))
            continue
        try:
            due = await _again(identity, name, top_server, proxy)
            continue
        except UserError as error:
            logger.warning("the certificate of this node is not renewed yet: %s", error)
        except Exception:  # no bug may let the certificate end
            logger.exception("the certificate of this node is not renewed yet")
        await asyncio.sleep(LOOK_S)


async def _again(identity: Path, name: str, top_server: str, proxy: Proxy | None) -> dt.datetime:
    """Gets a new certificate for a new key; returns when it is due. Raises UserError."""
    tls, key = load(folder.files_in(identity)), new_key()
    assert tls is not None
    certificate = await renew(tls, key, name, top_server, proxy)
    folder.write(identity, None, certificate, key)
    logger.info(
        "this node has a new certificate, good until %s", f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    )
    return renewal_due(certificate)
