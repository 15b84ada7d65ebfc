"""What a script imports, and the aliases that it makes for annotations, are there on the nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from fedgsp.errors import TaskError
from fedgsp_runs.writing import module_of
from tests.support.written_modules import written

EAGER = "from fedgsp import Task\n"

IMPORTED = """
    import numpy as np
    from dataclasses import KW_ONLY, dataclass
    from numpy.typing import ArrayLike, NDArray
    from os import environ as of_the_process
    from random import random
    try:
        from nowhere import reduce
    except ImportError:
        from numpy import *

    @dataclass
    class Settings:
        _: KW_ONLY
        array: NDArray[np.float32] | None = None

    class Mine(Task):
        @staticmethod
        def model(one: ArrayLike = 1): return Settings(array=one), of_the_process, random, float64(one)
"""


def test_names_of_installed_modules_are_imported_as_the_script_does(cells: Any) -> None:
    module = cells(IMPORTED, EAGER)
    text = module_of(module.Mine)
    assert str(written(text)["Mine"].model()) == str(module.Mine.model())
    assert "from numpy.typing import ArrayLike\n" in text
    assert "from os import environ as of_the_process\n" in text


ALIASES = """
    import numpy as np
    from collections.abc import Iterable
    from pathlib import Path
    from typing import (
        Annotated, Any, Callable, ClassVar, Generic, List, Literal, NewType, Optional, ParamSpec, TypeVar, Union
    )

    class Net: pass

    X = TypeVar("X", bound="Net")
    Y = TypeVar("Y", int, str, contravariant=True)
    P = ParamSpec("P")
    Number = NewType("Number", int)
    same = X
    Batch = tuple[np.ndarray, np.ndarray]
    Array = np.ndarray[Any, np.dtype[np.float32]]
    Maybe = int | None
    Path2 = Optional[Union[str, Path]]
    Kind = Literal["a", 3, None]
    Made = Callable[[int, X], dict[str, list[Net]]]
    Any2 = Callable[..., None]
    Called = Callable[P, X]
    Noted = Annotated[int, "steps"]
    Deep = Iterable[tuple[Net, ...]] | tuple[()]
    Nets = List["Net"]
    Shared = ClassVar[int]

    def decorated(function: Called) -> Callable[P, X]: return function

    class Box(Generic[X, Y]):
        def get(self, key: Y) -> X: return key

    Full = Box[Net, int]

    class Mine(Task):
        @decorated
        def model(
            one: Batch, two: Maybe, three: Path2, four: Kind, five: Made, six: Any2, seven: Noted, eight: Deep,
            nine: Nets, ten: Full, eleven: Number, twelve: same, thirteen: Array, fourteen: Shared = 1
        ) -> X: return Box().get(one), isinstance(1, Maybe)
"""


def test_aliases_for_annotations_come_along(cells: Any) -> None:
    module = cells(ALIASES, EAGER)
    found = written(module_of(module.Mine))
    assert found["Mine"].model(*range(13)) == (0, True)
    for name in ("Batch", "Array", "Maybe", "Path2", "Kind", "Noted", "Shared"):
        assert found[name] == vars(module)[name]
    assert get_args(found["Any2"]) == (..., None)
    assert get_args(found["Made"])[0] == [int, found["X"]]
    assert get_args(get_args(found["Made"])[1])[1].__args__ == (found["Net"],)
    assert found["same"] is found["X"]
    assert (found["X"].__bound__.__forward_arg__, found["Y"].__constraints__) == ("Net", (int, str))
    assert found["Y"].__contravariant__
    assert found["Full"] == found["Box"][found["Net"], int]
    assert found["Number"].__supertype__ is int


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's own."""
    (tmp_path / "its_settings.py").write_text(
        "import numpy as np\nfrom types import SimpleNamespace\n"
        "Batch, chosen, TABLES = list[int], SimpleNamespace(rate=1), {'a': np.ones(2)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "its_settings", raising=False)


USED = """
    from its_settings import *

    class Mine(Task):
        @staticmethod
        def model(one: Batch = ()): return {}
"""


@pytest.mark.usefixtures("beside")
def test_an_alias_of_a_module_of_the_user_is_imported(cells: Any) -> None:
    module = cells(USED.format("one"), EAGER)
    assert "from its_settings import Batch\n" in module_of(module.Mine)


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("name", ["chosen", "TABLES"])
def test_an_object_of_a_module_of_the_user_is_refused(name: str, cells: Any) -> None:
    """The script may have changed it."""
    module = cells(USED.format(name), EAGER)
    with pytest.raises(TaskError, match=f"Mine uses '{name}', a .* which cannot be written as source"):
        module_of(module.Mine)


def test_a_name_that_only_looks_like_an_imported_one_is_refused(cells: Any) -> None:
    module = cells(
        "from os import environ\nenviron = object()\nclass Mine(Task):\n    def model(self): return environ", EAGER
    )
    assert isinstance(module, ModuleType)
    with pytest.raises(TaskError, match="Mine uses 'environ', a object"):
        module_of(module.Mine)


def test_a_list_of_classes_is_not_taken_for_an_alias(cells: Any) -> None:
    module = cells("KINDS = [int, str]\nclass Mine(Task):\n    def model(self): return KINDS", EAGER)
    with pytest.raises(TaskError, match="'KINDS', a list that holds a type, which cannot be written as source"):
        module_of(module.Mine)
