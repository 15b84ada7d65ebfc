# Made by scripts/protos.py from protos/fedgsp/v1/model.proto; do not edit.
"""Models: how processes name weights, describe them and move them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class SourceKind(IntEnum):
    """Where a model is held, seen from the node that asks for it."""

    UNSPECIFIED = 0
    #: On the asking node itself. No bytes move. If the model is only promised, the node waits for it.
    LOCAL = 1
    #: On another node.
    NODE = 2
    #: On a group manager.
    MANAGER = 3
    #: On the top server.
    TOP_SERVER = 4
    #: On the asking node itself, since an earlier round. If the model is not there, it is lost; the node does not
    #: wait.
    OWN = 5


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Names a model. The holder may still be computing the model; then it is only promised."""

    id: str
    #: Bytes of the buffer that contains all tensors; 0 while the model is only promised.
    size: int = 0
    #: BLAKE3 digest of the buffer (256 bits); empty while the model is only promised.
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Source:
    """A process that holds a model, or will hold it."""

    kind: SourceKind
    #: Name of the node or manager, for logs.
    name: str
    #: host:port. A wildcard host stands for the host by which the reader reached the top server. Empty for LOCAL and
    #: OWN.
    address: str = ""
    #: The ticket by which the asking node may fetch the model there. Empty for LOCAL and OWN.
    ticket: bytes = field(default=b"", repr=False)
    #: In a report: the bytes that came from there over a connection, after coding; 0 through a pipe.
    travelled: int = 0
    #: In a report: how they came: "raw", "coded" (against a base), "packed" (coded without a base) or "memory". Empty:
    #: no bytes were fetched for the order.
    coding: str = ""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a model."""

    name: str
    #: Name of the dtype, little endian: that of numpy, or bfloat16.
    dtype: str
    shape: tuple[int, ...]
    #: False for buffers (for example running means). Distances and norms leave buffers out.
    trainable: bool = True
    #: Whether the tensor belongs to the classifier head. In some schemes the head stays with its client.
    head: bool = False


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Describes a model before its bytes follow."""

    #: Id and size of the model. The digest is empty: it follows after the bytes.
    ref: ModelRef | None
    #: In the order in which the tensors stand in the buffer.
    tensors: tuple[TensorSpec, ...]
    #: How the bytes are encoded. Empty: they are the buffer itself. "bfloat16": of every four bytes of a float32
    #: tensor (padding included) only the upper two are sent, and the lower two are zero. The size in `ref` is the
    #: buffer's.
    encoding: str = ""
    #: Name of a pipe through which the bytes can go; see `fedgsp.transfers.pipes`. Empty: the bytes come in chunks.
    pipe: str = ""
    #: Whether the sender waits for receipts of the chunks that hold bytes, so that it sends no more than the link
    #: carries.
    paced: bool = False
    #: Name of the lossless code in which the sender can send the bytes; see `fedgsp.transfers.coding`. The receiver
    #: answers with a Receipt before any bytes come. Empty: the bytes come as `encoding` says.
    coding: str = ""
    #: Digests of models that the sender has, against which it can code the bytes; the best ones first.
    bases: tuple[bytes, ...] = ()
    #: The sender keeps the model for a while, as a base for later models. The receiver should keep it too.
    remember: bool = False
