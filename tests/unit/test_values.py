"""Whatever comes in is shown in a few printable characters, and nothing it does gets out."""

from __future__ import annotations

import ast
import sys
import time
import tracemalloc
from array import array
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgguard.values import cut, escape, is_array, plain, show

NASTY = ("\x1b[31m", "\x1b]0;x\x07", "\x9b2J", "\u202e", "\u2066", "\u2028", "\r\n", "\0", "\ud800")
#: Every character there is, surrogates too, and those that can do harm more often.
ANY_TEXT = st.lists(
    st.one_of(st.text(st.characters(), max_size=20), st.sampled_from(NASTY)), max_size=10
).map("".join)
LENGTHS = st.integers(min_value=0, max_value=100)


def is_shown(text: str, length: int = 64) -> bool:
    return type(text) is str and text.isprintable() and len(text) <= length


class Trap:
    """Each use of it is an error of its own making."""

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a value's own code ran")

    __repr__ = __str__ = __len__ = __iter__ = __getitem__ = __contains__ = __bool__ = _fail
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __format__ = __index__ = _fail
    __add__ = __radd__ = __mul__ = __getattr__ = _fail
    __hash__ = object.__hash__


class TrapStr(Trap, str):
    __slots__ = ()
    isprintable = encode = strip = casefold = replace = Trap._fail


# Strings.


@given(ANY_TEXT, LENGTHS)
def test_any_string(text: str, length: int) -> None:
    """Printable and no longer than asked for; ``…`` stands at the end if a part is missing."""
    shown = show(text, length)
    assert is_shown(shown, length)
    if length:
        assert shown.endswith("…") is (
            len(repr(text)) > length or repr(text)[:length].endswith("…")
        )


@given(ANY_TEXT)
def test_a_string_that_fits_is_shown_whole(text: str) -> None:
    """The text can be read back, so two strings are never shown alike."""
    assert ast.literal_eval(show(text, 10_000)) == text


@given(ANY_TEXT)
def test_escape(text: str) -> None:
    """What is printable stays; the rest can be read back from its escapes."""
    done = escape(text)
    assert done.isprintable()
    if text.isprintable():
        assert done is text
    if "\\" not in text:
        assert done.encode("ascii", "backslashreplace").decode("unicode_escape") == text


@given(ANY_TEXT, LENGTHS)
def test_cut(text: str, length: int) -> None:
    done = cut(text, length)
    assert len(done) <= length
    if len(text) <= length:
        assert done is text
    elif length:
        assert done == text[: length - 1] + "…"


@pytest.mark.parametrize("nasty", NASTY)
def test_no_value_forges_a_log_line(nasty: str) -> None:
    shown = show(f"read{nasty}ERROR all is lost")
    assert shown.startswith("'read\\")
    assert "ERROR" in shown


def test_a_hostile_subclass_of_str() -> None:
    """None of its own methods run: its text is shown as that of any string."""
    assert show(TrapStr("read")) == "'read'"
    assert show([TrapStr("read")]) == "['read']"
    assert plain(TrapStr("read")) == "read"
    assert type(plain(TrapStr("read"))) is str


# Size.


BIG = 10_000_000


class BigRepr:
    text = "x\n" * (BIG // 2)

    def __repr__(self) -> str:
        return self.text


def nested(value: object, depth: int) -> object:
    for _ in range(depth):
        value = [value]
    return value


def chain(length: int) -> Any:
    value: Any = {}
    for _ in range(length):
        value = {"next": value}
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * BIG,
        lambda: "\x1b" * BIG,
        lambda: "\U0001f600" * (BIG // 4),
        lambda: b"\0" * BIG,
        lambda: bytearray(BIG),
        BigRepr,
        lambda: [BigRepr()] * 6,
        lambda: ["x" * BIG] * 6,
        lambda: [0] * (BIG // 8),
        lambda: array("d", [0.0]) * (BIG // 8),
        lambda: deque([0]) * (BIG // 8),
        lambda: set(range(BIG // 64)),
        lambda: dict.fromkeys(range(BIG // 64)),
        lambda: OrderedDict.fromkeys(range(BIG // 64)),
        lambda: 1 << BIG * 8,
        lambda: [1 << BIG * 8],
        lambda: nested(0, 100_000),
        lambda: chain(1000),
    ],
    ids=[
        *("str", "escapes", "wide", "bytes", "bytearray", "repr", "reprs", "strs", "list"),
        *("array", "deque", "set", "dict", "OrderedDict", "int", "ints", "deep", "deep dict"),
    ],
)
def test_size_costs_nothing(make: Callable[[], object]) -> None:
    """Less than 1 MB of memory beyond the value's own, and no time to speak of."""
    value = make()
    show("warm")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        began = time.perf_counter()
        shown = show(value)
        took = time.perf_counter() - began
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert is_shown(shown)
    assert peak < 1_000_000
    assert took < 0.5


@pytest.mark.parametrize("bits", [512, 513, 20_000])
def test_huge_numbers(bits: int) -> None:
    """Past 4300 digits Python refuses to print a number at all."""
    number = 1 << (bits - 1)
    assert show(number, 1000) == (str(number) if bits <= 512 else f"<int of {bits} bits>")


def test_a_hostile_number() -> None:
    class Number(int):
        def bit_length(self) -> int:
            raise RuntimeError

        def __repr__(self) -> str:
            raise RuntimeError

    class Level(IntEnum):
        HIGH = 1 << 20_000

    assert show(Number(3)) == "<Number, whose repr raised RuntimeError>"
    assert show(Number(1 << 600)) == "<Number of 601 bits>"
    assert show(Level.HIGH) == "<Level of 20001 bits>"


# What a repr may do.


def whose_repr(answer: Callable[[], Any]) -> object:
    class Thing:
        def __repr__(self) -> str:
            return answer()  # type: ignore[no-any-return]

    return Thing()


def _raise(error: BaseException) -> Any:
    raise error


class TrapText(str):
    """What a repr may give: Python takes a subclass of str."""

    __slots__ = ()

    def __iter__(self) -> Any:
        raise RuntimeError

    __getitem__ = __len__ = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda: _raise(ValueError("x")), "<Thing, whose repr raised ValueError>"),
        (lambda: _raise(MemoryError()), "<Thing, whose repr raised MemoryError>"),
        (lambda: 3, "<Thing, whose repr raised TypeError>"),
        (lambda: None, "<Thing, whose repr raised TypeError>"),
        (lambda: "a\nb\x1b", "a\\nb\\x1b"),
        (lambda: TrapText("abc"), "abc"),
    ],
)
def test_a_repr_that_misbehaves(answer: Callable[[], Any], expected: str) -> None:
    assert show(whose_repr(answer)) == expected
    assert show([whose_repr(answer)]) == f"[{expected}]"


def test_a_repr_without_end() -> None:
    class Loop:
        def __repr__(self) -> str:
            return repr(self)

    assert show(Loop()) == "<Loop, whose repr raised RecursionError>"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_stopping_the_program_is_not_held_up(error: type[BaseException]) -> None:
    """Only an ``Exception`` is the value's own affair."""
    with pytest.raises(error):
        show(whose_repr(lambda: _raise(error())))
    with pytest.raises(error):
        show([whose_repr(lambda: _raise(error()))])


def test_a_trap() -> None:
    assert show(Trap()) == "<Trap, whose repr raised RuntimeError>"


def test_a_type_that_hides_its_name() -> None:
    """A metaclass may answer for ``__name__`` as it likes; it is not asked."""

    class Meta(type):
        @property
        def __name__(cls) -> str:
            raise RuntimeError

    class Hidden(metaclass=Meta):
        def __repr__(self) -> str:
            raise RuntimeError

    assert show(Hidden()) == "<Hidden, whose repr raised RuntimeError>"
    assert is_shown(show(Hidden))


def test_a_class_that_cannot_be_asked_for() -> None:
    class Liar:
        @property
        def __class__(self) -> Any:
            raise RuntimeError

    assert is_shown(show(Liar()))
    assert plain(Liar()) is None


@pytest.mark.parametrize("claims", [str, int, bytes, list, dict])
def test_a_class_that_is_made_up(claims: type) -> None:
    """A proxy passes ``isinstance`` for what it stands for; its type counts."""

    class Proxy:
        __class__ = claims  # type: ignore[assignment]

        def __repr__(self) -> str:
            return "a proxy"

    assert show(Proxy()) == "a proxy"
    assert plain(Proxy()) is None


# Containers.


@pytest.mark.parametrize("name", ["list", "dict", "str", "instance", "array", "two words"])
def test_a_namesake_of_a_built_in_type(name: str) -> None:
    """reprlib goes by the name of a class; the class decides nothing here."""
    kind = type(name, (Trap,), {})
    assert show(kind()) == f"<{name}, whose repr raised RuntimeError>"


def test_small_containers_are_shown() -> None:
    for value in ([], [1, "a"], (1,), (), {"a": [1]}, {}, {"a"}, set(), frozenset({1})):
        assert show(value) == repr(value)
    assert show(deque(["a"])) == "deque(['a'])"
    assert show([b"a", bytearray(b"b"), None, True]) == "[b'a', b'b', None, True]"


def test_large_and_foreign_containers_are_described() -> None:
    Pair = namedtuple("Pair", "a b")

    class Rows(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            raise RuntimeError

    assert show(Pair(1, 2)) == "<Pair of 2 items>"
    assert show(Rows([1])) == "<Rows of 1 item>"
    assert show(OrderedDict(a=1)) == "<OrderedDict of 1 item>"
    assert show(set(range(2000))) == "<set of 2000 items>"
    assert show(list(range(2000))) == "[0, 1, 2, 3, 4, 5, ...]"


def test_hostile_keys() -> None:
    """Keys that cannot be compared, or no longer be found."""

    class Key(Trap):
        found = True

        def __hash__(self) -> int:
            if not self.found:
                raise RuntimeError
            return 97  # collides with no other key here

        def __repr__(self) -> str:
            return "key"

    key = Key()
    assert show({key: 1}) == "{key: 1}"
    assert show({key}) == "{key}"
    assert is_shown(show({key, 1, "a"}))
    held = {key: 1}
    Key.found = False
    assert show(held) == "<dict, whose repr raised RuntimeError>"


def test_containers_that_hold_themselves() -> None:
    row: list[Any] = []
    row.append(row)
    table: dict[str, Any] = {}
    table["self"] = table
    assert show(row) == "[[[[...]]]]"
    assert show(table) == "{'self': {'self': {'self': {...}}}}"


# Tensors. A stand-in for torch: what is known of a tensor is asked, its content never.


class Tensor:
    def __init__(self) -> None:
        self.shape = (2, 3)
        self.dtype = "torch.float32"
        self.device = "cuda:0"

    def __repr__(self) -> str:
        raise KeyboardInterrupt("printed: this copies from the GPU")

    __bool__ = __eq__ = __len__ = __iter__ = __repr__  # type: ignore[assignment]
    __hash__ = object.__hash__


class Parameter(Tensor):
    pass


@pytest.fixture
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))


@pytest.mark.usefixtures("_torch")
def test_tensors_are_described() -> None:
    text = "Tensor(shape=(2, 3), dtype=torch.float32, device=cuda:0)"
    assert show(Tensor()) == text
    assert show([Tensor()], 1000) == f"[{text}]"
    assert show({"a": (Tensor(), [1])}, 1000) == f"{{'a': ({text}, [1])}}"
    assert show(OrderedDict(weight=Tensor())) == "<OrderedDict of 1 item>"
    assert show(Parameter()).startswith("Parameter(shape=(2, 3)")
    assert is_array(Tensor())
    assert plain(Tensor()) is None


@pytest.mark.usefixtures("_torch")
def test_a_tensor_without_a_shape() -> None:
    broken = Tensor()
    del broken.shape
    assert show(broken) == "<Tensor, whose repr raised AttributeError>"


@pytest.mark.parametrize(
    "make",
    [lambda: None, SimpleNamespace, lambda: SimpleNamespace(Tensor=len), Trap],
    ids=["none", "empty", "no class", "trap"],
)
def test_half_a_torch(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is being imported, cannot be, or a test put something else in its place."""
    monkeypatch.setitem(sys.modules, "torch", make())
    assert show("read") == "'read'"
    assert is_shown(show(object()))


def test_real_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    tensor = torch.arange(6, dtype=torch.int64).reshape(2, 3)
    text = "Tensor(shape=(2, 3), dtype=torch.int64, device=cpu)"
    assert show(tensor) == text
    assert show([{"a": tensor}], 1000) == f"[{{'a': {text}}}]"
    assert show(tensor.to("meta")) == text.replace("cpu", "meta")


# Modes.


class Word(str, Enum):
    READ = "read"


class Number(Enum):
    ONE = 1
    READ = "read"


def test_plain() -> None:
    """One text for ``"read"`` and for every member whose value that is."""
    for value in ("read", Word.READ, Number.READ):
        text = plain(value)
        assert (text, type(text)) == ("read", str)
    assert plain(None) == "none"
    for value in (Number.ONE, 3, b"read", ["read"], object()):
        assert plain(value) is None


@given(st.recursive(
    st.one_of(ANY_TEXT, st.none(), st.integers(), st.floats(), st.binary(), st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner), st.dictionaries(ANY_TEXT, inner)
    ),
    max_leaves=20,
), LENGTHS)  # fmt: skip
def test_any_plain_value(value: object, length: int) -> None:
    assert is_shown(show(value, length), length)
