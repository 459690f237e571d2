"""Puts files of PyPI wheels into a folder. pip downloads the wheels and checks them against their hashes. Source archives
are allowed where an option for pip says so: --pip=--no-binary=NAME.

Nothing is installed, and nothing is kept but what is wanted. Any number of these may run at once; the folder appears
whole or not at all.
"""

import argparse
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile


def main(words):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="a relative one is in the user's cache, and its whole path is printed")
    parser.add_argument("wheels", nargs="+", metavar="WHEEL", help="as pip writes it: NAME==VERSION --hash=sha256:DIGEST")
    parser.add_argument("--keep", nargs=2, action="append", required=True, metavar=("PATTERN", "TARGET"),
                        help="files of this name in a wheel, all of it, go there in the folder")
    parser.add_argument("--need", action="append", default=[], metavar="GLOB", help="it is an error if this is not there then")
    parser.add_argument("--pip", action="append", default=[], metavar="OPTION", help="for pip: --pip=--platform=manylinux2014_x86_64")
    parser.add_argument("--progress", action="store_true", help="what pip says goes to stderr")
    wish = parser.parse_args(words)
    folder = wish.folder
    if not folder.is_absolute():
        folder = cache() / folder
        print(folder, end="")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
            scratch = pathlib.Path(scratch)
            unpacked = scratch / "unpacked"
            for wheel in download(scratch, wish):
                unpack(wheel, wish.keep, unpacked)
            missing = [glob for glob in wish.need if not any(unpacked.glob(glob))]
            if missing:
                sys.exit(f"{names(wish.wheels)} lack {', '.join(missing)}")
            unpacked.rename(folder)


def cache():
    """The user's cache of this project."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / ".cache") / "ncclscope"


def names(wheels):
    return ", ".join(wheel.split()[0] for wheel in wheels)


def download(scratch, wish):
    """The wheels, checked."""
    (scratch / "requirements.txt").write_text("\n".join(wish.wheels) + "\n")
    command = [
        pip_python(scratch), "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir",
        "--no-deps", "--require-hashes", "--only-binary=:all:", *wish.pip,
        "--dest", scratch, "--requirement", scratch / "requirements.txt",
    ]
    output = sys.stderr if wish.progress else subprocess.PIPE
    done = subprocess.run(command, stdout=output, stderr=None if wish.progress else subprocess.STDOUT, text=True)
    if done.returncode != 0:
        said = "" if wish.progress else "\n" + done.stdout.strip()
        sys.exit(f"pip failed to download {names(wish.wheels)}; the network is needed this once{said}")
    return sorted([*scratch.glob("*.whl"), *scratch.glob("*.tar.gz")])


def pip_python(scratch):
    """A Python that has pip: this one, else one in a virtual environment."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run([sys.executable, "-m", "pip", "--version"], **quiet).returncode == 0:
        return sys.executable
    venv = scratch / "venv"
    if subprocess.run([sys.executable, "-m", "venv", venv], **quiet).returncode == 0:
        return venv / "bin" / "python3"
    sys.exit("this Python has neither pip nor venv; on Debian: apt-get install python3-pip")


def unpack(wheel, keep, folder):
    for name, source in files(wheel):
        found = next((match.expand(target) for pattern, target in keep if (match := re.fullmatch(pattern, name))), None)
        if found:
            target = folder / found
            target.parent.mkdir(parents=True, exist_ok=True)
            with source() as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)


def files(wheel):
    """The names of the files in a wheel or a source archive, each with a function that opens it."""
    if wheel.suffix == ".whl":
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not name.endswith("/"):
                    yield name, lambda: archive.open(name)
    else:
        with tarfile.open(wheel) as archive:
            for member in archive:
                if member.isfile():
                    yield member.name, lambda: archive.extractfile(member)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(str(error))
