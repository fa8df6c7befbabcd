"""Build the libraries that MindSpore's plugin for Ascend asks for: each missing function answers 0."""

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

WORKS_WITH = ("2.10.0",)
"""Releases of MindSpore whose wheel was compiled with this way; others need other symbols."""

TOOLS = ("gcc", "g++", "nm", "strings", "ldd")
PLUGINS = ("plugin/libmindspore_ascend.so.2", "plugin/libmindspore_ops_ascend.so")
OF_CANN = re.compile(r"_ZNK?2ge|_ZNK?3gert|acl|hal|Hccl|rt[A-Z]|Msprof|drv|aicpu|dlog|shmem|smem|_ZN.*[Gg]e")
"""Symbols that CANN defines; what else is missing, Python or the C library brings."""
BY_NAME = re.compile(r"(?:acl|hal|Hccl|rt)[A-Za-z0-9_]+")
"""Symbols that the plugin looks up by name while it runs."""
SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1")
EMPTY = ("ge_runner", "runtime")
WITH_RUNTIME = ("acl_tdt_channel", "acl_op_compiler", "acl_tdt_queue", "msprofiler", "ascend_hal")


def why_not():
    """Return the reason why this way does not work here, None where it does."""
    try:
        found = version("mindspore")
    except PackageNotFoundError:
        return "MindSpore is not installed"
    if found not in WORKS_WITH:
        return f"the stand-ins for CANN were made for MindSpore {', '.join(WORKS_WITH)}, this is {found}"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"no {', '.join(missing)} to build the stand-ins for CANN with" if missing else None


def build(folder):
    """Build the libraries below a folder; return the variables with which a process finds them."""
    library = Path(find_spec("mindspore").origin).parent / "lib"
    # MindSpore takes the libraries to be CANN's by the word in the path of the one with aclrtMalloc
    out = folder / "cann" / "lib64"
    (out / "driver").mkdir(parents=True)
    (folder / "cann" / "opp").mkdir()
    (folder / "python" / "hccl").mkdir(parents=True)
    (folder / "python" / "hccl" / "__init__.py").write_text("class sys_version:\n    __sys_version__ = '8.5'\n")

    asked, by_name = _missing(library)
    runtime = Path(__file__).with_name("runtime.cc").read_text()
    made = set(re.findall(r"\b((?:acl|hal)\w+)\(", runtime))
    acl = {name for name in asked | by_name if name.startswith(("acl", "hal"))}
    (folder / "acl.cc").write_text(f'{runtime}\nextern "C" {{\n{_answering_zero(acl - made)}\n}}\n')
    (folder / "hccl.c").write_text(_answering_zero({name for name in by_name if name.startswith(("Hccl", "rt"))}))
    (folder / "graph.cc").write_text(_graph_engine(asked - acl))
    (folder / "empty.c").write_text("int stands_in;\n")

    _link("g++", folder / "graph.cc", out / "libgraph.so", "-D_GLIBCXX_USE_CXX11_ABI=0")
    _link("g++", folder / "acl.cc", out / "libascendcl.so")
    _link("gcc", folder / "hccl.c", out / "libhccl.so")
    for name in EMPTY:
        _link("gcc", folder / "empty.c", out / f"lib{name}.so")
    for name in WITH_RUNTIME:
        _link("gcc", folder / "empty.c", out / f"lib{name}.so", "-Wl,--no-as-needed", f"-L{out}", "-lascendcl")
    shutil.copy(out / "libascend_hal.so", out / "driver")
    while absent := re.findall(r"(\S+) => not found", _run("ldd", library / PLUGINS[0], LD_LIBRARY_PATH=str(out))):
        for name in absent:
            _link("gcc", folder / "empty.c", out / name)
    return {
        "ASCEND_HOME_PATH": str(folder / "cann"),
        "ASCEND_OPP_PATH": str(folder / "cann" / "opp"),
        "LD_LIBRARY_PATH": str(out),
        "MS_SIMULATION_LEVEL": "0",
        "PYTHONPATH": str(folder / "python"),
    }


def _missing(library):
    """Return the symbols of CANN that MindSpore's plugin is linked to, and those that it looks up by name."""
    ascend = library / "plugin" / "ascend"
    users = [*ascend.glob("*.so"), *(library / name for name in PLUGINS)]
    users += ascend.glob("ms_kernels_symmetric_memory/shmem/shmem/lib/libshmem.so")
    own = [*library.glob("*.so*"), *(library / "plugin").glob("*.so*"), *ascend.glob("*.so*")]
    own += [Path(_run("gcc", f"-print-file-name={name}").strip()) for name in SYSTEM]
    defined = {name for path in own if path.is_file() for name, _ in _symbols(path, "--defined-only")}
    undefined = {name for path in users for name, kind in _symbols(path, "--undefined-only") if kind in ("U", "v")}
    texts = (ascend / "libmindspore_ascend_res_manager.so", library / PLUGINS[0], ascend / "libd_collective.so")
    words = {word for path in texts for word in _run("strings", "-n", "5", path).split()}
    return (
        {name for name in undefined - defined if OF_CANN.match(name)},
        {word for word in words if BY_NAME.fullmatch(word)},
    )


def _symbols(path, which):
    lines = (line.split() for line in _run("nm", "-D", which, path).splitlines())
    return {(fields[-1].split("@")[0], fields[-2]) for fields in lines if len(fields) > 1}


def _answering_zero(names):
    return "\n".join(f"long {name}(){{return 0;}}" for name in sorted(names)) + "\n"


def _graph_engine(names):
    """Return stand-ins for the graph engine's classes: constructors clear what they make, one map is a real one."""
    lines = ["#include <cstdint>", "#include <cstring>", "#include <map>", "#include <string>", 'extern "C" {']
    for name in sorted(names):
        if name == "_ZN2ge13StatusFactory8InstanceEv":
            made = "static struct { std::map<uint32_t, std::string> texts; char rest[256]; } factory;"
            lines.append(f"void* {name}() {{ {made} return &factory; }}")
        elif re.search("C[12]E", name):
            clear = "" if "Register" in name else "memset(place, 0, 16);"
            lines.append(f"void* {name}(void* place) {{ {clear} return place; }}")
        else:
            lines.append(f"long {name}() {{ return 0; }}")
    return "\n".join([*lines, "}\n"])


def _link(compiler, source, target, *options):
    command = [compiler, "-w", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{target.name}", "-o", target, source, *options]
    subprocess.run([str(part) for part in command], check=True, timeout=120)


def _run(*command, **environment):
    words, variables = [str(word) for word in command], {**os.environ, **environment}
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=120, env=variables).stdout
