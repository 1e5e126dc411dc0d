"""The character classes of the pre-tokenizers: which code points are letters, numbers, punctuation, symbols, marks and white space.

Regex engines carry the Unicode version of the day they were built, and so does Python (5,109 code points differ between Python 3.11's tables and
those of llama.cpp). A vocabulary's ids must not depend on that, so the classes are fixed here: the facts of Unicode 15.1, as llama.cpp has them. Only
`pretokenizers` uses this module.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

# One character stands for each class in a collapsed text. They lie outside ASCII, which is kept as it is, and below U+0100.
NUMBER = "\xd1"
LETTER = "\xd2"
PUNCTUATION = "\xd3"
MARK = "\xd4"
SYMBOL = "\xd5"
HAN_LETTER = "\xd6"  # only in texts collapsed with separate_han
HAN_OTHER = "\xd7"
OTHER = "\xd0"
WHITESPACE = "\x0b"

_CLASS_OF_CODE = {"N": NUMBER, "L": LETTER, "P": PUNCTUATION, "M": MARK, "S": SYMBOL, "W": WHITESPACE, "o": OTHER}

_HAN_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)

# Runs over U+0000 ... U+10FFFF: a class (Number, Letter, Punctuation, Mark, Symbol, White space, other), then the length in hexadecimal (absent: 1).
_RUNS = (
    "o9W5o12WP3SP6SP4NaP2S3P2L1aP3SPSL1aPSPSo6Wo1aWPS5PS2LPSoS4N2SLP2SNLPN3PL17SL1fSL1caS4LcSeL5S7LSLS11M70L5SL2o2L4PLo4S2LPL3oLoL14oL53SL8bSM7La"
    "6oL26o2LP6L29P2o2S3oM2dPMPM2PM2PMo8L1bo4L4P2o11S3P2SP2S2MbPoP3L2bM15NaP4L2ML63PLM7oSM6L2M2SM4L2NaL3S2LPeo2LML1eM1bo2L59MbLoeNaL21M9L2SP3Lo2M"
    "S2L16M4LM9LM3LM5o2PfoL19M3o2PoLbo5L18SL6o9M8L2aM18oM21L36M3LM12LM7LaM2P2NaPL10M3oL8o2L2o2L16oL7oLo3L4o2MLM7o2M2o2M3Lo8Mo4L2oL3M2o2NaL2S2N6S2"
    "LPMo2M3oL6o4L2o2L16oL7oL2oL2oL2o2MoM5o4M2o2M3o3Mo7L4oLo7NaM2L3MPoaM3oL9oL3oL16oL7oL2oL5o2MLM8oM3oM3o2LofL2M2o2NaPSo7LM6oM3oL8o2L2o2L16oL7oL2"
    "oL5o2MLM7o2M2o2M3o7M3o4L2oL3M2o2NaSLN6oaMLoL6o3L3oL4o3L2oLoL2o3L2o3L3o3Lco4M5o3M3oM4o2Lo6MoeNdS8o5M5L8oL3oL17oL10o2MLM7oM3oM4o7M2oL3o2Lo2L2M"
    "2o2Nao7PN7SLM3PL8oL3oL17oLaoL5o2MLM7oM3oM4o7M2o6L2oL2M2o2NaoL2MocM4L9oL3oL29M2LM7oM3oM4LSo4L3MN7L3M2o2N13SL6oM3oL12o3L18oL9oLo2L7o3Mo4M6oMoM"
    "8o6Nao2M2PocL30ML2M7o4SL7M8PNaP2o25L2oLoL5oL18oLoLaML2M9Lo2L5oLoM7oNao2L4o20LS3PfSPS3M2S6N14SMSMSMP4M2L8oL24o4M14PM2L5MboM24oS8MS6oS2P5S4P2o"
    "25L2bM14LNaP6L6M4L4M3LM3L2M7L3M4LdMcLMNaM4S2L26oLo5Lo2L2bPL14doL4o2L7oLoL4o2L29oL4o2L21oL4o2L7oLoL4o2LfoL39oL4o2L43o2M3P9N14o3L10Sao6L56o2L6"
    "o2PL26cSPL11WL1aP2o3L4bP3N3L8o7L12M4o9L13M3P2o9L12M2ocLdoL3oM2ocL34M20P3LP3SLMo2Nao6Nao6PbM3oMNao6L59o7L5M2L22MLo5L46oaL1foMco4Mco4So3P2NaL1"
    "eo2L5obL2co4L1ao6Nbo3S22L17M5o2P2L35MaoM1do2MNao6Nao6P7LP6o2M1fo31M5L2fM11L8o3NaP7SaM9S9P2oM3L1eMdL2NaL2cMeo8P4L24M14o3P5Nao3L3NaL24P2L9o7L2"
    "bo2L3P8o8M3PM15L4ML6ML2M3Lo5Lc0M40L116o2L6o2L26o2L6o2L8oLoLoLoL1fo2L35oL7SLS3L3oL7S3L4o2L6oS3LdS3o2L3oL7S2oWbo5P18W2o5WP14SPdSPcWo10NLo2N6S3"
    "P2LNaS3P2oLdo3S21ofM21ofS2LS4LS2LaSLS3L5S6LSLSLSL4SLbS2L4S5L5S4LSN33L2N5S2o4S178P4S1dP2Sfco19Sbo15N3cS4eN16S268PeN1eS31P2S1fPaS193P16S3fP4S2"
    "0P2S176o2S20oS69Le5S6L4M3L2o5P4NP2L26oLo5Lo2L38o7LPoeML17o9L7oL7oL7oL7oL7oL7oL7oL7oM20P2fLP20S2Pco22S1aoS59ocSd6o1aS10WP3SL2NPaS2PcSN9M6PL5S"
    "2N3L2PS2oL56o2M2S2L3PL5aPL4o5L2boL5eoS2N4SaL20S24obSL10S1foNaS1eN8SNfS20NaS27NfS140L19c0S40L568do3S37o9L2eP2L10dP3L10NaL2o14L2fM4PMaPL1fM2L4"
    "6NaM2P6o8S17L9S2L67S2L40o5L2oLoL5o18L10ML3ML4ML17M5S4Mo3N6S4o6L34P4o8M2L32M12o8P2Nao6M12L6P3LPL2MNaL1cM8P2L17MdobPL1do3M4L2fMePdoLNao4P2L5ML"
    "aNaL5oL29Meo9L3ML8M2o2Nao2P4L17S3LM3L32MLM3L2M2L5M2LMLo18L3P2LbM5P2L3M2oaL6o2L6o2L6o9L7oL7oL2bSLeS2o4L73M8PM2o2Nao6L2ba4ocL17o4L31o2104L16eo"
    "2L6ao26L7ocL5o5LMLaSLdoL5oLoL2oL2oL6cS11o10L16bP2S10L40o2L36o7So20LcS4M10Pao6M10P23oPeSPS3oPSP2o4L5oL87o4P3SP6SP4NaP2S3P2L1aP3SPSL1aPSPSP7L5"
    "9o3L6o2L6o2L6o2L3o3S7oS7odS2o2LcoL1aoL13oL2oLfo2Leo22L7bo5P3o4N2do3S9N39S11N2S3oSdo3So2fS2dMo82L1do3L31ofMN1bo4L20N4o9L14NL8No5L26M5o5L1eoPL"
    "24o4L8PN5o2aL9eo2Nao6L24o4L24o4L28o8L34obPLboLfoL7oL2oLboLfoL7oL2o43L137o9L16oaL8o18L6oL2aoL9o45L6o2LoL2coL2o3Lo2L17oPN8L17S2N7L1fo8N9o30L13"
    "oL2o5N5L16N6o3PL1ao5Po40L38o4N2L2N10o2N2eLM3oM2o5M4L4oL3oL1do2M3o4MN9o7P9o7L1dN2PL1dN3o20L8SL1cM2o4N5P7o9L36o3P7L16o2N8L13o5N8L12o7P4ocN7o50"
    "L49o37L33odL33o7N6L24M4o8Nao126N1foL2aoM2Po2L2o4bM3L1dNaLo8L16MbN4P5o16L12M4P4o26L15N7o14L17o9M3L35MfP7o4N1eML2M2Lo9M4L2dMbP2oP4ModL19o7Nao6"
    "M3L24MeoNaP4LM2Lo8L23MP2Lo9M3L30MeL4P4M4PM2NaLPLP3oN14obL12oL19McP6ML2Mo3eL7oLoL4oLfoLaPo6L2fMco5Nao6M4oL8o2L2o2L16oL7oL2oL5oM2LM7o2M2o2M3o2"
    "Lo6Mo5L5M2o2M7o3M5o8bL35M12L4P5NaP2oPML3o1eL30M14L2PLo8Naoa6L2fM7o2M9P17L4M2o22L30M11P3LobNao6Pdo13L2bMdLPo6Nao36L1bo2Mfo4NcP3SL7ob9L2cMfPo6"
    "4L40N13ocL8o2Lo2L8oL2oL18M6oM2o2M4LMLM2P3o9Nao46L8o2L27M7o2M7LPLMo1bLMaL28M7LM4P8Mo8LMbL2eM10P3LP5odL49o7Paof6L9oL25M8oM8LP5oaN1do3P2L1eo2M1"
    "6oMeo49L7oL2oL26M6o3MoM2oM7LMo8Nao6L6oL2oL20M5oM2oM5Lo7Nao136L13M4P2o7M2LMLdoL22M7o3M5PdNao56LofN15S1dodPL39ao66N6foP5obLc4oa4cL61P2odL430o1"
    "0ML6MfofaaL247o21b9L239o7L1foNao4P2L4foNao6L1eo2M5PoaL30M7P5S4L4PSoaNaoN7oL15o5L13o2b0L40N17P4o65L4bo4MLM37o7M4Ldo40L2PLMobM2oeL17f8o8L4d6o2"
    "aL9o22e7L4oL7oL2oL123ofLo1dL3o2LoeL4o8L18co904L6bo5Ldo3L9o7Lao2SM2Po1260M2eo2M17o9S74o3cSf6oaS27o2S3cM5S3M6o8M8S2M7S1eM4S3do15S42M3So7aN14oc"
    "N14ocS57o9N19o87L55oL47oL2o2Lo2L2o2L4oLcoLoL7oL41oL4o2L8oL7oL1coL4oL5oLo3L7oL154o2L19SL19SL1fSL19SL1fSL19SL1fSL19SL1fSL19SL8o2N32S200M37S4M3"
    "2S8MSeMS2P5ofM5oMfo450L1fo6L6od5M7oM11o2M7oM2oM5o5L3eo21Mo70L2do3M7L7o2Nao4LSo140L1eMo11L2cM4Nao5So1d0L1cM4Nao2e6L7oL4oL2oLfoLc5o2N9M7o29L44"
    "M7Lo4Nao4P2o311N3bSN3SN4o4cN2dSNfoc2L4oL1boL2oLo2LoLaoL4oLoLo6Lo4LoLoLoL3oL2oLo2LoLoLoLoLoL2oLo2L4oL7oL4oL4oLoLaoL11o5L3oL5oL11o34S2o10eS2co"
    "4S64ocSfo2SfoSfoS25oaNdSa1o38S1dodS2co4S9o7S2oeS6o9aS3d8o4S11o3Sdo3S77o4S5fo6Sco4SofSco4S38o8Sao6S28o8S1eo2S2o4eS154ocSeo2Sdo3S9o7S2eoS7o8Se"
    "o4S9o7S9o7S93oS37o25Nao406La6e0o20L103ao6Ldeo2L1682oeL1d31ofL26eo9a2L21eo5e2L134bo5L1060oadd50Mf0o2fe10"
)


def collapse(text: str, separate_han: bool = False) -> str:
    """The text with every character beyond ASCII replaced by the character that stands for its class: as many characters as `text` has.

    With `separate_han`, Han ideographs get classes of their own (and are then no LETTER).
    """
    if text.isascii():
        return text
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return _table(separate_han)[codes].tobytes().decode("latin-1")


def replace_wide_whitespace(text: str) -> str:
    """The text with white space beyond ASCII replaced by a vertical tab, so that an ASCII `\\s` finds it: as many characters as `text` has."""
    if text.isascii():
        return text
    return text.translate(_wide_whitespace())


@cache
def _table(separate_han: bool) -> NDArray[np.uint8]:
    """uint8[0x110000]: for each code point the latin-1 code of its stand-in."""
    codes: list[int] = []
    lengths: list[int] = []
    position = 0
    while position < len(_RUNS):
        end = position + 1
        while end < len(_RUNS) and _RUNS[end] in "0123456789abcdef":
            end += 1
        codes.append(ord(_CLASS_OF_CODE[_RUNS[position]]))
        lengths.append(int(_RUNS[position + 1 : end] or "1", 16))
        position = end
    table = np.repeat(np.array(codes, np.uint8), lengths)
    table[:128] = np.arange(128)
    if separate_han:
        for first, last in _HAN_RANGES:
            span = table[first : last + 1]
            span[:] = np.where(span == ord(LETTER), ord(HAN_LETTER), ord(HAN_OTHER))
    return table


@cache
def _wide_whitespace() -> dict[int, str]:
    return {int(code): WHITESPACE for code in np.flatnonzero(_table(False)[128:] == ord(WHITESPACE)) + 128}
