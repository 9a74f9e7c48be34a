"""How the pretend shell reads a line: words with quotes, operators, lists of pipelines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_OPERATORS = ("2>&1", "&&", "||", ">>", "2>", ">&2", ";", "|", ">", "<", "&", "(", ")", "`")
_JOINS = (";", "&&", "||")
_VARIABLE = re.compile(r"\$(?:(\w+|\?|\$)|\{(\w+)\})")


class BadSyntax(Exception):
    """The line is more than this shell understands."""


@dataclass(frozen=True, slots=True)
class Word:
    """Pieces of text, each with whether `$` means something in it."""

    pieces: tuple[tuple[str, bool], ...]
    quoted: bool = False

    def expand(self, variables: Mapping[str, str]) -> str | None:
        """Its value; None if nothing is left of it and no quotes keep it."""

        def value(match: re.Match[str]) -> str:
            return variables.get(match[1] or match[2], "")

        text = "".join(_VARIABLE.sub(value, t) if live else t for t, live in self.pieces)
        first = self.pieces[0] if self.pieces else ("", False)
        if first[1] and not self.quoted and (text == "~" or text.startswith("~/")):
            text = variables.get("HOME", "/") + text[1:]
        return text if text or self.quoted else None


@dataclass(slots=True)
class Command:
    words: list[Word] = field(default_factory=list)
    redirects: list[tuple[str, Word]] = field(default_factory=list)


@dataclass(slots=True)
class Pipeline:
    """Commands joined by `|`, and the operator before the first of them."""

    join: str
    commands: list[Command]


def parse(text: str) -> list[Pipeline]:
    pipelines = [Pipeline(";", [Command()])]
    tokens = list(_tokens(text))
    place = 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        command = pipelines[-1].commands[-1]
        if isinstance(token, Word):
            command.words.append(token)
        elif token in _JOINS:
            if not command.words and token != ";":
                raise BadSyntax(f"unexpected {token}")
            pipelines.append(Pipeline(token, [Command()]))
        elif token == "|":
            if not command.words:
                raise BadSyntax("unexpected |")
            pipelines[-1].commands.append(Command())
        elif token in ("2>&1", ">&2"):
            command.redirects.append((token, Word(())))
        elif token in (">", ">>", "<", "2>"):
            target = tokens[place] if place < len(tokens) else ""
            if isinstance(target, str):
                raise BadSyntax(f"{token} needs a name")
            command.redirects.append((token, target))
            place += 1
        else:
            raise BadSyntax(f"{token} is more than this pretend shell knows")
    return [pipeline for pipeline in pipelines if _complete(pipeline)]


def _complete(pipeline: Pipeline) -> bool:
    empty = [not command.words and not command.redirects for command in pipeline.commands]
    if any(empty) and (len(empty) > 1 or pipeline.join != ";"):
        raise BadSyntax("unexpected end")
    return not any(empty)


def _tokens(text: str) -> Iterator[Word | str]:
    pieces: list[tuple[str, bool]] = []
    quoted = False
    at = 0
    while at < len(text):
        char = text[at]
        started = bool(pieces) or quoted
        operator = next((o for o in _OPERATORS if text.startswith(o, at)), "")
        if operator.startswith("2") and started:
            operator = ""
        if char in " \t\r\n" or operator or (char == "#" and not started):
            if started:
                yield Word(tuple(pieces), quoted)
                pieces, quoted = [], False
            if operator:
                yield operator
                at += len(operator)
            elif char == "#":
                at = _until(text, "\n", at)
            else:
                if char == "\n":
                    yield ";"
                at += 1
        elif char == "'":
            end = _closing(text, "'", at)
            pieces.append((text[at + 1 : end], False))
            quoted, at = True, end + 1
        elif char == '"':
            at = _double(text, at + 1, pieces)
            quoted = True
        elif char == "\\":
            pieces.append((text[at + 1 : at + 2], False))
            at += 2
        else:
            end = at + 1
            while end < len(text) and text[end] not in " \t\r\n'\"\\;|&<>()`":
                end += 1
            pieces.append((text[at:end], True))
            at = end
    if pieces or quoted:
        yield Word(tuple(pieces), quoted)


def _double(text: str, at: int, pieces: list[tuple[str, bool]]) -> int:
    """Read to the closing double quote; where to go on after it."""
    while at < len(text) and text[at] != '"':
        if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`"):
            pieces.append((text[at + 1], False))
            at += 2
        else:
            end = min(_until(text, '"', at), _until(text, "\\", at + 1))
            pieces.append((text[at:end], True))
            at = end
    if at >= len(text):
        raise BadSyntax('a " has no end')
    return at + 1


def _until(text: str, what: str, at: int) -> int:
    found = text.find(what, at)
    return len(text) if found < 0 else found


def _closing(text: str, quote: str, at: int) -> int:
    end = text.find(quote, at + 1)
    if end < 0:
        raise BadSyntax(f"a {quote} has no end")
    return end
