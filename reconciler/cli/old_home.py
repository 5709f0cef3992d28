"""The note about a `.reconciler/` in the checkout, in which earlier versions kept their state."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from reconciler.base.checkout import repository_in
from reconciler.base.git_command import Git, GitError
from reconciler.base.sanitize import one_line
from reconciler.base.state_dir import OLD_HOME, HomeError, location_of
from reconciler.cli import print_message
from reconciler.manifests.settings import find_root


def report_old_home(log_format: str) -> None:
    """Print that such a folder is ignored, if there is one, and how to move it if the user has made it."""
    old = find_root(Path.cwd()) / OLD_HOME
    if not os.path.lexists(old):
        return
    message = f"{old} is ignored: state is kept outside of the repository"
    print_message(message, log_format, "" if _may_be_brought(old.parent) else _how_to_move(old))


def _may_be_brought(root: Path) -> bool:
    """Return True unless git shows that it tracks nothing of the folder."""
    # Every repository above: git also checks out files through a repository that lies in another.
    tops = [top for top in (root, *root.parents) if repository_in(top)]
    # Variables such as GIT_LITERAL_PATHSPECS would change the meaning of the path.
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_PATHSPECS")}
    try:
        return not tops or any(_tracked(Git(top, environ), root.relative_to(top)) for top in tops)
    except GitError:
        return True


def _tracked(git: Git, root: Path) -> bytes:
    return git.run("ls-files", "-z", "--", f":(icase,literal){root.as_posix()}/{OLD_HOME}")


def _how_to_move(old: Path) -> str:
    """Return how to keep an earlier version's home; "" if it is no folder, or the new place is in use."""
    try:
        home = location_of(old.parent, os.environ)
        if (
            old.is_symlink()
            or not old.is_dir()
            or home.is_symlink()
            or (home.exists() and any(home.iterdir()))
        ):
            return ""
    except (HomeError, OSError):
        return ""
    # `mv` would put the folder into an existing one, and this command may make the home yet: `rmdir` fails if
    # the home has anything in it then.
    steps = (["mkdir", "-p", str(home)], ["rmdir", str(home)], ["mv", str(old), str(home)])
    move = " && ".join(shlex.join(step) for step in steps)
    if one_line(move) != move:  # printed, it would name another place
        return ""
    return (
        "if you made it here with an earlier version, wait until its jobs have ended, as a move ends them, "
        f"run `reconciler serve --stop` with that version, and then: {move}"
    )
