"""A small PNG canvas with lines, boxes and text, so that a plot needs no library."""

from __future__ import annotations

import struct
import zlib

Colour = tuple[int, int, int]
BLACK, GREY, LIGHT, WHITE = (30, 30, 30), (120, 120, 120), (225, 225, 225), (255, 255, 255)
GLYPH_WIDTH, GLYPH_HEIGHT = 5, 7

# Seven rows of five dots each. A row is a number whose highest of five bits is the leftmost dot.
_FONT = {
    "0": (14, 17, 19, 21, 25, 17, 14), "1": (4, 12, 4, 4, 4, 4, 14), "2": (14, 17, 1, 2, 4, 8, 31),
    "3": (31, 2, 4, 2, 1, 17, 14), "4": (2, 6, 10, 18, 31, 2, 2), "5": (31, 16, 30, 1, 1, 17, 14),
    "6": (6, 8, 16, 30, 17, 17, 14), "7": (31, 1, 2, 4, 8, 8, 8), "8": (14, 17, 17, 14, 17, 17, 14),
    "9": (14, 17, 17, 15, 1, 2, 12), ".": (0, 0, 0, 0, 0, 12, 12), ",": (0, 0, 0, 0, 12, 4, 8),
    "-": (0, 0, 0, 31, 0, 0, 0), "/": (1, 1, 2, 4, 8, 16, 16), ":": (0, 12, 12, 0, 12, 12, 0), "_": (0, 0, 0, 0, 0, 0, 31),
    "%": (24, 25, 2, 4, 8, 19, 3), "µ": (0, 0, 17, 17, 19, 29, 16),
    "a": (0, 0, 14, 1, 15, 17, 15), "b": (16, 16, 22, 25, 17, 17, 30), "c": (0, 0, 14, 16, 16, 17, 14),
    "d": (1, 1, 13, 19, 17, 17, 15), "e": (0, 0, 14, 17, 31, 16, 14), "f": (6, 9, 8, 28, 8, 8, 8),
    "g": (0, 15, 17, 17, 15, 1, 14), "h": (16, 16, 22, 25, 17, 17, 17), "i": (4, 0, 12, 4, 4, 4, 14),
    "j": (2, 0, 6, 2, 2, 18, 12), "k": (16, 16, 18, 20, 24, 20, 18), "l": (12, 4, 4, 4, 4, 4, 14),
    "m": (0, 0, 26, 21, 21, 21, 21), "n": (0, 0, 22, 25, 17, 17, 17), "o": (0, 0, 14, 17, 17, 17, 14),
    "p": (0, 0, 30, 17, 30, 16, 16), "q": (0, 0, 13, 19, 15, 1, 1), "r": (0, 0, 22, 25, 16, 16, 16),
    "s": (0, 0, 14, 16, 14, 1, 30), "t": (8, 8, 28, 8, 8, 9, 6), "u": (0, 0, 17, 17, 17, 19, 13),
    "v": (0, 0, 17, 17, 17, 10, 4), "w": (0, 0, 17, 17, 21, 21, 10), "x": (0, 0, 17, 10, 4, 10, 17),
    "y": (0, 0, 17, 17, 15, 1, 14), "z": (0, 0, 31, 2, 4, 8, 31), " ": (0,) * 7,
}  # fmt: skip


class Canvas:
    """An RGB image with the origin at the top left."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(WHITE) * width) for _ in range(height)]

    def box(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        left, right = max(x, 0), min(x + width, self.width)
        if left >= right:
            return
        dots = bytes(colour) * (right - left)
        for row in range(max(y, 0), min(y + height, self.height)):
            self._rows[row][3 * left : 3 * right] = dots

    def line(
        self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, thick: int = 1
    ) -> None:
        steps = max(abs(round(x1 - x0)), abs(round(y1 - y0)), 1)
        for step in range(steps + 1):
            x, y = x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps
            self.box(round(x) - thick // 2, round(y) - thick // 2, thick, thick, colour)

    def text(self, x: int, y: int, text: str, colour: Colour = BLACK, *, scale: int = 2) -> None:
        """Draw a text; characters missing in the font are left blank."""
        for number, letter in enumerate(text.lower()):
            left = x + number * (GLYPH_WIDTH + 1) * scale
            for row, bits in enumerate(_FONT.get(letter, _FONT[" "])):
                for column in range(GLYPH_WIDTH):
                    if bits >> (GLYPH_WIDTH - 1 - column) & 1:
                        self.box(left + column * scale, y + row * scale, scale, scale, colour)

    def png(self) -> bytes:
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self._rows), 9)
        return (
            b"\x89PNG\r\n\x1a\n"
            + _chunk(b"IHDR", header)
            + _chunk(b"IDAT", pixels)
            + _chunk(b"IEND", b"")
        )


def text_width(text: str, scale: int = 2) -> int:
    return len(text) * (GLYPH_WIDTH + 1) * scale


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
