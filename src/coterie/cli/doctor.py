"""`coterie doctor`: what this machine has for runs, what is slow here and why, and the way out."""

from __future__ import annotations

import json
import math
import re
import sys
from importlib import metadata
from typing import Any, NamedTuple

import click

from coterie.cli.machine import find_version, gather_facts
from coterie.cli.printing import print_line
from coterie.core.device import CPU, ISA
from coterie.engines.local.timing_cache import CACHE

EXTRAS = {"flwr": "federation", "ray": "ray"}  # what a package that is not there belongs to
TRACED = "steps are traced and replayed instead of compiled, which is slower in long runs"


class Finding(NamedTuple):
    """Something that makes runs slow, or impossible."""

    what: str
    why: str
    way: str  # out of it


@click.command(short_help="Say what this machine has for runs, and what is slow and why.")
@click.option("--json", "as_json", is_flag=True, help="The same for programs.")
def doctor(as_json: bool) -> None:
    """Compiler, device, threads, versions, cache and data of this machine; then what makes runs
    slow here, each with the way out. The exit code is 1 where a package that Coterie needs is not
    there, else 0.
    """
    facts, broken = gather_facts(), find_missing()
    parts = {"slow": find_slow(facts), "broken": broken}
    if as_json:
        found = facts | {name: [f._asdict() for f in some] for name, some in parts.items()}
        print_line(json.dumps(found, indent=1))
    else:
        _print_facts(facts)
        for name, some in parts.items():
            _print_findings(name, some)
    if broken:
        sys.exit(1)


def find_slow(facts: dict[str, Any]) -> list[Finding]:
    """What makes runs slow here."""
    return [
        *_find_slow_compiler(facts["compiler"]),
        *_find_slow_cores(facts["machine"], facts["threads"]),
        *_find_slow_device(facts["device"]),
        *_find_slow_folders(facts["cache"], facts["data"]),
    ]


def _find_slow_compiler(compiler: dict[str, Any]) -> list[Finding]:
    if not compiler["command"]:
        way = "install gcc or clang, or pip install ziglang"
        return [Finding("compiler", f"there is none: {TRACED}", way)]
    if compiler["problem"]:
        way = "name another with the variable CC, or install gcc, clang or ziglang"
        return [Finding("compiler", f"{compiler['problem']}: {TRACED}", way)]
    return []


def _find_slow_cores(machine: dict[str, Any], threads: dict[str, Any]) -> list[Finding]:
    """What keeps clients from being trained side by side."""
    found = []
    cores, quota, used = machine["cores"], machine["quota"], threads["torch"]
    if used < cores and threads["bounds"]:
        said = " and ".join(f"{name}={value}" for name, value in threads["bounds"].items())
        why = f"{said}: {used} of {cores} cores {'is' if used == 1 else 'are'} used"
        way = f"unset {' and '.join(threads['bounds'])}, or give --threads {cores}"
        found.append(Finding("threads", why, way))
    if quota and quota < used:
        why = f"{used} threads share {quota:g} cores' worth of time, the container's limit"
        way = f"give --threads {max(1, math.floor(quota))}, or raise the limit"
        found.append(Finding("quota", why, way))
    if cores == 1:
        way = "use a machine or container with more cores, or several of them with --engine ray"
        found.append(Finding("cores", "there is one: clients run one after another", way))
    if machine["load"] > cores + 0.5:
        why = f"{machine['load']:g} processes want {cores} cores: timings are too long, and vary"
        found.append(Finding("load", why, "wait, or stop what else runs"))
    return found


def _find_slow_device(device: dict[str, Any]) -> list[Finding]:
    """What is slow about accelerators and bfloat16."""
    found = []
    if device["bfloat16_bound"]:
        why = "oneDNN is kept off the AMX unit, which this processor announces and cannot run"
        if device["bfloat16_bound"] != "AVX512_CORE_BF16":
            why = f"{ISA} = {device['bfloat16_bound']} bounds what oneDNN uses"
        found.append(Finding("bfloat16", why, "leave out --precision bfloat16"))
    if device["auto"] != CPU.type:
        why = f"torch sees {device['auto']}, and runs use the processor by default"
        found.append(Finding("device", why, "give --device auto; no GPU has been timed yet"))
    elif device["nvidia"]:
        why = (
            "there is an NVIDIA driver, but torch sees no device"
            if device["cuda_build"]
            else "there is an NVIDIA driver, but this torch is built for processors"
        )
        found.append(Finding("device", why, "install torch's build for the driver's CUDA"))
    return found


def _find_slow_folders(cache: dict[str, Any], data: dict[str, Any]) -> list[Finding]:
    """What is done anew in every run because it cannot be kept."""
    found, way = [], f"set {CACHE} to a folder of your own"
    if not cache["writable"]:
        why = f"{cache['folder']} cannot be written: every run times and compiles anew"
        found.append(Finding("cache", why, way))
    elif cache["fault"]:
        why = f"compiled steps are not kept there ({cache['fault']}): every run compiles anew"
        found.append(Finding("cache", why, f"mend that, or {way}"))
    if not data["exists"]:
        why = f"{data['folder']} is missing: a data set is downloaded when first used"
        found.append(Finding("data", why, "set COTERIE_DATA to the folder that holds them"))
    return found


def find_missing() -> list[Finding]:
    """Packages that Coterie needs and that are not installed."""
    try:
        wanted = metadata.requires("coterie") or []
    except metadata.PackageNotFoundError:  # it runs from its source
        return []
    names = [re.split(r"[ ;<>=!~\[(]", one)[0] for one in wanted if "extra ==" not in one]
    way = "install Coterie again: pip install --force-reinstall coterie"
    return [Finding(name, "is not installed", way) for name in names if not find_version(name)]


def _print_findings(name: str, findings: list[Finding]) -> None:
    print_line(f"{name}:" if findings else f"{name}: nothing")
    for one in findings:
        print_line(f"  {one.what}: {one.why}\n    way out: {one.way}")


def _print_facts(facts: dict[str, Any]) -> None:
    """One line for each thing."""
    data = facts["data"]
    versions = [
        f"{name} {version or _say_extra(name)}" for name, version in facts["versions"].items()
    ]
    lines = {
        "versions": ", ".join(versions),
        "machine": _say_machine(facts["machine"]),
        "threads": f"{facts['threads']['torch']} of torch",
        "compiler": _say_compiler(facts["compiler"]),
        "device": _say_device(facts["device"]),
        "cache": _say_cache(facts["cache"]),
        "data": data["folder"]
        + (f" ({data['from']})" if data["from"] else "")
        + ("" if data["exists"] else ", which is missing"),
        "  there": ", ".join(data["there"]),
        "  absent": ", ".join(data["absent"]) or "-",
    }
    for name, text in lines.items():
        print_line(f"{name:9} {text}")


def _say_machine(machine: dict[str, Any]) -> str:
    cores = f"{machine['cores']} core" + "s" * (machine["cores"] != 1)
    limit = f" of which {machine['quota']:g} may be used" if machine["quota"] else ""
    return f"{machine['system']}, {cores}{limit}, {machine['memory_gb']} GB, load {machine['load']}"


def _say_compiler(compiler: dict[str, Any]) -> str:
    if not compiler["command"]:
        return "none"
    made = "makes no machine code" if compiler["problem"] else "makes machine code"
    return f"{compiler['command']} ({compiler['version'] or 'says no version'}), {made}"


def _say_device(device: dict[str, Any]) -> str:
    built = f", torch built for CUDA {device['cuda_build']}" if device["cuda_build"] else ""
    return device["auto"] + built


def _say_cache(cache: dict[str, Any]) -> str:
    owner = f"compiled steps refused: {cache['fault']}" if cache["fault"] else "ours alone"
    return f"{cache['folder']}: {cache['files']:,} files, {cache['megabytes']:,} MB, {owner}"


def _say_extra(name: str) -> str:
    """How a package that is not there is had."""
    return f"not installed (pip install 'coterie[{EXTRAS[name]}]')" if name in EXTRAS else "missing"
