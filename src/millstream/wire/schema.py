"""Declarations of messages.

A message is a class with a line per field; each line names the versions that have the field:

    class MetadataRequestTopic(Struct):
        topic_id: bytes = uuid("10+")
        name: str | None = string("0+", nullable="10+")

When a version is first used, ``wire/compiler.py`` generates a decode and an encode function for
that class and version, and caches them. Decoding never trusts a length or a count.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, ClassVar, TypeVar, dataclass_transform

NULL_UUID = bytes(16)
_LATEST = 32767


class DecodeError(Exception):
    """The bytes are not a message of this version."""


class Versions:
    """A range of versions in Kafka's notation: "3+", "0-12", "7", "none"."""

    __slots__ = ("first", "last")

    def __init__(self, text: str) -> None:
        if text == "none":
            self.first, self.last = 1, 0
        elif text.endswith("+"):
            self.first, self.last = int(text[:-1]), _LATEST
        else:
            first, _, last = text.partition("-")
            self.first, self.last = int(first), int(last or first)

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


NONE = Versions("none")


class Field:
    """A declared field.

    ``kind`` is the name of a primitive, "struct" or "array". ``item`` is the type of the struct or
    of the array's items.
    """

    __slots__ = ("default", "item", "kind", "name", "nullable", "tag", "tagged", "versions")

    def __init__(
        self,
        kind: str,
        versions: str,
        *,
        default: Any,
        nullable: str = "none",
        tag: int | None = None,
        tagged: str | None = None,
        item: str | type[Struct] | None = None,
    ) -> None:
        self.kind = kind
        self.name = ""
        self.versions = Versions(versions)
        self.default = default
        self.nullable = Versions(nullable)
        self.tag = tag
        self.tagged = Versions(tagged or versions) if tag is not None else NONE
        self.item = item

    def default_source(self) -> str:
        """Return the expression that creates a new default value."""
        if self.kind == "array" and self.default is not None:
            return "[]"
        if self.kind == "struct" and self.default is not None:
            return f"{self.default.__name__}()"
        return repr(self.default)


def _primitive(kind: str, default: Any) -> Callable[..., Any]:
    def declare(versions: str, *, default: Any = default, **options: Any) -> Any:
        return Field(kind, versions, default=default, **options)

    declare.__name__ = kind
    return declare


boolean = _primitive("bool", False)
int8 = _primitive("int8", 0)
int16 = _primitive("int16", 0)
uint16 = _primitive("uint16", 0)
int32 = _primitive("int32", 0)
int64 = _primitive("int64", 0)
float64 = _primitive("float64", 0.0)
uuid = _primitive("uuid", NULL_UUID)
string = _primitive("string", "")
binary = _primitive("bytes", b"")
records = _primitive("records", None)


def array(item: str | type[Struct], versions: str, *, default: Any = (), **options: Any) -> Any:
    """Declare a list of structs, or of the named primitive."""
    return Field("array", versions, default=default, item=item, **options)


def struct(item: type[Struct], versions: str, *, null_default: bool = False, **options: Any) -> Any:
    """Declare a struct inside a struct."""
    return Field("struct", versions, default=None if null_default else item, item=item, **options)


@dataclass_transform(kw_only_default=True)
class _StructMeta(type):
    """Collects the declared fields in ``fields``, and generates ``__slots__`` and ``__init__``."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key, field in fields.items():
            field.name = key
            del namespace[key]
        namespace["__slots__"] = tuple(fields)
        namespace["fields"] = tuple(fields.values())
        return super().__new__(mcs, name, bases, namespace)

    def __init__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        versions: str = "0+",
        flexible: str = "none",
    ) -> None:
        super().__init__(name, bases, namespace)
        cls.versions = Versions(versions)
        cls.flexible = Versions(flexible)
        cls.codecs: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        cls.step_codecs: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        cls.__init__ = _make_init(cls)  # type: ignore[misc]


def _make_init(cls: Any) -> Callable[..., None]:
    """Return a keyword-only constructor. Lists and structs get a new default per instance."""
    parameters, lines, scope = [], [], {"_UNSET": object()}
    for field in cls.fields:
        source = field.default_source()
        if field.kind == "struct" and field.default is not None:
            scope[field.default.__name__] = field.default
        if source.endswith(("[]", "()")):
            parameters.append(f"{field.name}=_UNSET")
            lines.append(
                f" self.{field.name} = {source} if {field.name} is _UNSET else {field.name}"
            )
        else:
            parameters.append(f"{field.name}={source}")
            lines.append(f" self.{field.name} = {field.name}")
    head = (
        f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    )
    exec("\n".join([head, *(lines or [" pass"])]), scope)
    return scope["__init__"]  # type: ignore[return-value]


_S = TypeVar("_S", bound="Struct")


class Struct(metaclass=_StructMeta):
    """A message, or a part of one. Equality and repr are by value."""

    fields: ClassVar[tuple[Field, ...]]
    versions: ClassVar[Versions]
    flexible: ClassVar[Versions]
    codecs: ClassVar[dict[int, tuple[Callable[..., Any], Callable[..., Any]]]]
    step_codecs: ClassVar[dict[int, tuple[Callable[..., Any], Callable[..., Any]]]]

    @classmethod
    def decode(
        cls: type[_S], data: memoryview | bytes, version: int, position: int = 0
    ) -> tuple[_S, int]:
        """Return the message at ``position`` and its end. Bad bytes only ever raise DecodeError."""
        codec = cls.codecs.get(version) or _compile(cls, version)
        message: tuple[_S, int] = codec[0](data, position)
        return message

    def encode(self, version: int, out: bytearray | None = None) -> bytearray:
        """Return the message as bytes, appended to ``out`` if given."""
        codec = self.codecs.get(version) or _compile(type(self), version)
        if out is None:
            out = bytearray()
        codec[1](self, out)
        return out

    @classmethod
    def decode_steps(
        cls: type[_S], data: memoryview | bytes, version: int, position: int = 0
    ) -> Generator[None, None, tuple[_S, int]]:
        """``decode`` as a generator that yields after every item of an array."""
        codec = cls.step_codecs.get(version) or _compile_steps(cls, version)
        steps: Generator[None, None, tuple[_S, int]] = codec[0](data, position)
        return steps

    def encode_steps(self, version: int, out: bytearray) -> Generator[None, None, bytearray]:
        """``encode`` as a generator that yields after every item of an array."""
        codec = self.step_codecs.get(version) or _compile_steps(type(self), version)
        steps: Generator[None, None, bytearray] = codec[1](self, out)
        return steps

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in self.fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in self.fields)
        return f"{type(self).__name__}({values})"


def _compile(cls: type[Struct], version: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    # Imported here: the compiler is needed only when a new version is first used.
    from millstream.wire.compiler import compile_codec

    codec = cls.codecs[version] = compile_codec(cls, *_layout(cls, version))
    return codec


def _compile_steps(
    cls: type[Struct], version: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    from millstream.wire.compiler import compile_steps

    codec = cls.step_codecs[version] = compile_steps(cls, *_layout(cls, version))
    return codec


def _layout(cls: type[Struct], version: int) -> tuple[int, bool]:
    """Return the version, and whether its encoding is flexible."""
    if version not in cls.versions:
        raise DecodeError(f"{cls.__name__} has no version {version}")
    return version, version in cls.flexible
