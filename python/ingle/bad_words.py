"""[1] bad_words as a grammar: any text in which none of the words stands. Any thread, no I/O.

Exact on the text, however tokens cut it, and case-sensitive. A word that begins in the prompt is
not seen, reasoning is free.
"""

from ingle.generation import Grammar


def bad_words_grammar(words: list[str]) -> Grammar:
    """In llguidance's dialect of Lark; `words` is not empty."""
    any_of = "|".join("".join(map(literal, word)) for word in words)
    text = f"start: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:.*)({any_of})(?s:.*)/\n"
    return Grammar(kind="lark", field="bad_words", lark=text)


def literal(character: str) -> str:
    """The character in a regex, whatever it means there or between slashes."""
    plain = character.isascii() and character.isalnum()
    return character if plain else f"\\x{{{ord(character):x}}}"
