"""Messages to dataclasses, field by field of the same name."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
Read = Callable[[Any], Any]


class WireEnum(enum.Enum):
    """An enum whose values are the names of the wire's, without their common prefix."""

    @classmethod
    def _of(cls, name: str) -> Any:
        # A newer server may know more values than this client.
        return cls._value2member_map_.get(name, cls("UNSPECIFIED"))

    def __str__(self) -> str:
        return str(self.value)


def convert(cls: type[T], message: Any) -> T:
    """The message as an instance of the dataclass `cls`."""
    key: Any = cls  # Classes are hashable, whatever their metaclass says.
    return cls(**{name: read(message) for name, read in _plan(key)})


@cache
def _plan(cls: Hashable) -> list[tuple[str, Read]]:
    kind: Any = cls
    hints = typing.get_type_hints(kind)
    return [(field.name, _reader(field.name, hints[field.name])) for field in dataclasses.fields(kind)]


def _reader(name: str, hint: Any) -> Read:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        entry = _value(arguments[0])
        return lambda message: tuple(entry(e) for e in getattr(message, name))
    if origin in (typing.Union, types.UnionType):
        value = _value(arguments[0])
        return lambda message: value(getattr(message, name)) if message.HasField(name) else None
    if origin is not None and issubclass(origin, Mapping):
        value = _value(arguments[1])
        return lambda message: {k: value(v) for k, v in getattr(message, name).items()}
    if isinstance(hint, type) and issubclass(hint, WireEnum):
        of = hint._of
        return lambda message: of(enum_name(message, name))
    value = _value(hint)
    return lambda message: value(getattr(message, name))


def _value(hint: Any) -> Read:
    if dataclasses.is_dataclass(hint):
        return lambda message: convert(typing.cast(type[Any], hint), message)
    return lambda value: value


def enum_name(message: Any, field: str) -> str:
    """The name of an enum field's value without the prefix that all values of its type share."""
    kind = message.DESCRIPTOR.fields_by_name[field].enum_type
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    found = kind.values_by_number.get(getattr(message, field))
    return str(found.name).removeprefix(prefix) if found is not None else "UNSPECIFIED"
