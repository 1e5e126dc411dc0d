"""The linker of kernels: an ELF object of one kernel becomes an image, bytes that run wherever they are mapped at the start of a page. The kernel compiler
calls it, so that nobody who loads a kernel needs a linker.

A kernel is code and constants that refer to each other by distance alone. Whatever does not fit that (a symbol that no section defines, a variable, an
absolute address) is refused: the loader would take it from anywhere, or crash.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SYMBOL_TABLE, _RELOCATIONS = 2, 4  # types of sections: SHT_SYMTAB, SHT_RELA
_WRITABLE, _ALLOCATED, _EXECUTABLE = 1, 2, 4  # their flags: SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR
_X86_64, _AARCH64 = 62, 183  # e_machine
_PAGE = 4096

# Relocations of "ELF for the Arm 64-bit Architecture", 5.7: bits of the address that a 12-bit field of an instruction leaves out.
_LOW_12_BITS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
_CALLS = (282, 283)
_PAGE_DISTANCE = 275
_DISTANCE = {(_X86_64, 2): 4, (_X86_64, 4): 4, (_X86_64, 24): 8, (_AARCH64, 261): 4, (_AARCH64, 260): 8}  # S + A - P, in so many bytes


class LinkError(RuntimeError):
    """An object is not a kernel: what it refers to or what it contains that an image cannot have."""


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    start: int
    size: int
    link: int
    info: int
    alignment: int


@dataclass(frozen=True)
class _Symbol:
    name: str
    section: int
    value: int


@dataclass(frozen=True)
class Image:
    """Position-independent machine code with its constants. Execution enters at `entry`."""

    code: bytes
    entry: int


def undefined_symbols(code: bytes) -> list[str]:
    """Names that an ELF object uses and does not define."""
    return [symbol.name for symbol in _symbols(code, _sections(code)) if symbol.section == 0 and symbol.name]


def link(code: bytes, symbol: str) -> Image:
    """The image of an object that defines `symbol`, for 64-bit little-endian x86 or Arm. Raises LinkError."""
    if undefined := undefined_symbols(code):
        raise LinkError(f"{symbol} refers to {', '.join(undefined)}, which no object provides (a function outside of `simd`?)")
    machine = struct.unpack_from("<H", code, 18)[0]
    sections = _sections(code)
    places, image = _lay_out(code, sections, symbol)
    symbols = _symbols(code, sections)
    for section in sections:
        if section.kind != _RELOCATIONS or section.info not in places:
            continue
        for at in range(section.start, section.start + section.size, 24):
            offset, information, addend = struct.unpack_from("<QQq", code, at)
            target = symbols[information >> 32]
            if target.section not in places:
                raise LinkError(f"{symbol} refers to {target.name or 'a section'}, which is neither code nor a constant")
            place = places[section.info] + offset
            _relocate(image, machine, information & 0xFFFFFFFF, place, places[target.section] + target.value + addend, symbol)
    entries = [places[found.section] + found.value for found in symbols if found.name == symbol and found.section in places]
    if len(entries) != 1:
        raise LinkError(f"the object does not define {symbol}")
    return Image(bytes(image), entries[0])


def _lay_out(code: bytes, sections: list[_Section], symbol: str) -> tuple[dict[int, int], bytearray]:
    """Where each section that stays in memory begins in the image, code first; and the image before relocation."""
    kept = [number for number, section in enumerate(sections) if section.flags & _ALLOCATED and section.size and section.name != ".eh_frame"]
    kept.sort(key=lambda number: not sections[number].flags & _EXECUTABLE)
    image, places = bytearray(), {}
    for number in kept:
        section = sections[number]
        if section.flags & _WRITABLE or section.kind != 1:  # SHT_PROGBITS
            raise LinkError(f"{symbol} has a section {section.name}; a kernel has code and constants alone")
        image += bytes(-len(image) % max(section.alignment, 64))
        places[number] = len(image)
        image += code[section.start : section.start + section.size]
    return places, image


def _relocate(image: bytearray, machine: int, kind: int, place: int, target: int, symbol: str) -> None:
    """Makes the field at `place` refer to `target`, both offsets in the image, which starts at a page."""
    width = _DISTANCE.get((machine, kind))
    if width is not None:
        image[place : place + width] = (target - place).to_bytes(width, "little", signed=True)
        return
    if machine == _AARCH64:
        (word,) = struct.unpack_from("<I", image, place)
        if kind in _CALLS:
            struct.pack_into("<I", image, place, word & ~0x3FFFFFF | (target - place >> 2) & 0x3FFFFFF)
            return
        if kind == _PAGE_DISTANCE:
            pages = target // _PAGE - place // _PAGE
            struct.pack_into("<I", image, place, word & 0x9F00001F | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)
            return
        if kind in _LOW_12_BITS:
            struct.pack_into("<I", image, place, word & ~(0xFFF << 10) | target % _PAGE >> _LOW_12_BITS[kind] << 10)
            return
    raise LinkError(f"{symbol} has a relocation of type {kind}, which an image cannot have (an absolute address?)")


def _sections(code: bytes) -> list[_Section]:
    start, entry_bytes, count, names = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HHH", code, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", code, start + entry_bytes * index) for index in range(count)]
    return [
        _Section(_text(code, raw[names][4] + name), kind, flags, start, size, link, info, alignment)
        for name, kind, flags, _, start, size, link, info, alignment, _ in raw
    ]


def _symbols(code: bytes, sections: list[_Section]) -> list[_Symbol]:
    found = []
    for table in sections:
        if table.kind == _SYMBOL_TABLE:
            for at in range(table.start, table.start + table.size, 24):
                name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", code, at)
                found.append(_Symbol(_text(code, sections[table.link].start + name), section, value))
    return found


def _text(code: bytes, start: int) -> str:
    return code[start : code.index(b"\0", start)].decode()
