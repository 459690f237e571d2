"""Puts libnccl.so.2 of a PyPI wheel into a folder: fetch.py REQUIREMENT SHA256 FOLDER

REQUIREMENT is PACKAGE==VERSION, SHA256 the wheel's. pip downloads and checks it, and shows how far it is. Nothing is
installed, and nothing of the wheel is kept but the library and its licence. Any number of these may run at once; the folder
appears whole or not at all.
"""

import fcntl
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

LIBRARY = "libnccl.so.2"
WANTED = (LIBRARY, "License.txt", "LICENSE.txt", "LICENSE")


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
        pip_python(scratch), "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir",
        "--no-deps", "--require-hashes", "--only-binary=:all:",
        "--dest", scratch, "--requirement", scratch / "requirements.txt",
    ]
    # What pip says goes to stderr, where people look for progress.
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        sys.exit(f"pip failed to download {requirement}; the network is needed this once")
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
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            base = name.rsplit("/", 1)[-1]
            if base in WANTED:
                with archive.open(name) as source, open(folder / base, "wb") as target:
                    shutil.copyfileobj(source, target)
    if not (folder / LIBRARY).exists():
        sys.exit(f"{wheel.name} has no {LIBRARY}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(str(error))
