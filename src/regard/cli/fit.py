"""`regard fit NAME`: a command for each subject, made of the settings that its data and its estimators declare."""

import inspect
import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import saving
from regard.estimators import SUBJECTS, subject_module
from regard.estimators.settings import REQUIRED, Setting, setting, settings_of, with_settings
from regard.estimators.subject import Subject, say

_ARGUMENT = "file"
"""The setting that is the command's argument; all others are options."""
_METAVARS: dict[object, str] = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
AnySubject = Subject[Any, Any, Any]
Context = Any  # typer has its own copy of click, whose classes have no public name
_Command = Any


@with_settings
class _Output:
    """What every `regard fit` takes."""

    out: Path = setting("folder to write the model to")
    seed: int = setting("seed: one seed, one result", default=0, at_least=0)
    quiet: bool = setting("no progress bars and no messages", default=False)


def subjects() -> dict[str, AnySubject]:
    """The subjects by the names of their commands."""
    commands = [subject_module(name, "command").SUBJECT for name in SUBJECTS]
    return {subject.name: subject for subject in commands}


class FitGroup(typer.core.TyperGroup):
    """The commands `regard fit NAME`; each is made when it is called, because estimators take a second to import."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(subjects())

    def get_command(self, ctx: Context, name: str) -> _Command | None:
        subject = subjects().get(name)
        return None if subject is None else _fit_command(subject)

    def resolve_command(self, ctx: Context, args: list[str]) -> Any:
        """Raise for a name that is no subject; the message has the nearest one."""
        names = self.list_commands(ctx)
        if args and args[0] not in names:
            near = get_close_matches(args[0], names, 1)
            hint = f"; did you mean regard fit {near[0]}?" if near else f": one of {', '.join(names)}"
            raise ValueError(f"regard fit needs a kind of data before the file, got {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Context, formatter: Any) -> None:
        """List the subjects, one line each, without importing their estimators."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(subject)) for name, subject in subjects().items()])


class _FitCommand(typer.core.TyperCommand):
    """A command that names the nearest option, or the subject that has it, for an option that it does not know."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if not hasattr(error, "option_name") or not hasattr(error, "possibilities"):  # it is not NoSuchOption
                raise
            raise ValueError(
                _unknown_option(str(ctx.info_name), error.option_name, error.possibilities or ())
            ) from None


def _unknown_option(name: str, option: str, near: Sequence[str]) -> str:
    """What to say of an option that `regard fit NAME` does not have; `near` are similar ones, the nearest first.

    >>> _unknown_option("writer", "--epoch", ["--epochs"])
    'regard fit writer has no option --epoch; did you mean --epochs?'
    """
    others = [
        f"regard fit {other}" for other, each in subjects().items() if option in map(_option_name, _declared(each))
    ]
    hint = f"did you mean {near[0]}?" if near else f"regard fit {name} --help lists all"
    hint = f"it is an option of {' and '.join(others)}" if others else hint
    return f"regard fit {name} has no option {option}; {hint}"


def _fit_command(subject: AnySubject) -> _Command:

    def fit(ctx: typer.Context, **_: object) -> None:
        _fit(subject, ctx)

    # The default of an option is None: what was not typed keeps the default that the setting declares.
    signature = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=_option(field),
            default=inspect.Parameter.empty if field.default is REQUIRED else None,
        )
        for field in sorted(_declared(subject), key=lambda field: field.name != _ARGUMENT)
    ]
    signature.append(inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    fit.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    fit.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
    fit.__doc__ = _summary(subject)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
    app.command(subject.name, cls=_FitCommand, context_settings=settings)(fit)
    return typer.main.get_command(app)


def _fit(subject: AnySubject, ctx: typer.Context) -> None:

    def given_values(settings: list[Setting]) -> dict[str, Any]:
        given = [(field, ctx.params[field.name]) for field in settings]
        return {field.name: _value(field, value) for field, value in given if value is not None}

    output = _Output(**given_values(settings_of(_Output)))
    saving.check_folder(output.out)
    settings = {"random_state": output.seed, "verbose": not output.quiet, **given_values(_settings(subject))}
    fitted = subject.fit(subject.data(**given_values(settings_of(subject.data))), settings, output.out)
    if os.environ.get("RANK", "0") != "0":  # of the processes that `torchrun` started, one writes
        return
    config, *rest = fitted.model.state()
    saving.write_folder(output.out, {**config, **fitted.extra}, *rest)
    subject.finish(output.out)
    for line in [*fitted.messages[:-1], f"{fitted.messages[-1]} → {output.out}"]:
        say(line, output.quiet)


def _settings(subject: AnySubject) -> list[Setting]:
    """The settings of a subject's estimators that are options, each once."""
    import regard.estimators

    classes = [getattr(regard.estimators, name) for name in subject.estimators]
    options = {field.name: field for made in classes for field in settings_of(made) if field.option}
    data = {field.name for field in settings_of(subject.data)}
    return [field for name, field in options.items() if name not in data]


def _declared(subject: AnySubject) -> list[Setting]:
    """All that `regard fit NAME` takes."""
    return [*settings_of(subject.data), *_settings(subject), *settings_of(_Output)]


def _option(field: Setting) -> Any:
    kind: Any = str
    if field.parse is None:
        kind = next((known for known in (bool, int, float, Path) if known in field.kinds), str)
    words = not field.kinds and all(isinstance(choice, str) for choice in field.choices)
    metavar = None if kind is bool else _METAVARS[kind] if not field.choices else "WORD" if words else "VALUE"
    named = field.parse is not None or all(str(choice) in field.help for choice in field.choices)
    choices = "" if named else f": {', '.join(map(str, field.choices))}"
    annotation = kind if field.default is REQUIRED else kind | None
    if field.name == _ARGUMENT:
        return Annotated[annotation, typer.Argument(help=field.help, metavar="FILE")]
    shown = not any(field.default is hidden for hidden in (None, REQUIRED, True, False, ""))
    text = f"{field.help}{choices}" + (f" [{field.default}]" if shown else "")
    name = _option_name(field)
    names = f"{name}/--no-{name[2:]}" if field.default is True else name
    return Annotated[annotation, typer.Option(names, help=text, metavar=metavar, show_default=False)]


def _value(field: Setting, text: Any) -> Any:
    """The value of an option, checked by what the setting declares."""
    if field.parse is not None:
        value = field.parse(text)
    elif text == "none" and field.optional:
        value = None
    else:
        value = next((choice for choice in field.choices if str(choice) == text), text)
    try:
        field.verify(value)
    except ValueError as error:
        raise ValueError(f"{_option_name(field)}: {error}") from None
    return value


def _option_name(field: Setting) -> str:
    """A setting as an option is typed."""
    return f"--{field.name.replace('_', '-')}"


def _summary(subject: AnySubject) -> str:
    return (type(subject).__doc__ or "").split("\n")[0]
