"""Recognition of files that are not plain UTF-8 text, by their first bytes."""

import shlex

GZIP = b"\x1f\x8b"
_BYTES = 4096
# First bytes of other formats: description, and the command that converts a file to text.
_FORMATS = {
    GZIP: ("a gzip file", "gunzip < {} > {}.txt"),
    b"BZh": ("a bzip2 file", "bunzip2 < {} > {}.txt"),
    b"\xfd7zXZ\x00": ("an xz file", "xz -dc {} > {}.txt"),
    b"\x28\xb5\x2f\xfd": ("a zstd file", "zstd -dc {} > {}.txt"),
    b"\x04\x22\x4d\x18": ("an lz4 file", "lz4 -dc {} > {}.txt"),
    b"PK\x03\x04": ("a zip file", "unzip -p {} > {}.txt"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z file", "7z e -so {} > {}.txt"),
    b"%PDF-": ("a PDF file", "pdftotext {} {}.txt"),
}
_TAR, _TAR_AT = b"ustar", 257
_BYTE_ORDER_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
# Encodings whose texts contain NUL, in the order in which they are tried.
_WIDE_ENCODINGS = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
_LEAST_ASCII = 0.01


def check_format(start: bytes, name: str):
    """Raises ValueError if text starts like a compressed file, or like UTF-16 or UTF-32.

    Args:
        start: the first bytes.
        name: path of the file, for the error message.
    """
    file = shlex.quote(name)
    for magic, (received, command) in _FORMATS.items():
        if start.startswith(magic):
            raise ValueError(
                f"Expected text in {name}. Received: {received}. Convert it: "
                f"{command.format(file, file)}"
            )
    if start[_TAR_AT:].startswith(_TAR):
        raise ValueError(
            f"Expected text in {name}. Received: a tar archive. Convert it: tar -xOf {file} > "
            f"{file}.txt"
        )
    encoding = _find_encoding(start[:_BYTES])
    if encoding is not None:
        raise ValueError(
            f"Expected UTF-8 in {name}. Received: {encoding}. Convert it: iconv -f {encoding} -t "
            f"UTF-8 {file} > {file}.utf8"
        )


def _find_encoding(start):
    """Returns the name of the wide encoding of a text, or None for other texts."""
    for mark, name in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return name
    if b"\0" not in start:
        return None
    for name in _WIDE_ENCODINGS:
        text = start[: len(start) // 4 * 4 or 2].decode(name, errors="replace")
        # Other bytes, read in this encoding, are hardly ever ASCII characters.
        ascii_characters = sum(character.isascii() for character in text)
        if "\0" not in text and ascii_characters > _LEAST_ASCII * len(text):
            return name
    return None
