"""Whether a value fits a JSON schema of the OpenAPI document: as much of the rules as that uses.

Stricter in one thing: an object may have no key that its schema does not name, so that the document
is complete.
"""

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
KNOWN = {
    *("type", "enum", "const", "minimum", "maximum", "anyOf", "items", "required", "properties"),
    *("additionalProperties", "$ref", "description"),
}


class Schemas:
    """The schemas of one document."""

    def __init__(self, document):
        self._schemas = document["components"]["schemas"]

    def misfit(self, value, schema, place="$"):
        """What is wrong with the value; None if nothing is."""
        assert set(schema) <= KNOWN, f"{place}: keywords that this does not know: {schema}"
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"].removeprefix("#/components/schemas/")]
            return self.misfit(value, schema, place)
        if "anyOf" in schema:
            found = [self.misfit(value, option, place) for option in schema["anyOf"]]
            return None if None in found else " or ".join(found)
        kinds = schema.get("type", list(TYPES))
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not any(is_of(value, kind) for kind in kinds):
            return f"{place}: {type(value).__name__} is no {kinds}"
        if value not in schema.get("enum", [value]) or value != schema.get("const", value):
            return f"{place}: {value!r} is another word"
        if is_of(value, "number") and not (
            schema.get("minimum", value) <= value <= schema.get("maximum", value)
        ):
            return f"{place}: {value} is out of range"
        return next(filter(None, self._below(value, schema, place)), None)

    def _below(self, value, schema, place):
        if isinstance(value, list) and "items" in schema:
            for i, entry in enumerate(value):
                yield self.misfit(entry, schema["items"], f"{place}[{i}]")
        if isinstance(value, dict):
            for name in schema.get("required", ()):
                yield None if name in value else f"{place}.{name}: missing"
            if "properties" in schema or "additionalProperties" in schema:
                other = schema.get("additionalProperties")
                for name, entry in value.items():
                    below = schema.get("properties", {}).get(name, other)
                    where = f"{place}.{name}"
                    yield self.misfit(entry, below, where) if below else f"{where}: unknown"


def is_of(value, kind):
    """Whether a value has a JSON type; Python's bool is an int."""
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
