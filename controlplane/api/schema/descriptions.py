#!/usr/bin/env python3
"""Writes descriptions.txt: what upstream says of the fields that columns of tables show.

    ./descriptions.py [CRATE]

Takes every field that the sources below ../src name as a text, like "core.v1.PodSpec.nodeName", and its documentation from
the crate k8s-openapi (default: the newest below ~/.cargo/registry/src). A record begins with `# FIELD`; its text follows.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
NAMED = re.compile(r'"([a-z]+\.v\d+\.[A-Z]\w+\.[a-z]\w+)"')


def snake(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def text(types, field):
    group, version, message, name = field.split(".")
    folder = "apimachinery/pkg/apis/meta" if group == "meta" else f"api/{group}"
    source = (types / folder / version / f"{snake(message)}.rs").read_text()
    comment = []
    for line in source[source.index(f"pub struct {message} {{"):].splitlines()[1:]:
        line = line.strip()
        member = re.match(r"pub (\w+):", line)
        if line.startswith("///"):
            comment.append(line[4:])
        elif member and member[1].replace("_", "") == name.lower():
            return "\n".join(comment)
        elif member:
            comment = []
    sys.exit(f"{field}: no such field")


def main():
    registry = pathlib.Path.home() / ".cargo/registry/src"
    crate = pathlib.Path(sys.argv[1]) if sys.argv[1:] else max(registry.glob("*/k8s-openapi-*"))
    types = crate / "src/v1_36"
    sources = (HERE.parent / "src").rglob("*.rs")
    fields = {field for source in sources for field in NAMED.findall(source.read_text())}
    records = [f"# {field}\n{text(types, field)}\n" for field in sorted(fields)]
    (HERE / "descriptions.txt").write_text("".join(records))
    print(len(records), "fields")


if __name__ == "__main__":
    main()
