"""The class of all commands: help whose options are grouped under headings, in two columns."""

from __future__ import annotations

import click

_COLUMN = 26  # width of the column of names; longer names have a line of their own
_GENERAL = "General"  # heading of options without one, if others have headings


class Command(click.Command):
    """A command whose help shows its options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, the columns of all headings aligned."""
        sections = option_rows(self, ctx)
        names = [name for rows in sections.values() for name, _ in rows]
        width = min(_COLUMN, max(map(len, names), default=0))
        for heading, rows in sections.items():
            with formatter.section(heading):
                padded = [(name.ljust(width), text) for name, text in rows]
                formatter.write_dl(padded, col_max=_COLUMN)


def option_rows(command: click.Command, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Return the names and help texts of a command's options by heading."""
    sections: dict[str, list[tuple[str, str]]] = {}
    last = []
    for param in command.get_params(ctx):
        if not isinstance(param, click.Option) or param.hidden:
            continue
        row = (_names(param, ctx), _text(param, ctx))
        heading = getattr(param, "heading", "")
        if heading:
            sections.setdefault(heading, []).append(row)
        else:
            last.append(row)
    if last:
        sections.setdefault(_GENERAL if sections else "Options", []).extend(last)
    return sections


def _names(option: click.Option, ctx: click.Context) -> str:
    """Return ``-o, --output FOLDER``, or ``--[no-]live`` for a switch with two names."""
    names = sorted(option.opts, key=lambda name: name.startswith("--"))
    if option.secondary_opts:
        names[-1] = names[-1].replace("--", "--[no-]", 1)
    text = ", ".join(names)
    if option.is_flag or option.count:
        return text
    return f"{text} {_metavar(option, ctx)}"


def _metavar(option: click.Option, ctx: click.Context) -> str:
    """Return what stands for the value: the choices, N for whole numbers, ..."""
    if option.metavar is not None:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(option.type.choices)
    if option.type.name.startswith("integer"):
        return "N"
    if option.type.name.startswith("float"):
        return "NUMBER"
    return option.make_metavar(ctx)


def _text(option: click.Option, ctx: click.Context) -> str:
    """Return the help of an option and its default, unless that is nothing, 0 or no."""
    text = option.help or ""
    default = option.get_default(ctx, call=False)
    if option.required:
        note = "[required]"
    elif not option.show_default or option.count or default in (False, ()):
        return text
    elif isinstance(default, (list, tuple)):
        note = f"[default: {', '.join(map(str, default))}]"
    elif not isinstance(default, (str, int, float)):  # there is none
        return text
    else:
        shown = "on" if default is True else default
        note = f"[default: {shown:g}]" if isinstance(shown, float) else f"[default: {shown}]"
    return f"{text}  {note}" if text else note
