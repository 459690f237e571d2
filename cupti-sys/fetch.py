"""Puts CUPTI's headers and library into a folder: fetch.py FOLDER WHEEL...

A WHEEL is a requirement as pip writes them, with its hash: NAME==VERSION --hash=sha256:DIGEST. Together they
hold what is wanted: the headers in FOLDER/include, the library in FOLDER/lib. Nothing is installed.
Any number of these may run at once; the folder appears whole or not at all.
"""

import fcntl
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

HEADERS = (
    "cuda.h", "cuda_stdint.h", "cupti_activity.h", "cupti_activity_deprecated.h", "cupti_callbacks.h",
    "cupti_common.h", "cupti_driver_cbid.h", "cupti_events.h", "cupti_metrics.h", "cupti_result.h",
    "cupti_runtime_cbid.h", "cupti_version.h", "generated_cuda_meta.h",
    "Openacc/cupti_openacc.h", "Openmp/cupti_openmp.h",
)
# These came with CUDA 13.
LATER = ("cupti_activity_deprecated.h", "cupti_common.h")


def main(folder, *wheels):
    folder = pathlib.Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
            scratch = pathlib.Path(scratch)
            unpacked = scratch / "unpacked"
            for wheel in download(scratch, wheels):
                unpack(wheel, unpacked)
            missing = [name for name in HEADERS if not (unpacked / "include" / name).exists()]
            missing = [name for name in missing if name not in LATER]
            if missing or not list(unpacked.glob("lib/libcupti.so.*")):
                sys.exit(f"{' and '.join(wheels)} lack {', '.join(missing) or 'the library'}")
            unpacked.rename(folder)


def download(scratch, wheels):
    """The wheels, checked against their hashes by pip. One platform's serve all: headers are the same."""
    (scratch / "requirements.txt").write_text("\n".join(wheels) + "\n")
    command = [
        pip_python(scratch), "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--require-hashes", "--only-binary=:all:",
        "--platform", "manylinux1_x86_64", "--platform", "manylinux2014_x86_64",
        "--platform", "manylinux_2_17_x86_64", "--platform", "manylinux_2_25_x86_64",
        "--dest", scratch, "--requirement", scratch / "requirements.txt",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        names = ", ".join(wheel.split()[0] for wheel in wheels)
        sys.exit(f"pip failed to download {names}; the network is needed this once\n{done.stdout.strip()}")
    return sorted(scratch.glob("*.whl"))


def pip_python(scratch):
    """A Python that has pip: this one, else one in a virtual environment."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run([sys.executable, "-m", "pip", "--version"], **quiet).returncode == 0:
        return sys.executable
    venv = scratch / "venv"
    if subprocess.run([sys.executable, "-m", "venv", venv], **quiet).returncode == 0:
        return venv / "bin" / "python3"
    sys.exit("this Python has neither pip nor venv; on Debian: apt-get install python3-pip")


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            target = place(name)
            if target:
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, open(folder / target, "wb") as out:
                    shutil.copyfileobj(source, out)


def place(name):
    """Where a file of a wheel goes; None for what is not wanted. Wheels of 12 and 13 have different folders."""
    _, include, header = name.partition("/include/")
    if include:
        return f"include/{header}" if header in HEADERS else None
    _, lib, library = name.partition("/lib/")
    return f"lib/{library}" if lib and library.startswith("libcupti.so.") else None


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(str(error))
