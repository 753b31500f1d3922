"""Image references, by Docker's own grammar."""

from __future__ import annotations

from dataclasses import dataclass

# Docker's grammar: a name without a registry is this one's, and one without a namespace is in `library/`.
DEFAULT_REGISTRY = "docker.io"


@dataclass(frozen=True)
class Reference:
    """`[registry/]repository[:tag][@digest]`, taken apart.

    Args:
        name: as written, without tag and digest: what a tag or digest is put behind.
        registry: host, with its port if one was given.
        repository: path in the registry, `library/` added where Docker adds it.
    """

    name: str
    registry: str
    repository: str
    tag: str | None
    digest: str | None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Take `text` apart. It has been checked by the declaration's pattern; anything odd is left to the registry."""
        rest, _, digest = text.partition("@")
        head, slash, last = rest.rpartition("/")
        last, _, tag = last.partition(":")
        name = head + slash + last
        first, slash, path = name.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            registry, repository = first, path
        else:
            registry, repository = DEFAULT_REGISTRY, name
        if registry == DEFAULT_REGISTRY and "/" not in repository:
            repository = f"library/{repository}"
        return cls(name, registry, repository, tag or None, digest or None)

    @property
    def tagged(self) -> str | None:
        """`name:tag`; None for a reference by digest alone, which names no tag."""
        if self.tag is None and self.digest is not None:
            return None
        return f"{self.name}:{self.tag or 'latest'}"

    @property
    def manifest(self) -> str:
        """What the registry is asked for: the digest, else the tag."""
        return self.digest or self.tag or "latest"

    def at(self, digest: str) -> str:
        """`name@digest`: this name, fully pinned."""
        return f"{self.name}@{digest}"

    def digest_among(self, repo_digests: tuple[str, ...]) -> str | None:
        """The registry digest under which Docker remembers having pulled this name.

        Args:
            repo_digests: RepoDigests of `docker image inspect`: `name@sha256:...` each.
        """
        for text in repo_digests:
            known = Reference.parse(text)
            if (known.registry, known.repository) == (self.registry, self.repository):
                return known.digest
        return None
