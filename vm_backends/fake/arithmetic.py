"""`python3 -c 'print(6*7)'` in a guest that has no Python: sums over a syntax tree, no eval."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

Value = int | float | str
_MAX_BITS = 4096
_MAX_TEXT = 64 * 1024

_OPERATORS: dict[type[ast.operator], Callable[..., Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class NotSimple(Exception):
    """More than prints and sums."""


def printed(code: str) -> str:
    """What a program of nothing but prints prints."""
    try:
        lines = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotSimple("SyntaxError: invalid syntax") from error
    return "".join(_line(line) for line in lines)


def _line(line: ast.stmt) -> str:
    match line:
        case ast.Expr(ast.Call(ast.Name("print"), arguments, [])):
            return " ".join(str(_value(argument)) for argument in arguments) + "\n"
        case ast.Expr(expression):
            _value(expression)
            return ""
    raise NotSimple("this pretend Python only prints and does sums")


def _value(node: ast.expr) -> Value:
    match node:
        case ast.Constant(int() | float() | str() as value):
            return value
        case ast.UnaryOp(ast.USub(), operand):
            return _sum(operator.mul, -1, _value(operand))
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            return _sum(_OPERATORS[type(sign)], _value(left), _value(right))
    raise NotSimple("this pretend Python only prints and does sums")


def _sum(sign: Callable[..., Value], left: Value, right: Value) -> Value:
    _bound(sign, left, right)
    try:
        return sign(left, right)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise NotSimple(f"{type(error).__name__}: {error}") from error


def _bound(sign: Callable[..., Value], left: Value, right: Value) -> None:
    """No sum may take long or much: sizes are known before it is done."""
    bits = [value.bit_length() for value in (left, right) if isinstance(value, int)]
    texts = [len(value) for value in (left, right) if isinstance(value, str)]
    large = any(size > _MAX_BITS for size in bits) or any(size > _MAX_TEXT for size in texts)
    if sign is operator.pow and isinstance(left, int) and isinstance(right, int):
        large = large or left.bit_length() * abs(right) > _MAX_BITS
    if sign is operator.mul and texts and bits:
        count = next(value for value in (left, right) if isinstance(value, int))
        large = large or texts[0] * abs(count) > _MAX_TEXT
    if sign is operator.mod and texts:
        raise NotSimple("this pretend Python only prints and does sums")
    if large:
        raise NotSimple("MemoryError: too large for a pretend Python")
