"""Generates the decode and encode functions of a message version as Python source, and compiles it.

Runs of fixed-size fields become one ``struct`` call. Nested structs become functions of the same
module scope. Every variable length is checked against the remaining bytes before it is used.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable, Generator
from typing import Any

from millstream.wire.schema import DecodeError, Field, Struct

_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_SIZES = {kind: _struct.calcsize(">" + code) for kind, code in _FIXED.items()}


def read_uvarint(data: memoryview | bytes, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes. Return its value and end."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            byte = data[position]
            if byte > 0x0F:
                raise DecodeError("varint of more than 32 bits")
            return value | byte << shift, position + 1


# Maximum bytes of a string, even if its length on the wire could be larger: records and older
# versions have 15 bits for it.
MAX_STRING_BYTES = 0x7FFF


def read_string_length(data: memoryview | bytes, position: int) -> tuple[int, int]:
    """Read the length of a compact string, plus one. Return it and its end."""
    value, position = read_uvarint(data, position)
    if value > MAX_STRING_BYTES + 1:
        raise DecodeError(f"a string of {value - 1} bytes is too long")
    return value, position


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _text(data: memoryview | bytes, start: int, end: int) -> str:
    return str(data[start:end], "utf-8")


# Maximum length of an array: an item may take one byte on the wire and a hundred in memory.
MAX_ITEMS = 1 << 18
# Maximum number of tagged fields in a struct. No message has ten. Skipping a frame full of empty
# ones would take minutes.
MAX_TAGS = 100


def read_tag_count(data: memoryview | bytes, position: int) -> tuple[int, int]:
    """Read the number of tagged fields. Return it and its end."""
    count, position = read_uvarint(data, position)
    if count > MAX_TAGS:
        raise DecodeError(f"{count} tagged fields; the maximum is {MAX_TAGS}")
    return count, position


def skip_tags(data: memoryview | bytes, position: int, limit: int) -> int:
    """Return the end of the tagged fields that begin at ``position``."""
    count, position = read_tag_count(data, position)
    for _ in range(count):
        _tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
        if position > limit:
            raise DecodeError("tagged field beyond the end")
    return position


def compile_codec(
    cls: type[Struct], version: int, flexible: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the functions decode(data, position) -> (message, end) and encode(message, out)."""
    scope = _compiled(cls, _Source(version, flexible))
    inner = scope[f"d_{cls.__name__}"]

    def decode(data: memoryview | bytes, position: int = 0) -> tuple[Any, int]:
        try:
            return inner(data, position, len(data))  # type: ignore[no-any-return]
        except DecodeError:
            raise
        except _BAD_DATA as error:
            raise DecodeError(f"{cls.__name__} v{version}: {error}") from None

    return decode, scope[f"e_{cls.__name__}"]


def compile_steps(
    cls: type[Struct], version: int, flexible: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the same two functions as generators, which yield after every item of an array.

    A message with a hundred thousand items takes a second. The caller of the generator can let
    other work run in between.
    """
    scope = _compiled(cls, _Source(version, flexible, stepwise=True))
    inner = scope[f"d_{cls.__name__}"]

    def decode(
        data: memoryview | bytes, position: int = 0
    ) -> Generator[None, None, tuple[Any, int]]:
        try:
            message: tuple[Any, int] = yield from inner(data, position, len(data))
            return message
        except DecodeError:
            raise
        except _BAD_DATA as error:
            raise DecodeError(f"{cls.__name__} v{version}: {error}") from None

    return decode, scope[f"e_{cls.__name__}"]


# All exceptions that decoding of arbitrary bytes can raise.
_BAD_DATA = (IndexError, _struct.error, UnicodeDecodeError, ValueError, OverflowError, MemoryError)


def _compiled(cls: type[Struct], writer: _Source) -> dict[str, Any]:
    writer.add_struct(cls)
    scope: dict[str, Any] = writer.scope
    exec(
        compile("\n".join(writer.lines), f"<codec {cls.__name__} v{writer.version}>", "exec"), scope
    )
    return scope


class _Source:
    """Collects source lines and the names they use."""

    def __init__(self, version: int, flexible: bool, *, stepwise: bool = False) -> None:
        """With ``stepwise``, the functions of structs are generators."""
        self.version = version
        self.flexible = flexible
        self._call, self._step = ("(yield from {})", ["yield"]) if stepwise else ("{}", [])
        self.lines: list[str] = []
        self.done: set[str] = set()
        self.scope: dict[str, Any] = {
            "DecodeError": DecodeError,
            "uv": read_uvarint,
            "uvs": read_string_length,
            "wuv": write_uvarint,
            "text": _text,
            "skip_tags": skip_tags,
            "tag_count": read_tag_count,
        }

    def packer(self, kinds: list[str]) -> str:
        """Return the scope name of a compiled ``struct.Struct`` for these kinds."""
        code = ">" + "".join(_FIXED[kind] for kind in kinds)
        name = "S_" + code[1:].replace("?", "o")
        if name not in self.scope:
            compiled = _struct.Struct(code)
            self.scope[name] = compiled.unpack_from
            self.scope["P" + name] = compiled.pack
        return name

    def add_struct(self, cls: type[Struct]) -> None:
        if cls.__name__ in self.done:
            return
        self.done.add(cls.__name__)
        present = [field for field in cls.fields if self.version in field.versions]
        for field in present:
            if isinstance(field.item, type):
                self.add_struct(field.item)
        self.scope[cls.__name__] = cls
        self.scope["new_" + cls.__name__] = cls.__new__
        plain = [field for field in present if self.version not in field.tagged]
        tagged = {f.tag: f for f in present if self.version in f.tagged and f.tag is not None}
        absent = [field for field in cls.fields if field not in plain]
        self.lines += self.decoder(cls, plain, tagged, absent)
        self.lines += self.encoder(cls, plain, tagged)

    # ---- decoding ----

    def decoder(
        self, cls: type[Struct], plain: list[Field], tagged: dict[int, Field], absent: list[Field]
    ) -> list[str]:
        lines = [f"def d_{cls.__name__}(b, p, end):", *self._generator()]
        lines.append(f" m = new_{cls.__name__}({cls.__name__})")
        for field in absent:
            if isinstance(field.default, type):
                self.scope[field.default.__name__] = field.default
            lines.append(f" m.{field.name} = {field.default_source()}")
        lines += [" " + line for line in self.decode_fields(plain)]
        if self.flexible:
            lines += [" " + line for line in self.decode_tags(tagged)]
        lines.append(" return m, p")
        return lines

    def _generator(self) -> list[str]:
        """Return lines that make a function without a yield a generator."""
        return [" if False: yield"] if self._step else []

    def decode_fields(self, fields: list[Field]) -> list[str]:
        lines: list[str] = []
        run: list[Field] = []
        for field in fields:
            if field.kind in _FIXED:
                run.append(field)
                continue
            lines += self.decode_run(run)
            run = []
            lines += self.decode_value(field, f"m.{field.name}")
        return lines + self.decode_run(run)

    def decode_run(self, run: list[Field]) -> list[str]:
        if not run:
            return []
        targets = ", ".join(f"m.{field.name}" for field in run)
        comma = "," if len(run) == 1 else ""
        size = sum(_SIZES[field.kind] for field in run)
        return [f"{targets}{comma} = {self.packer([f.kind for f in run])}(b, p)", f"p += {size}"]

    def decode_length(self, kind: str) -> list[str]:
        """Return lines that set ``n`` to the length, or -1 for null."""
        if self.flexible:
            read = "uvs" if kind == "string" else "uv"
            return ["n = b[p]", "if n < 128: n -= 1; p += 1", f"else: n, p = {read}(b, p); n -= 1"]
        wide = kind != "string"
        return [
            f"n, = {self.packer(['int32' if wide else 'int16'])}(b, p)",
            f"p += {4 if wide else 2}",
        ]

    def decode_value(self, field: Field, target: str) -> list[str]:
        if field.kind == "struct":
            return self.decode_struct(field, target)
        if field.kind in _FIXED:
            kind = field.kind
            return [f"{target}, = {self.packer([kind])}(b, p)", f"p += {_SIZES[kind]}"]
        nullable = self.version in field.nullable or field.kind == "records"
        null = (
            f"{target} = None" if nullable else f"raise DecodeError('{field.name} may not be null')"
        )
        lines = [*self.decode_length(field.kind), f"if n < 0: {null}", "else:"]
        if field.kind == "array":
            return lines + [" " + line for line in self.decode_array(field, target)]
        take = {"string": "text(b, p, q)", "bytes": "bytes(b[p:q])", "records": "b[p:q]"}[
            field.kind
        ]
        return [
            *lines,
            " q = p + n",
            f" if q > end: raise DecodeError('{field.name} reaches beyond the end')",
            f" {target} = {take}; p = q",
        ]

    def decode_struct(self, field: Field, target: str) -> list[str]:
        assert isinstance(field.item, type)
        read = f"{target}, p = {self._call.format(f'd_{field.item.__name__}(b, p, end)')}"
        if self.version not in field.nullable:
            return [read]
        return [
            f"n, = {self.packer(['int8'])}(b, p)",
            "p += 1",
            f"if n < 0: {target} = None",
            f"else: {read}",
        ]

    def decode_array(self, field: Field, target: str) -> list[str]:
        lines = [
            f"if n > end - p: raise DecodeError('{field.name}: count beyond the end')",
            f"if n > {MAX_ITEMS}: raise DecodeError('{field.name}: more than {MAX_ITEMS} items')",
        ]
        if isinstance(field.item, type):
            return [
                *lines,
                "items = []",
                "for _ in range(n):",
                f" item, p = {self._call.format(f'd_{field.item.__name__}(b, p, end)')}",
                " items.append(item)",
                *(" " + line for line in self._step),
                f"{target} = items",
            ]
        assert field.item is not None
        if field.item in _FIXED:
            code, size = _FIXED[field.item], _SIZES[field.item]
            self.scope["unpack_from"] = _struct.unpack_from
            many = f"'>%d{code}' % n" if len(code) == 1 else f"'>' + '{code}' * n"
            return [*lines, f"{target} = list(unpack_from({many}, b, p))", f"p += n * {size}"]
        inner = Field(field.item, "0+", default=None)
        inner.name = field.name
        return [
            *lines,
            f"{target} = items_{field.name} = []",
            "for _ in range(n):",
            *(" " + line for line in self.decode_value(inner, "item")),
            f" items_{field.name}.append(item)",
            *(" " + line for line in self._step),
        ]

    def decode_tags(self, tagged: dict[int, Field]) -> list[str]:
        if not tagged:
            return ["if b[p] == 0: p += 1", "else: p = skip_tags(b, p, end)"]
        lines = [
            "count, p = tag_count(b, p)",
            "for _t in range(count):",
            " tag, p = uv(b, p)",
            " size, p = uv(b, p)",
            " stop = p + size",
            " if stop > end: raise DecodeError('tagged field beyond the end')",
        ]
        for tag, field in tagged.items():
            lines.append(f" if tag == {tag}:")
            lines += ["  " + line for line in self.decode_value(field, f"m.{field.name}")]
            lines.append("  if p != stop: raise DecodeError('tagged field of the wrong size')")
        return [*lines, " p = stop"]

    # ---- encoding ----

    def encoder(self, cls: type[Struct], plain: list[Field], tagged: dict[int, Field]) -> list[str]:
        lines = [f"def e_{cls.__name__}(m, out):", *self._generator()]
        run: list[Field] = []
        for field in plain:
            if field.kind in _FIXED:
                run.append(field)
                continue
            lines += self.encode_run(run)
            run = []
            lines += [" " + line for line in self.encode_value(field, f"m.{field.name}")]
        lines += self.encode_run(run)
        if self.flexible:
            lines += [" " + line for line in self.encode_tags(tagged)]
        return [*lines, " return out"]

    def encode_run(self, run: list[Field]) -> list[str]:
        if not run:
            return []
        values = ", ".join(f"m.{field.name}" for field in run)
        return [f" out += P{self.packer([f.kind for f in run])}({values})"]

    def encode_length(self, kind: str, length: str) -> list[str]:
        if self.flexible:
            return [f"n = {length} + 1", "if n < 128: out.append(n)", "else: wuv(out, n)"]
        return [f"out += P{self.packer(['int16' if kind == 'string' else 'int32'])}({length})"]

    def encode_null(self, kind: str) -> str:
        if self.flexible:
            return "out.append(0)"
        return "out += b'\\xff\\xff'" if kind == "string" else "out += b'\\xff\\xff\\xff\\xff'"

    def encode_value(self, field: Field, source: str) -> list[str]:
        if field.kind in _FIXED:
            return [f"out += P{self.packer([field.kind])}({source})"]
        if field.kind == "struct":
            return self.encode_struct(field, source)
        lines = [f"v = {source}", f"if v is None: {self.encode_null(field.kind)}", "else:"]
        if field.kind == "string":
            body = ["v = v.encode()", *self.encode_length("string", "len(v)"), "out += v"]
        elif field.kind == "array":
            body = self.encode_array(field)
        else:
            body = [*self.encode_length("bytes", "len(v)"), "out += v"]
        return lines + [" " + line for line in body]

    def encode_struct(self, field: Field, source: str) -> list[str]:
        assert isinstance(field.item, type)
        write = self._call.format(f"e_{field.item.__name__}({source}, out)")
        if self.version not in field.nullable:
            return [write]
        return [f"if {source} is None: out += b'\\xff'", f"else: out += b'\\x01'; {write}"]

    def encode_array(self, field: Field) -> list[str]:
        lines = self.encode_length("array", "len(v)")
        if isinstance(field.item, type):
            write = self._call.format(f"e_{field.item.__name__}(item, out)")
            return [*lines, "for item in v:", *(" " + line for line in (write, *self._step))]
        assert field.item is not None
        if field.item in _FIXED:
            code = _FIXED[field.item]
            self.scope["pack"] = _struct.pack
            many = f"'>%d{code}' % len(v)" if len(code) == 1 else f"'>' + '{code}' * len(v)"
            return [*lines, f"out += pack({many}, *v)"]
        inner = Field(field.item, "0+", default=None)
        body = [*self.encode_value(inner, "item"), *self._step]
        return [*lines, "for item in v:", *(" " + line for line in body)]

    def encode_tags(self, tagged: dict[int, Field]) -> list[str]:
        if not tagged:
            return ["out.append(0)"]
        lines = ["tags = 0", "body = bytearray()"]
        for tag, field in sorted(tagged.items()):
            default = field.default_source()
            if isinstance(field.default, type):
                self.scope[field.default.__name__] = field.default
            lines += [
                f"if m.{field.name} != {default}:",
                " tags += 1",
                f" wuv(body, {tag})",
                " keep, out = out, bytearray()",
                *(" " + line for line in self.encode_value(field, f"m.{field.name}")),
                " keep, out = out, keep",
                " wuv(body, len(keep))",
                " body += keep",
            ]
        return [*lines, "wuv(out, tags)", "out += body"]
