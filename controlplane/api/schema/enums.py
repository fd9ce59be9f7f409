#!/usr/bin/env python3
"""Writes enums.txt: the values of fields whose types are enumerations, and what upstream says of them.

    ./enums.py SOURCE

SOURCE is a Kubernetes source tree; its pkg/generated/openapi/zz_generated.openapi.go is read. A record begins with a line
`# FIELD` for each of its fields; then follows what their descriptions end with. A list or a map has the values in its items,
and no such text: its record has only the values, in the same form.
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
STRING = r'"(?:[^"\\]|\\.)*"'


def records(source, messages):
    """{what descriptions end with: [field]} of the messages."""
    found = {}
    function = r"\nfunc schema_k8sio_(?:\w+_pkg_apis|api)_(\w+?)_(v\d+)_(\w+)\(ref .*?\n}\n"
    for schema in re.finditer(function, source, re.S):
        message = ".".join(schema.groups())
        for name, body in re.findall(r'\n\t{5}"([^"]+)": \{\n(.*?)\n\t{5}\},', schema[0], re.S):
            enum = re.search(rf"Enum:\s+\[\]interface{{}}{{((?:{STRING}(?:, )?)*)}}", body)
            if message not in messages or not enum:
                continue
            description = json.loads(re.search(rf"Description:\s+({STRING})", body)[1])
            text = re.search(r"\n\n(\n?Possible enum values:\n.*)", description, re.S)
            values = "\n".join(f" - `{value}`" for value in re.findall(STRING, enum[1]))
            found.setdefault(text[1] if text else values, []).append(f"{message}.{name}")
    return found


def main():
    source = pathlib.Path(sys.argv[1], "pkg/generated/openapi/zz_generated.openapi.go").read_text()
    messages = {line.split("\t")[0] for line in (HERE / "messages.txt").read_text().splitlines()}
    texts = sorted((sorted(fields), text) for text, fields in records(source, messages).items())
    written = ["".join(f"# {field}\n" for field in fields) + text + "\n" for fields, text in texts]
    (HERE / "enums.txt").write_text("".join(written))
    print(sum(len(fields) for fields, _ in texts), "fields")


if __name__ == "__main__":
    main()
