"""Containers of Podman: an archive of an image, which is loaded once and runs each rank."""

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
"""Further programs that it needs here: another runtime would make cgroups of its own."""
SCRATCH = Path("/tmp")
STORE = "containers"
SETTINGS = "containers.conf"
LIST_SECONDS = 60.0
MAX_PROCESSES = 32_768
"""Podman itself runs with a limit of so many, and can give no container more."""
OF_THE_IMAGE = frozenset({"PATH", "LD_LIBRARY_PATH", *OF_OTHER_PYTHONS})
"""Variables whose value in the image holds."""
OF_THE_LAUNCHER = (
    *("RANK", "WORLD_SIZE", "LOCAL_*", "GROUP_*", "ROLE_*", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_*", "TORCH_*", "NCCL_*", "TRAINYARD_*"),
)
"""Variables that torchrun and the supervisor add for each rank; `*` stands for any rest."""


@dataclass(frozen=True)
class PodmanContainer:
    """An image in a store of the attempt's own, and what of the node its processes see."""

    engine: str
    """Path of Podman."""
    image: str
    """Path of the archive."""
    binds: tuple[str, ...]
    """Folders of the node, each of which is seen at its own path."""
    gpus: bool
    """Whether the GPUs of the node are added."""
    run: Path
    """The run directory, which holds the store until the attempt ends."""
    user: RankUser | None = None
    """As whom Podman runs; as the worker when absent."""

    @property
    def store(self) -> Path:
        """Folder of the loaded image."""
        return self.run / STORE

    def prepare(self) -> list[str]:
        """Make the folders of Podman, and return the command that loads the image."""
        self.store.mkdir(mode=0o700)
        scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix(self.run), dir=SCRATCH))
        # Locks of its own: by default all stores of a user share one file of locks in /dev/shm.
        (scratch / SETTINGS).write_text('[engine]\nlock_type = "file"\n', encoding="utf-8")
        if self.user is not None:
            for folder in (self.store, scratch):
                os.chown(folder, self.user.uid, self.user.uid)
        return [*self._podman(), "load", "--quiet", "--input", self.image]

    def loaded(self) -> str:
        """Return the id of the image that was loaded.

        Raises:
            ValueError: there is none, or the archive held several.
        """
        user = self.user.word if self.user else "-"
        command = [*self._podman(), "images", "--all", "--quiet", "--no-trunc"]
        tied = [*WRAPPER, "tie", str(os.getpid()), user, "--", *command]
        found = {*output_of(tied, seconds=LIST_SECONDS, folder=self.run).split()}
        if len(found) != 1:
            raise ValueError(f"{self.image} holds {len(found)} images; legal: one")
        return found.pop()

    def words(
        self, image: str, command: Sequence[str], *, folder: str, variables: Mapping[str, str]
    ) -> list[str]:
        """Return the words that run a command.

        Podman makes no cgroup and no namespace of processes: the supervisor ends the processes of
        the host, and those of the container stay in the cgroup of the attempt. Ranks of one node
        share network and memory. The root of the image is read-only.

        Args:
            image: what `loaded` returned.
            command: the command inside.
            folder: where it runs.
            variables: those of the ranks, which pass through by their names; Podman has another
                `HOME`.
        """
        names = sorted({*variables, *OF_THE_LAUNCHER} - OF_THE_IMAGE - {"HOME"})
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
        if processes < 0 or processes > MAX_PROCESSES:
            processes = MAX_PROCESSES
        # As root of a user namespace it keeps the groups of the attempt, by which storage is
        # written; files that it makes belong to the user outside.
        rootless = ["--group-add=keep-groups"] if self.user is not None or os.geteuid() else []
        rootless += ["--umask=0007"] if self.user is not None else []
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
        """Return the words that precede every command of Podman."""
        scratch = next(_scratch_folders(self.run, self.user), None)
        if scratch is None:
            raise ValueError(f"the container's folder in {SCRATCH} is gone")
        settings = [f"CONTAINERS_CONF={scratch}/{SETTINGS}", f"XDG_RUNTIME_DIR={scratch}"]
        # Mounts end with the last process of the attempt, whatever ended it. A user enters a
        # namespace of one id here: Podman's own way there leaves a process in between, at which
        # signals end, and needs programs that `no_new_privs` disarms.
        apart = ["unshare", "--mount"]
        if (uid := self.user.uid if self.user is not None else os.geteuid()) != 0:
            apart += ["--user", "--map-root-user"]
            settings += ["_CONTAINERS_USERNS_CONFIGURED=done"]
            settings += [f"_CONTAINERS_ROOTLESS_{kind}={uid}" for kind in ("UID", "GID")]
        return [
            # The account's own settings of Podman, which another user may not read, do not count.
            *("/usr/bin/env", "--unset=XDG_CONFIG_HOME", "--unset=XDG_DATA_HOME"),
            *(f"HOME={scratch}", *settings, *apart, self.engine),
            *(f"--root={self.store}", f"--runroot={scratch}/run", f"--tmpdir={scratch}/tmp"),
            *("--storage-driver=overlay", "--storage-opt=overlay.ignore_chown_errors=true"),
            # The error that ends Podman is printed at each level; others mislead.
            *("--log-level=fatal", "--cgroup-manager=cgroupfs", "--events-backend=none"),
            *("--runtime=crun", "--runtime-flag=cgroup-manager=disabled"),
        ]


def remove_image(run: Path, user: RankUser | None) -> None:
    """Remove what Podman loaded for an attempt, once no process of the attempt is left.

    Args:
        run: the run directory.
        user: as whom Podman ran; as the worker when absent.
    """
    store = run / STORE
    # Storage roots are bound below mounts of a container. None is seen from here, where they end
    # with the processes; one that were would have storage removed.
    if _escaped(store) in Path("/proc/self/mountinfo").read_bytes():
        logger.error("%s is not removed: something is mounted there", store)
        return
    for folder in (store, *_scratch_folders(run, user)):
        remove_tree(folder)


def _escaped(path: Path) -> bytes:
    """Return a path as `mountinfo` writes it (proc(5)): four bytes as octal numbers."""
    found = os.fsencode(path).replace(b"\\", rb"\134")
    for byte, number in ((b" ", rb"\040"), (b"\t", rb"\011"), (b"\n", rb"\012")):
        found = found.replace(byte, number)
    return found


def _scratch_folders(run: Path, user: RankUser | None) -> Iterator[Path]:
    """Yield the attempt's folders with a short path, none of which another user has made."""
    owner = user.uid if user is not None else os.geteuid()
    for folder in SCRATCH.glob(f"{scratch_prefix(run)}*"):
        with suppress(FileNotFoundError):
            if folder.lstat().st_uid == owner and not folder.is_symlink():
                yield folder


def scratch_prefix(run: Path) -> str:
    """Return how the names of an attempt's folders with a short path begin."""
    return f"trainyard-{hashlib.sha256(os.fsencode(run)).hexdigest()[:12]}-"
