"""Podman containers: an image archive is loaded once per attempt, and its image runs each rank."""

from __future__ import annotations

import hashlib
import logging
import os
import resource
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker.launchers.rank_environment import OF_OTHER_PYTHONS, output_of
from worker.node.folder_usage import remove_tree
from worker.node.process_tree import WRAPPER
from worker.node.users import RankUser

logger = logging.getLogger(__name__)

PODMAN = "podman"
OF_PODMAN = ("crun", "unshare")
"""Programs that Podman needs here. Only crun is suitable, because another runtime would create its
own cgroups."""
SCRATCH = Path("/tmp")
STORE = "containers"
SETTINGS = "containers.conf"
LIST_SECONDS = 60.0
MAX_PROCESSES = 32_768
"""Maximum number of processes. Podman runs with this limit and cannot raise it for a container."""
OF_THE_IMAGE = frozenset({"PATH", "LD_LIBRARY_PATH", *OF_OTHER_PYTHONS})
"""Variables that keep their value from the image."""
OF_THE_LAUNCHER = (
    *("RANK", "WORLD_SIZE", "LOCAL_*", "GROUP_*", "ROLE_*", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_*", "TORCH_*", "NCCL_*", "TRAINYARD_*"),
)
"""Variables that torchrun and the supervisor set for each rank; `*` matches any suffix."""


@dataclass(frozen=True)
class PodmanContainer:
    """An image in the attempt's own store; its processes see the node's bound folders."""

    engine: str
    """Path of the Podman program."""
    image: str
    """Path of the image archive."""
    binds: tuple[str, ...]
    """Folders of the node, visible at the same paths."""
    gpus: bool
    """Whether to add the GPUs of the node."""
    run: Path
    """Run directory, which holds the image store until the attempt ends."""
    user: RankUser | None = None
    """User who runs Podman; by default, the worker's own user."""

    @property
    def store(self) -> Path:
        """Folder of the image store."""
        return self.run / STORE

    def prepare(self) -> list[str]:
        """Create Podman's folders, and return the command that loads the image."""
        self.store.mkdir(mode=0o700)
        scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix(self.run), dir=SCRATCH))
        # Use file locks: by default, all stores of a user share one lock file in /dev/shm.
        (scratch / SETTINGS).write_text('[engine]\nlock_type = "file"\n', encoding="utf-8")
        if self.user is not None:
            for folder in (self.store, scratch):
                os.chown(folder, self.user.uid, self.user.gid)
        return [*self._podman(), "load", "--quiet", "--input", self.image]

    def loaded(self) -> str:
        """Return the id of the loaded image.

        Raises:
            ValueError: no image was loaded, or the archive held several images.
        """
        user = self.user.word if self.user else "-"
        command = [*self._podman(), "images", "--all", "--quiet", "--no-trunc"]
        tied = [*WRAPPER, "tie", str(os.getpid()), user, "--", *command]
        found = {*output_of(tied, seconds=LIST_SECONDS, folder=self.run, user=self.user).split()}
        if len(found) != 1:
            raise ValueError(f"{self.image} holds {len(found)} images; legal: one")
        return found.pop()

    def words(
        self, image: str, command: Sequence[str], *, folder: str, variables: Mapping[str, str]
    ) -> list[str]:
        """Return the command line that runs a command in the image.

        Podman creates no PID namespace, because the supervisor ends processes by their host pids.
        It creates no cgroup, so processes stay in the attempt's cgroup. Ranks of one node share
        network and memory. The root folder of the image is read-only.

        Args:
            image: the result of `loaded`.
            command: the command to run in the container.
            folder: working folder of the command.
            variables: variables of the ranks, inherited by name; Podman sets `HOME`.
        """
        names = sorted({*variables, *OF_THE_LAUNCHER} - OF_THE_IMAGE - {"HOME"})
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
        if processes < 0 or processes > MAX_PROCESSES:
            processes = MAX_PROCESSES
        # As root of a user namespace, the process keeps the attempt's groups, which may write to
        # the storage. Outside of the namespace, the user owns the created files.
        rootless = ["--group-add=keep-groups"] if self.user is not None or os.geteuid() else []
        rootless += [f"--umask={self.user.umask:04o}"] if self.user is not None else []
        return [
            *self._podman(),
            *("run", "--rm", "--pull=never", "--read-only", "--log-driver=passthrough"),
            *("--pid=host", "--network=host", "--ipc=host", "--no-hosts"),
            *("--cgroups=no-conmon", "--pids-limit=0"),
            *(f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={processes}:{processes}"),
            *("--security-opt=no-new-privileges", "--security-opt=label=disable"),
            *rootless,
            *(("--device=nvidia.com/gpu=all",) if self.gpus else ()),
            *(f"--env={name}" for name in names),
            *(f"--env=HOME={variables[name]}" for name in ("HOME",) if name in variables),
            *(f"--volume={bind}:{bind}" for bind in self.binds),
            *(f"--workdir={folder}", "--entrypoint=", image, *command),
        ]

    def _podman(self) -> list[str]:
        """Return the words that start every Podman command line."""
        scratch = next(_scratch_folders(self.run, self.user), None)
        if scratch is None:
            raise ValueError(f"the container's folder in {SCRATCH} is gone")
        settings = [f"CONTAINERS_CONF={scratch}/{SETTINGS}", f"XDG_RUNTIME_DIR={scratch}"]
        # In a mount namespace, mounts vanish with the last process of the attempt, however it ends.
        # `unshare` enters a namespace with one id. Podman's own way would leave an intermediate
        # process that does not forward signals, and needs programs that `no_new_privs` disarms.
        apart = ["unshare", "--mount"]
        uid, gid = os.geteuid(), os.geteuid()
        if self.user is not None:
            uid, gid = self.user.uid, self.user.gid
        if uid != 0:
            apart += ["--user", "--map-root-user"]
            settings += ["_CONTAINERS_USERNS_CONFIGURED=done"]
            settings += [f"_CONTAINERS_ROOTLESS_UID={uid}", f"_CONTAINERS_ROOTLESS_GID={gid}"]
        return [
            # Ignore the account's Podman settings, which another user may be unable to read.
            *("/usr/bin/env", "--unset=XDG_CONFIG_HOME", "--unset=XDG_DATA_HOME"),
            *(f"HOME={scratch}", *settings, *apart, self.engine),
            *(f"--root={self.store}", f"--runroot={scratch}/run", f"--tmpdir={scratch}/tmp"),
            *("--storage-driver=overlay", "--storage-opt=overlay.ignore_chown_errors=true"),
            # Print only the error that ends Podman; its other messages mislead.
            *("--log-level=fatal", "--cgroup-manager=cgroupfs", "--events-backend=none"),
            *("--runtime=crun", "--runtime-flag=cgroup-manager=disabled"),
        ]


def remove_image(run: Path, user: RankUser | None) -> None:
    """Remove the image that Podman loaded, after the attempt's processes have ended.

    Args:
        run: the run directory.
        user: user who ran Podman; if None, the worker's own user.
    """
    store = run / STORE
    # Containers bind storage roots below their mounts. These mounts are invisible here and vanish
    # with the processes. The removal would delete the storage behind a visible mount.
    if _escaped(store) in Path("/proc/self/mountinfo").read_bytes():
        logger.error("%s is not removed: something is mounted there", store)
        return
    for folder in (store, *_scratch_folders(run, user)):
        remove_tree(folder)


def _escaped(path: Path) -> bytes:
    """Return a path in `mountinfo`'s notation: four special bytes become octal (proc(5))."""
    found = os.fsencode(path).replace(b"\\", rb"\134")
    for byte, number in ((b" ", rb"\040"), (b"\t", rb"\011"), (b"\n", rb"\012")):
        found = found.replace(byte, number)
    return found


def _scratch_folders(run: Path, user: RankUser | None) -> Iterator[Path]:
    """Yield the attempt's folders with short paths, but none that another user created."""
    owner = user.uid if user is not None else os.geteuid()
    for folder in SCRATCH.glob(f"{scratch_prefix(run)}*"):
        with suppress(FileNotFoundError):
            if folder.lstat().st_uid == owner and not folder.is_symlink():
                yield folder


def scratch_prefix(run: Path) -> str:
    """Return the name prefix of an attempt's folders with short paths."""
    return f"trainyard-{hashlib.sha256(os.fsencode(run)).hexdigest()[:12]}-"
