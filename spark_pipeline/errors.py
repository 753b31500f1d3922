"""Every error that a person can meet, on one page.

    SparkPipelineError
    ├── DeclarationError          a YAML file says something that cannot be done
    ├── StateError                a stage needs what an earlier stage has not recorded
    ├── MachineError              a node, or the way to it
    │   ├── UnreachableError          no TCP connection, or it broke
    │   ├── HostKeyError              unknown or changed host key
    │   ├── LoginRefusedError         the node refused user and key
    │   ├── CommandFailedError        a command ended with a status that is not 0
    │   ├── CommandTimeoutError       a command did not end in its time
    │   ├── DockerUnavailableError    no Docker Engine, or no right to use it
    │   └── LeaseHeldError            somebody else is changing this fleet
    ├── CompatibilityError        no candidate image can serve the model on these machines
    ├── WeightsError              the model's files
    │   ├── HubError                  the hub said no, or cannot be reached
    │   ├── RevisionNotFoundError     repository or revision does not exist
    │   ├── NoRoomError               the files do not fit on a node's disk
    │   └── VerificationError         bytes differ from the manifest
    ├── ImageError                the engine's image
    │   ├── ImageNotFoundError        it exists nowhere
    │   ├── ImageSilentError          it did not answer now, which says nothing about it
    │   ├── AugmentError              nothing can be layered onto it
    │   ├── RegistryError             the registry said no, or cannot be reached
    │   └── ImageDiffersError         two nodes hold different images
    ├── ClusterError              the containers and what joins them
    │   └── JoinError                 Ray's members are not the declared nodes
    ├── ServingError              the engine
    │   ├── EngineExitedError         it ended before, or after, it was ready
    │   ├── ReadinessTimeoutError     it neither ended nor became ready
    │   └── WrongAnswerError          it answers, but not as declared
    ├── BenchmarkError            a measurement that may not be trusted
    └── LabError                  the virtual fleet cannot be had on this machine

An error says what happened, where (`node`), what was seen (`observed`) and what to do (`remedy`).
Secrets never belong in any of the four. Errors survive pickling: Dagster's steps are processes.
"""

from __future__ import annotations

ALSO = "and also: "  # how a note begins that tells of another error (fleet/parallel.py)


class SparkPipelineError(Exception):
    """Root of the tree.

    Args:
        what: one sentence, no trailing dot needed: what could not be done.
        node: name of the node as declared in the fleet, None when no machine is involved.
        observed: the evidence: the program's own words, a value, an address.
        remedy: what the reader should do next, as a command where there is one.
    """

    def __init__(self, what: str, *, node: str | None = None, observed: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.node = node
        self.observed = observed.strip()
        self.remedy = remedy.strip()

    def __str__(self) -> str:
        lines = [f"[{self.node}] {self.what}" if self.node else self.what]
        if self.observed:
            lines.append("  observed: " + self.observed.replace("\n", "\n            "))
        if self.remedy:
            lines.append("  remedy:   " + self.remedy.replace("\n", "\n            "))
        lines += ["  also:     " + note.removeprefix(ALSO).replace("\n", "\n            ") for note in self._notes]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.node, self.observed, self.remedy, self._notes))

    @property
    def _notes(self) -> tuple[str, ...]:
        """What else went wrong at the same time, see BaseException.add_note."""
        return tuple(getattr(self, "__notes__", ()))


def _rebuild(
    kind: type[SparkPipelineError], what: str, node: str | None, observed: str, remedy: str, notes: tuple[str, ...]
) -> SparkPipelineError:
    error = kind(what, node=node, observed=observed, remedy=remedy)
    for note in notes:
        error.add_note(note)
    return error


class DeclarationError(SparkPipelineError):
    """A declaration is wrong; `what` begins with file:line."""


class StateError(SparkPipelineError):
    """A stage needs a record under data/state that is missing, torn or of another schema version."""


class MachineError(SparkPipelineError):
    """A node, or the way to it."""


class UnreachableError(MachineError):
    """No TCP connection could be made, or it broke."""


class HostKeyError(MachineError):
    """The host key is not pinned, or it is not the pinned one."""


class LoginRefusedError(MachineError):
    """The node refused this user with this key."""


class CommandFailedError(MachineError):
    """A command on a node ended with a status that is not 0."""


class CommandTimeoutError(MachineError):
    """A command on a node did not end within its time."""


class DockerUnavailableError(MachineError):
    """The Docker Engine does not run on the node, or the user may not use it."""


class LeaseHeldError(MachineError):
    """Somebody else is changing this fleet."""


class CompatibilityError(SparkPipelineError):
    """No candidate image can serve the model on these machines; `observed` names every way and what rules it out."""


class WeightsError(SparkPipelineError):
    """The model's files."""


class HubError(WeightsError):
    """The hub refused, or could not be reached."""


class RevisionNotFoundError(HubError):
    """The repository or its revision does not exist on the hub."""


class NoRoomError(WeightsError):
    """The files do not fit on a node's disk."""


class VerificationError(WeightsError):
    """Files on a node differ from the manifest."""


class ImageError(SparkPipelineError):
    """The engine's image."""


class ImageNotFoundError(ImageError):
    """The image is on no node and in no registry that can be asked."""


class ImageSilentError(ImageError):
    """An image did not answer what it was asked, for a reason that may pass."""


class AugmentError(ImageError):
    """What should be layered onto an image, or grafted into it, does not fit or cannot be built."""


class RegistryError(ImageError):
    """The registry refused, or could not be reached."""


class ImageDiffersError(ImageError):
    """Two nodes hold different images under the same name."""


class ClusterError(SparkPipelineError):
    """The containers of a deployment, and what joins them."""


class JoinError(ClusterError):
    """The members that joined are not the declared nodes."""


class ServingError(SparkPipelineError):
    """The engine."""


class EngineExitedError(ServingError):
    """The engine ended."""


class ReadinessTimeoutError(ServingError):
    """The engine neither ended nor became ready in its time."""


class WrongAnswerError(ServingError):
    """The endpoint answers, but not as declared."""


class BenchmarkError(SparkPipelineError):
    """A measurement that may not be trusted."""


class LabError(SparkPipelineError):
    """The virtual fleet cannot be had on this machine."""
