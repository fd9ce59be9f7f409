"""Helm, the library that its command line is made of: a release from the first installation to the last trace.

usage: helm.py LIBRARY KUBECONFIG CHART IMAGE    (the image serves on port 80)
"""

import asyncio
import sys

sys.path.insert(0, sys.argv[1])

import helm_sdkpy as helm  # noqa: E402

NAMESPACE = "helm"
TIMEOUT = 120


def equal(found, expected):
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


async def main(kubeconfig, chart, image):
    configuration = helm.Configuration(namespace=NAMESPACE, kubeconfig=kubeconfig)
    install, upgrade = helm.Install(configuration), helm.Upgrade(configuration)
    values = {"image": image, "colour": "red"}

    first = await install.run("web", chart, values=values, create_namespace=True, wait=True, timeout=TIMEOUT)
    equal(first["info"]["status"], "deployed")
    try:
        await install.run("web", chart, values=values, wait=False)
        raise AssertionError("installed twice")
    except helm.InstallError as error:
        if "cannot reuse a name that is still in use" not in str(error):
            raise

    values["colour"] = "blue"
    second = await upgrade.run("web", chart, values=values, wait=True, timeout=TIMEOUT)
    equal((second["version"], second["info"]["status"]), (2, "deployed"))
    equal([release["info"]["status"] for release in await helm.History(configuration).run("web")], ["superseded", "deployed"])
    equal((await helm.GetValues(configuration).run("web"))["colour"], "blue")
    equal([release["name"] for release in await helm.List(configuration).run()], ["web"])
    status = await helm.Status(configuration).run("web")
    maps = {each["metadata"]["name"]: each["data"] for each in status["info"]["resources"]["v1/ConfigMap"]}
    # The chart asks for the server's version and for what it serves.
    equal(maps["web"]["colour"], "blue")
    equal(maps["web"]["deployments"], "true")
    if not maps["web"]["version"].startswith("v1.36."):
        raise AssertionError(maps)

    # Back again. Its own rollback fails before it asks the server for anything: this library sets no way of waiting.
    values["colour"] = "red"
    third = await upgrade.run("web", chart, values=values, wait=True, timeout=TIMEOUT)
    equal((third["version"], third["info"]["status"]), (3, "deployed"))

    await helm.Uninstall(configuration).run("web", wait=True, timeout=TIMEOUT)
    equal(await helm.List(configuration).run() or [], [])


asyncio.run(main(*sys.argv[2:]))
