"""Puts CUPTI of a PyPI wheel into a folder: fetch.py REQUIREMENT SHA256 FOLDER

REQUIREMENT is PACKAGE==VERSION, SHA256 the wheel's. Of the wheel only the library, the headers and the licence are kept. Nothing
is installed. Any number of these may run at once; the folder appears whole or not at all.
"""

import fcntl
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

LIBRARY = re.compile(r"libcupti\.so\.\d+")
HEADER = re.compile(r"(cupti|generated|cuda)\w*\.h")
LICENCE = re.compile(r"licen[cs]e(\.txt)?", re.IGNORECASE)


def main(requirement, sha256, folder):
    folder = pathlib.Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
            scratch = pathlib.Path(scratch)
            wheel = download(scratch, requirement, sha256)
            unpacked = scratch / "unpacked"
            unpack(wheel, unpacked)
            unpacked.rename(folder)


def download(scratch, requirement, sha256):
    """The wheel, checked against its hash by pip."""
    (scratch / "requirements.txt").write_text(f"{requirement} --hash=sha256:{sha256}\n")
    command = [
        pip_python(scratch), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
        "--no-deps", "--require-hashes", "--only-binary=:all:",
        "--platform", "manylinux_2_25_x86_64", "--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64",
        "--dest", scratch, "--requirement", scratch / "requirements.txt",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"pip failed to download {requirement}; the network is needed this once\n{done.stdout.strip()}")
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
    """Headers go to include/ with the folders they have below it; the library and the licence beside that."""
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            parts = pathlib.PurePosixPath(name).parts
            base = parts[-1]
            if LIBRARY.fullmatch(base) or LICENCE.fullmatch(base):
                target = folder / base
            elif "include" in parts and (HEADER.fullmatch(base) or parts[-2] in ("Openacc", "Openmp")):
                target = folder.joinpath("include", *parts[parts.index("include") + 1:])
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, open(target, "wb") as out:
                shutil.copyfileobj(source, out)
    if not any(folder.glob("libcupti.so.*")):
        sys.exit(f"{wheel.name} has no libcupti.so")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(str(error))
