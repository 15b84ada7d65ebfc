"""Writes the modules of `fedgsp.messages` for a compiled contract: `message_classes.py DESCRIPTORS FOLDER`.

The contract is the .proto files. DESCRIPTORS is a FileDescriptorSet with imports, source info and all options. Each
message without the option `wire_only` becomes a frozen dataclass, with the fields in their order of declaration. A
oneof becomes one field that holds any of its kinds. Comments become docstrings and `#:` comments.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "fedgsp.messages"
FOLDER = Path(*PACKAGE.split("."))
#: How the first line of every generated module begins.
MADE = "# Made by scripts/protos.py from "
WIDTH = 119
#: Message -> module and name of a hand-written base class with its methods.
BASES = {"Failure": (f"{PACKAGE}.failure_text", "FailureText")}

_F = FieldDescriptor
#: Protobuf type -> Python type, and its default value.
SCALARS = {
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_INT32, _F.TYPE_INT64), ("int", "0")),
    **dict.fromkeys((_F.TYPE_DOUBLE, _F.TYPE_FLOAT), ("float", "0.0")),
    _F.TYPE_BOOL: ("bool", "False"),
    _F.TYPE_STRING: ("str", '""'),
    _F.TYPE_BYTES: ("bytes", 'b""'),
}
ONES = {"int": "1", "float": "1.0", "bool": "True"}
#: Field numbers of `descriptor.proto`: the paths of comments in the source info consist of them.
SYNTAX, MESSAGE, ENUM, FIELD, ONEOF, VALUE = 12, 4, 5, 2, 8, 2


class ContractError(Exception):
    """Something in the contract that cannot be expressed in Python."""


@dataclass
class Module:
    """The Python module that is made from one .proto file."""

    file: FileDescriptor
    comments: dict[tuple[int, ...], str]
    imports: dict[str, set[str]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Last part of the module's name."""
        return _module_of(self.file)

    def use(self, module: str, name: str) -> str:
        """A name from another module, which this module will import."""
        if module != f"{PACKAGE}.{self.name}":
            self.imports.setdefault(module, set()).add(name)
        return name

    def kind(self, kind: Descriptor | EnumDescriptor) -> str:
        """The name of the class for a message or an enum, which this module will import if needed."""
        return self.use(f"{PACKAGE}.{_module_of(kind.file)}", kind.name)


def main() -> None:
    """Writes the modules. If this is impossible, the reason is printed and the exit code is 1."""
    descriptors, folder = Path(sys.argv[1]), Path(sys.argv[2]) / FOLDER
    folder.mkdir(parents=True)
    try:
        modules = [module for module in _modules(descriptors.read_bytes()) if _write(module, folder)]
    except ContractError as error:
        sys.exit(str(error))
    exports = {module.name: module.names for module in modules} | _by_hand()
    (folder / "__init__.py").write_text(_init(exports), encoding="utf-8")
    ruff = [str(Path(sysconfig.get_path("scripts")) / "ruff")]
    settings = ["--quiet", "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(folder)]
    ours = [
        "--config",
        "lint.isort.known-first-party=['fedgsp']",
    ]  # ruff cannot know this, because the folder lacks the hand-written modules
    subprocess.run([*ruff, "check", "--select", "I,RUF022", "--fix", *ours, *settings], check=True)
    subprocess.run([*ruff, "format", *settings], check=True)


def _modules(content: bytes) -> Iterator[Module]:
    pool, files = descriptor_pool.DescriptorPool(), descriptor_pb2.FileDescriptorSet.FromString(content)
    for file in files.file:
        pool.Add(file)
    for file in files.file:
        if file.package == "fedgsp.v1":
            places = file.source_code_info.location
            comments = {tuple(place.path): place.leading_comments + place.trailing_comments for place in places}
            yield Module(pool.FindFileByName(file.name), comments)


def _module_of(file: FileDescriptor) -> str:
    return Path(file.name).stem


def _write(module: Module, folder: Path) -> bool:
    """Writes a module. Returns False, and writes nothing, if it would be empty."""
    enums, messages = module.file.enum_types_by_name, module.file.message_types_by_name
    body = [line for i, kind in enumerate(enums.values()) for line in _enum(module, kind, (ENUM, i))]
    for i, message in enumerate(messages.values()):
        if not _option(message, "wire_only"):
            body += _message(module, message, (MESSAGE, i))
    if not body:
        return False
    head = [f"{MADE}protos/{module.file.name}; do not edit.", *_docstring(module, (SYNTAX,), ""), ""]
    head += ["from __future__ import annotations", ""]
    head += [f"from {name} import {', '.join(sorted(of))}" for name, of in sorted(module.imports.items())]
    (folder / f"{module.name}.py").write_text("\n".join([*head, *body, ""]), encoding="utf-8")
    return True


def _enum(module: Module, kind: EnumDescriptor, path: tuple[int, ...]) -> Iterator[str]:
    prefix = "".join(f"_{c}" if c.isupper() else c.upper() for c in kind.name).lstrip("_") + "_"
    module.names.append(kind.name)
    yield from ("", f"class {kind.name}({module.use('enum', 'IntEnum')}):", *_docstring(module, path))
    for i, value in enumerate(kind.values):
        yield from _comment(module, (*path, VALUE, i))
        yield f"    {value.name.removeprefix(prefix)} = {value.number}"


def _message(module: Module, message: Descriptor, path: tuple[int, ...]) -> Iterator[str]:
    module.names.append(message.name)
    base = f"({module.use(*BASES[message.name])})" if message.name in BASES else ""
    yield from ("", f"@{module.use('dataclasses', 'dataclass')}(frozen=True, slots=True)")
    yield from (f"class {message.name}{base}:", *_docstring(module, path), "")
    done = set()
    for i, one in enumerate(message.fields):
        oneof = one.containing_oneof
        if oneof is None:
            yield from _comment(module, (*path, FIELD, i))
            yield f"    {one.name}: {_field(module, one)}"
        elif oneof.name not in done:
            done.add(oneof.name)
            yield from _comment(module, (*path, ONEOF, message.oneofs.index(oneof)))
            yield f"    {oneof.name}: {' | '.join(_kinds(module, message, oneof.fields))} | None"


def _kinds(module: Module, message: Descriptor, fields: Sequence[FieldDescriptor]) -> list[str]:
    kinds = [module.kind(one.message_type) for one in fields if one.message_type]
    if len(set(kinds)) < len(fields):
        raise ContractError(f"{message.name}: a oneof needs messages, each of another kind")
    return kinds


def _field(module: Module, one: FieldDescriptor) -> str:
    """Type of a field, its default if it may be left out, and whether no text may show it."""
    kind, zero = _type(module, one)
    more: dict[str, str] = {}
    if _option(one, "one_if_omitted"):
        more["default"] = ONES[kind]
    elif _option(one, "may_omit"):
        more |= {"default_factory": "dict"} if kind.startswith("Mapping") else {"default": zero}
    if one.GetOptions().debug_redact:
        more["repr"] = "False"
    if more.keys() <= {"default"}:
        return " = ".join([kind, *more.values()])
    given = ", ".join(f"{name}={value}" for name, value in more.items())
    return f"{kind} = {module.use('dataclasses', 'field')}({given})"


def _type(module: Module, one: FieldDescriptor) -> tuple[str, str]:
    """The Python type of a field, and the default value of this type."""
    entry = one.message_type
    if entry and entry.GetOptions().map_entry:
        key, value = (_type(module, entry.fields_by_name[name])[0] for name in ("key", "value"))
        return f"{module.use('collections.abc', 'Mapping')}[{key}, {value}]", ""
    if entry:
        kind, zero = module.kind(entry), "None"
    elif one.enum_type:
        kind = module.kind(one.enum_type)
        zero = f"{kind}.UNSPECIFIED"
    else:
        kind, zero = SCALARS[one.type]
    if one.is_repeated:
        return f"tuple[{kind}, ...]", "()"
    return (f"{kind} | None" if entry else kind), zero


def _option(one: Descriptor | FieldDescriptor, name: str) -> bool:
    """The value of an option of `options.proto`, read with the descriptors of the contract."""
    pool = one.file.pool  # type: ignore[union-attr]  # fields have a file too, but the annotations lack it
    options = one.GetOptions()
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(options.DESCRIPTOR.full_name))
    read: Message = kind.FromString(options.SerializeToString())
    return bool(read.Extensions[pool.FindExtensionByName(f"fedgsp.v1.{name}")])  # type: ignore[index]


def _paragraphs(module: Module, path: tuple[int, ...], width: int) -> list[str]:
    """The lines of a comment, wrapped to `width`. An empty line ends a paragraph."""
    text = textwrap.dedent(module.comments.get(path, "")).strip()
    return "\n\n".join(textwrap.fill(part, width) for part in text.split("\n\n") if part).splitlines()


def _docstring(module: Module, path: tuple[int, ...], indent: str = "    ") -> list[str]:
    lines = _paragraphs(module, path, WIDTH - len(indent) - 3)
    if not lines:
        raise ContractError(f"{module.file.name}: the file, a message or an enum has no comment")
    if len(lines) == 1 and len(indent) + len(lines[0]) + 6 <= WIDTH:
        return [f'{indent}"""{lines[0]}"""']
    return [f'{indent}"""{lines[0]}', *(f"{indent}{line}".rstrip() for line in lines[1:]), f'{indent}"""']


def _comment(module: Module, path: tuple[int, ...]) -> list[str]:
    return [f"    #: {line}".rstrip() for line in _paragraphs(module, path, WIDTH - 7)]


def _by_hand() -> dict[str, list[str]]:
    """The hand-written modules of the package, with the names that each defines."""
    found = {}
    for path in sorted((ROOT / FOLDER).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if not source.startswith(MADE):
            body = ast.parse(source).body
            targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
            found[path.stem] = [target.id for target in targets if isinstance(target, ast.Name)]
    return found


def _init(exports: dict[str, list[str]]) -> str:
    names = sorted(name for of in exports.values() for name in of)
    imports = [f"from {PACKAGE}.{name} import {', '.join(of)}" for name, of in exports.items() if of]
    return "\n".join(
        [
            f"{MADE}protos/; do not edit.",
            '"""What processes say to each other, as plain values.',
            "",
            "Each class has the name and the fields of a message in `protos/fedgsp/v1`. `fedgsp.wire` converts values",
            "to protobuf messages and back. A oneof is one field that holds any of its kinds.",
            '"""',
            "",
            "from __future__ import annotations",
            "",
            *imports,
            "",
            f"__all__ = {names}",
            "",
        ]
    )


if __name__ == "__main__":
    main()
