"""Commands as functions: annotated parameters become the options and arguments of a click command.

    app = Application()

    @app.command()
    def create(
        topic: Annotated[str, Argument(help="Name of the new topic.")],
        partitions: Annotated[int | None, Option("--partitions", "-p", min=1, help="...")] = None,
    ) -> None: ...

typer reads the same declarations. It needs eleven more packages, among them pydantic, and they took
a third of the CPU time of a short command. So this module reads the few kinds of parameters that
the commands use: bool, int, float, str, Path, enums, lists of these, and a parser function.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import click
from click import BadParameter as BadParameter
from click import Context as Context
from click import confirm as confirm
from click.exceptions import Exit as Exit

if TYPE_CHECKING:
    # Generic only in the annotations of newer versions.
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

Completer = Callable[[Context, str], list[str]]
Function = Callable[..., Any]

# Similar names are suggested for an unknown command.
_SIMILARITY = 0.6


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """The declaration of an option or argument, beside its type and default."""

    names: tuple[str, ...] = ()
    help: str = ""
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    envvar: str | None = None
    case_sensitive: bool = True
    exists: bool = False
    file_okay: bool = True
    dir_okay: bool = True
    parser: Callable[[str], Any] | None = None
    autocompletion: Completer | None = None


class ArgumentDeclaration(Parameter):
    """A positional parameter."""


class OptionDeclaration(Parameter):
    """A named parameter. Without names it is called like the parameter of the function."""


def Option(*names: str, **more: Any) -> Any:
    return OptionDeclaration(names=names, **more)


def Argument(**more: Any) -> Any:
    return ArgumentDeclaration(**more)


# ---------------------------------------------------------------- types of values


class _Number(ParamType):
    def __init__(self, kind: type[int] | type[float], declared: Parameter) -> None:
        self.kind = kind
        self.min, self.max = declared.min, declared.max
        self.name = kind.__name__

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        try:
            number = self.kind(value)
        except ValueError:
            noun = "a whole number" if self.kind is int else "a number"
            self.fail(f"{value!r} is not {noun}", param, ctx)
        if self.min is not None and number < self.min:
            self.fail(f"{value} is out of range: must be at least {self.min}", param, ctx)
        if self.max is not None and number > self.max:
            self.fail(f"{value} is out of range: must be at most {self.max}", param, ctx)
        return number

    def range_text(self) -> str:
        if self.min is None and self.max is None:
            return ""
        low = "" if self.min is None else f"{self.min}<=" if self.max is not None else ""
        high = f"<={self.max}" if self.max is not None else f">={self.min}"
        return f"{low}x{high}"


class _Choice(ParamType):
    def __init__(self, kind: type[Enum], *, case_sensitive: bool) -> None:
        self.case_sensitive = case_sensitive
        self.members = {self._normal(str(member.value)): member for member in kind}
        self.name = "|".join(self.members)

    def _normal(self, text: str) -> str:
        return text if self.case_sensitive else text.lower()

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        if isinstance(value, Enum):
            return value
        member = self.members.get(self._normal(value))
        if member is None:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, self.members))}.", param, ctx)
        return member

    def shell_complete(
        self, ctx: Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        names = [name for name in self.members if name.startswith(self._normal(incomplete))]
        return [click.shell_completion.CompletionItem(name) for name in names]


class _Path(ParamType):
    name = "path"

    def __init__(self, declared: Parameter) -> None:
        self.declared = declared

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        path = Path(value)
        noun = (
            "file" if not self.declared.dir_okay else "path" if self.declared.file_okay else "dir"
        )
        if self.declared.exists and not path.exists():
            self.fail(f"{noun} {value!r} does not exist.", param, ctx)
        if not self.declared.dir_okay and path.is_dir():
            self.fail(f"{noun} {value!r} is a directory.", param, ctx)
        if not self.declared.file_okay and path.is_file():
            self.fail(f"{noun} {value!r} is a file.", param, ctx)
        return path


class _Parsed(ParamType):
    def __init__(self, parser: Callable[[str], Any]) -> None:
        self.parser = parser
        self.name = parser.__name__

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parser(value)
        except ValueError:
            self.fail(f"{value!r} is not valid", param, ctx)
        except BadParameter as error:
            error.param, error.ctx = error.param or param, error.ctx or ctx
            raise


class Kind(NamedTuple):
    """A type of parameter: the type of one value, and whether there may be several."""

    element: Any
    several: bool


def kind_of(hint: Any) -> Kind:
    """Return ``int`` for ``int | None``; several of them for ``list[int]`` and ``list[int] |
    None``.
    """
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    return Kind(get_args(hint)[0], True) if get_origin(hint) is list else Kind(hint, False)


def _value_type(element: Any, declared: Parameter) -> ParamType:
    if declared.parser is not None:
        return _Parsed(declared.parser)
    if element is int or element is float:
        return _Number(element, declared)
    if element is Path:
        return _Path(declared)
    if isinstance(element, type) and issubclass(element, Enum):
        return _Choice(element, case_sensitive=declared.case_sensitive)
    return click.BOOL if element is bool else click.STRING


def _type_text(kind: Kind, value_type: ParamType) -> str:
    """Return the type as help shows it, such as ``<int range>`` or ``<list[str]>``."""
    if isinstance(value_type, _Choice):
        name = value_type.name
    elif kind.several:
        name = str(kind.element.__name__)
    elif isinstance(value_type, _Number) and value_type.range_text():
        name = f"{value_type.name} range"
    else:
        name = "str" if value_type is click.STRING else value_type.name
    return f"<list[{name}]>" if kind.several else f"<{name}>"


# ---------------------------------------------------------------- parameters


class _Described(click.Parameter):
    """What options and arguments have in common: their type and remarks in the help."""

    declared: Parameter
    kind: Kind
    # The default of the function, which click may replace by a marker.
    own_default: Any

    def shown_type(self) -> str:
        return self.declared.metavar or _type_text(self.kind, self.type)

    def described(self) -> str:
        """Return the help, followed by the environment variable, default, range and need."""
        remarks = [f"env var: {self.declared.envvar}"] if self.declared.envvar else []
        if default := self.shown_default():
            remarks.append(f"default: {default}")
        if isinstance(self.type, _Number) and (limits := self.type.range_text()):
            remarks.append(limits)
        if self.required:
            remarks.append("required")
        return "  ".join(
            filter(None, [self.declared.help, f"[{'; '.join(remarks)}]" if remarks else ""])
        )

    def shown_default(self) -> str:
        default = self.own_default
        if isinstance(default, Enum):
            return str(default.value)
        if isinstance(default, bool) or not isinstance(default, str | int | float | Path):
            return ""
        return str(default)


class _Option(_Described, click.Option):
    def get_help_record(self, ctx: Context) -> tuple[str, str] | None:
        names = [", ".join(sorted(self.opts, key=lambda name: name.startswith("--")))]
        if self.secondary_opts:
            names.append(", ".join(self.secondary_opts))
        shown = " / ".join(names)
        return (shown if self.is_flag else f"{shown} {self.shown_type()}"), self.described()

    def shown_default(self) -> str:
        if self.is_flag and self.secondary_opts:
            return (self.opts if self.own_default else self.secondary_opts)[-1].removeprefix("--")
        return super().shown_default()


class _Argument(_Described, click.Argument):
    def make_metavar(self, ctx: Context) -> str:
        name = self.human_readable_name
        if not name.startswith("["):
            name = f"{{{name}}}" if self.required else f"[{name}]"
        return f"{name}{self._dots()}"

    def _dots(self) -> str:
        """Return the dots of a repeatable argument, unless its metavar has them."""
        return "..." if self.nargs != 1 and "..." not in self.human_readable_name else ""

    @property
    def human_readable_name(self) -> str:
        return self.declared.metavar or str(self.name)

    def get_error_hint(self, ctx: Context | None) -> str:
        return f"'{self.human_readable_name}'"

    def get_help_record(self, ctx: Context) -> tuple[str, str]:
        shown = f"{self.human_readable_name}{self._dots()} {_type_text(self.kind, self.type)}"
        return shown, self.described()


def _parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    """Return the click parameter of an annotated parameter of a function."""
    base, declared = get_args(hint)
    kind = kind_of(base)
    required = default is inspect.Parameter.empty
    common: dict[str, Any] = {"type": _value_type(kind.element, declared), "required": required}
    if not required and not (kind.several and default is None):
        common["default"] = default
    if declared.envvar is not None:
        common["envvar"] = declared.envvar
    if declared.autocompletion is not None:
        common["shell_complete"] = lambda ctx, _param, text: declared.autocompletion(ctx, text)
    made: _Option | _Argument
    if isinstance(declared, ArgumentDeclaration):
        made = _Argument([name], nargs=-1 if kind.several else 1, **common)
    else:
        made = _Option(
            [*_option_names(name, kind, declared), name], **common, **_option_shape(kind)
        )
    made.declared, made.kind, made.own_default = declared, kind, default
    return made


def _option_names(name: str, kind: Kind, declared: Parameter) -> tuple[str, ...]:
    if declared.names:
        return declared.names
    word = name.replace("_", "-")
    return (f"--{word}/--no-{word}",) if kind.element is bool else (f"--{word}",)


def _option_shape(kind: Kind) -> dict[str, Any]:
    return {"is_flag": True} if kind.element is bool else {"multiple": kind.several}


# ---------------------------------------------------------------- commands


class _Command(click.Command):
    def format_options(self, ctx: Context, formatter: click.HelpFormatter) -> None:
        for title, kind in (("Arguments", click.Argument), ("Options", click.Option)):
            rows = [
                row
                for parameter in self.get_params(ctx)
                if isinstance(parameter, kind)
                and (row := parameter.get_help_record(ctx)) is not None
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Group(click.Group):
    """A command with verbs. It suggests similar verbs for an unknown one."""

    def list_commands(self, ctx: Context) -> list[str]:
        """Return the verbs in the order of their declaration."""
        return list(self.commands)

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            similar = difflib.get_close_matches(name, self.list_commands(ctx), cutoff=_SIMILARITY)
            hint = f" Did you mean {', '.join(map(repr, similar))}?" if similar else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


class Registered(NamedTuple):
    """A function that is a command."""

    name: str
    function: Function
    epilog: str | None = None


class Application:
    """The functions of one noun: one command, or a group of verbs."""

    def __init__(
        self,
        *,
        help: str = "",
        cls: type[Group] = Group,
        no_args_is_help: bool = False,
        name: str = "",
    ) -> None:
        self.name = name
        self.help = help
        self.cls = cls
        self.no_args_is_help = no_args_is_help
        self.commands: list[Registered] = []
        self.is_group = False

    def command(
        self, name: str | None = None, *, epilog: str | None = None
    ) -> Callable[[Function], Function]:
        """Register a function. Its name is that of the verb, unless one is given."""

        def register(function: Function) -> Function:
            verb = name or function.__name__.strip("_").replace("_", "-")
            self.commands.append(Registered(verb, function, epilog))
            return function

        return register

    def callback(self) -> Callable[[Function], Function]:
        """Make this a group even with one verb, with the docstring of the function as its help."""

        def register(function: Function) -> Function:
            self.is_group = True
            self.help = inspect.getdoc(function) or ""
            return function

        return register

    def build(self) -> click.Command:
        """Return the click command."""
        if len(self.commands) == 1 and not self.is_group:
            return _build(self.commands[0])
        return self.cls(
            self.name or None,
            commands=[_build(registered) for registered in self.commands],
            help=self.help,
            no_args_is_help=self.no_args_is_help,
        )


def _build(registered: Registered) -> click.Command:
    function = registered.function
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function).parameters
    contexts = [name for name in signature if hints[name] is Context]
    declared = [
        _parameter(name, hints[name], parameter.default)
        for name, parameter in signature.items()
        if name not in contexts
    ]
    lists = {
        str(parameter.name): signature[str(parameter.name)].default
        for parameter in _several(declared)
    }

    def call(**values: Any) -> Any:
        for name, default in lists.items():
            values[name] = list(values[name]) or (None if default is None else [])
        for name in contexts:
            values[name] = click.get_current_context()
        return function(**values)

    return _Command(
        registered.name,
        params=declared,
        callback=call,
        help=inspect.getdoc(function),
        epilog=registered.epilog,
    )


def _several(parameters: Sequence[click.Parameter]) -> list[click.Parameter]:
    return [parameter for parameter in parameters if parameter.multiple or parameter.nargs != 1]
