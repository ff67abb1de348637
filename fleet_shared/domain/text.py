"""Text from outside made storable: every string that enters an event or a row can be encoded and holds no NUL."""


def clean_text(text: str) -> str:
    """`text` with lone surrogates and NUL replaced by U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "�")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join("�" if 0xD800 <= ord(character) <= 0xDFFF else character for character in text)
    return text


def shorten(text: str, limit: int) -> str:
    """`text` cut to at most `limit` characters, keeping its head and tail around a mark that tells what is missing."""
    if len(text) <= limit:
        return text
    mark = f" …[{len(text) - limit} more characters]… "
    keep = max(0, limit - len(mark))
    head = (keep * 2) // 3
    tail = keep - head
    return text[:head] + mark + (text[-tail:] if tail else "")
