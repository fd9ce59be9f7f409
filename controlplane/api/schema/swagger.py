#!/usr/bin/env python3
"""Writes parameters.txt and lists.txt: what upstream's OpenAPI document says of the parameters that operations take, and of
lists.

    ./swagger.py SWAGGER

SWAGGER is api/openapi-spec/swagger.json of a Kubernetes source tree. A line of parameters.txt has the name of a sort of
operations, a tab, and one parameter as JSON; one of lists.txt the name of a list, and between tabs what is said of it, of its
metadata and of its items.
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
POD = "/api/v1/namespaces/{namespace}/pods/{name}"
# A path and a method that take them; without a method, what the path itself takes.
SORTS = {
    "attach": (POD + "/attach", None),
    "delete": (POD, "delete"),
    "exec": (POD + "/exec", None),
    "list": (POD.removesuffix("/{name}"), "get"),
    "log": (POD + "/log", None),
    "namespace": (POD.removesuffix("/{name}"), None),
    "nodes/proxy": ("/api/v1/nodes/{name}/proxy/{path}", None),
    "patch": (POD, "patch"),
    "pods/proxy": (POD + "/proxy/{path}", None),
    "portforward": (POD + "/portforward", None),
    "pretty": ("/api/v1/nodes/{name}", None),
    "services/proxy": ("/api/v1/namespaces/{namespace}/services/{name}/proxy/{path}", None),
    "write": (POD, "put"),
}


def main():
    document = json.loads(pathlib.Path(sys.argv[1]).read_text())
    lines = []
    for sort, (path, method) in SORTS.items():
        item = document["paths"][path]
        for parameter in (item[method] if method else item)["parameters"]:
            if "$ref" in parameter:
                parameter = document["parameters"][parameter["$ref"].removeprefix("#/parameters/")]
            if parameter["name"] not in {"body", "name", "namespace", "pretty"} - {sort}:
                lines.append(f"{sort}\t{json.dumps(parameter, sort_keys=True)}\n")
    (HERE / "parameters.txt").write_text("".join(lines))
    print(len(lines), "parameters")
    lines = []
    for name, definition in sorted(document["definitions"].items()):
        members = definition.get("properties", {})
        if re.fullmatch(r"io\.k8s\.(api|[\w-]+\.pkg\.apis)\.\w+\.v\d+\.\w+List", name) and {"kind", "items"} <= set(members):
            said = [definition, members.get("metadata", {}), members["items"]]
            texts = [one.get("description", "") for one in said]
            lines.append("\t".join([name.removeprefix("io.k8s.api."), *texts]) + "\n")
    (HERE / "lists.txt").write_text("".join(lines))
    print(len(lines), "lists")


if __name__ == "__main__":
    main()
