"""What holds for every file of the project, and that what its pages say to type can be typed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import pytest
import typer

import fedgsp_node.cli
import top_server.cli
from fedgsp.programs import PROGRAMS
from fedgsp.settings.files import load
from fedgsp.settings.flags import combine, given
from fedgsp.settings.run import RunConfig
from fedgsp.task import Task
from fedgsp.tasks import TASKS
from fedgsp.trainings import TRAININGS
from top_server.choosing import NAMES
from top_server.grouping import GROUPINGS
from top_server.grouping.round_size import GROWTHS
from top_server.merging import MERGES
from top_server.merging.weighing import WEIGHINGS
from top_server.profiles import PROFILES
from top_server.schemes import SCHEMES

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedgsp", "fedgsp_node", "fedgsp_runs", "group_manager", "top_server")
MOST_LINES = 400
MOST_LINES_OF_README = 150
#: Files that people write, and therefore read.
WRITTEN = (".py", ".proto", ".md", ".toml", ".sh", "")
#: Made by a script, with a row for each flag: nobody reads it from begin to end.
LOOKED_UP = (PurePath("docs/settings.md"),)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
#: A path of somebody's machine, not the end of a longer path or address.
PATH_OF_A_MACHINE = re.compile(r"(?<![\w.})\]/-])/(work|tmp|root|home|Users)\b")
COMMANDS = {
    "top-server": typer.main.get_command(top_server.cli.app),
    "fedgsp-node": typer.main.get_command(fedgsp_node.cli.app),
}


@cache
def texts() -> dict[PurePath, str]:
    """Every text file under version control, or about to be, but for generated stubs and this file."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"only git knows which files belong here: {listed.stderr.strip()}")
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and "_pb2" not in path.name and path != Path(__file__):
            try:
                found[PurePath(name)] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return found


def lines_that(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_is_longer_than_a_reader_bears() -> None:
    written = {path: text for path, text in texts().items() if path.suffix in WRITTEN and path not in LOOKED_UP}
    lengths = {path: text.count("\n") for path, text in written.items()}
    assert lengths
    assert {str(path): lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            by_name = "_pb2" in path.name or path.name == "__main__.py" or not tree.body
            if not by_name and ast.get_docstring(tree) is None:
                silent.append(str(path.relative_to(ROOT)))
    assert not silent


def test_nothing_is_left_to_do() -> None:
    assert lines_that(UNFINISHED) == []


def test_no_wait_forgets_that_it_was_cancelled() -> None:
    """`fedgsp.within` says why."""
    packages = ("fedgsp", "fedgsp_node", "fedgsp_runs", "group_manager", "top_server")
    found = re.compile(r"asyncio\.wait_for\(")
    assert [line for line in lines_that(found) if line.startswith(packages)] == []


def test_nothing_names_a_path_of_one_machine() -> None:
    assert lines_that(PATH_OF_A_MACHINE) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_choices_of_a_scheme_exist(scheme: str) -> None:
    row = SCHEMES[scheme]
    assert row.profile in PROFILES
    assert row.grouping in GROUPINGS
    assert row.growth in GROWTHS
    assert row.program in PROGRAMS
    assert row.training in TRAININGS
    assert row.merge in MERGES
    assert row.sampling in ("groups", "clients", "none")
    assert row.weighing in WEIGHINGS


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("page", ["schemes.md", "privacy.md"])
def test_the_pages_say_what_a_scheme_is_and_what_leaves_a_client(scheme: str, page: str) -> None:
    """A row of a table has the scheme in its first cell."""
    text = texts()[PurePath("docs") / page]
    first_cells = "".join(re.findall(r"^\|([^|]*)\|", text, re.MULTILINE))
    assert f"`{scheme}`" in first_cells


def test_the_readme_can_be_read_in_minutes() -> None:
    assert texts()[PurePath("README.md")].count("\n") <= MOST_LINES_OF_README


@pytest.mark.parametrize("name", TASKS.built_in)
def test_a_built_in_task_is_where_its_entry_says(name: str) -> None:
    assert issubclass(TASKS[name].load(), Task)


def pages() -> list[PurePath]:
    return [path for path in texts() if path.suffix == ".md" and path.name != "CHANGELOG.md"]


def commands_of(page: str) -> Iterator[list[str]]:
    """The words of every command in a page's blocks of code, fenced or indented, without their prompt."""
    fenced = False
    for line in page.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield from _split(line.strip().removeprefix("$ "))


def _split(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # output, with an apostrophe in it
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word and set(word) <= set("();<>|&"):
            if command:
                yield command
            command = []
        else:
            command.append(word)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_first_pages_say_how_to_begin(page: str) -> None:
    assert any(command[0] == "make" for command in commands_of(texts()[PurePath(page)]))


def test_every_command_in_the_pages_can_be_typed() -> None:
    wrong = []
    for page in pages():
        for command in commands_of(texts()[page]):
            if "..." in command:  # only a part of one
                continue
            try:
                check(command)
            except typer.Exit:  # --help, --version
                continue
            except Exception as error:
                wrong.append(f"{page}: {shlex.join(command)}: {error}")
    assert not wrong


def test_every_link_in_the_pages_leads_somewhere() -> None:
    links = [(page, to) for page in pages() for to in re.findall(r"\]\(([^)\s]+)[^)]*\)", texts()[page])]
    local = [(page, to) for page, to in links if "://" not in to]
    assert local
    assert [(str(page), to) for page, to in local if not leads_somewhere(ROOT / page, to)] == []


def leads_somewhere(page: Path, to: str) -> bool:
    """Whether a link from a page names an existing file, and an existing heading of it."""
    name, _, heading = to.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not heading or heading in anchors(target.read_text(encoding="utf-8")))


def anchors(page: str) -> set[str]:
    """The anchors that GitHub and MkDocs both give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower())) for heading in headings}


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[^)]*)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


def check(command: list[str]) -> None:
    """Raises what the command would: for a target, flag, value, module or file that is not there."""
    program, *arguments = command
    program = PurePath(program).name
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        unknown = [word for word in arguments if "=" not in word and word not in targets]
        if unknown:
            raise LookupError(f"no target {unknown[0]}")
    elif program in COMMANDS:
        check_flags(program, arguments)
    elif program.startswith("python") and arguments:
        module = arguments[1] if arguments[0] == "-m" else None
        if module and importlib.util.find_spec(module) is None:
            raise LookupError(f"no module {module}")
        if not module and not (ROOT / arguments[0]).is_file():
            raise LookupError(f"no file {arguments[0]}")


def check_flags(program: str, arguments: list[str]) -> None:
    command: Any = COMMANDS[program]
    if arguments and arguments[0] in command.commands:
        command, arguments = command.commands[arguments[0]], arguments[1:]
    context = command.make_context(program, list(arguments))
    if command is COMMANDS["top-server"]:
        if context._protected_args or context.args:
            raise LookupError(f"no command {[*context._protected_args, *context.args][0]}")
        file = context.params["config_file"]
        base = load(RunConfig, ROOT / file) if file and (ROOT / file).is_file() else RunConfig()
        combine(base, given(context, RunConfig), NAMES)
