"""`vllm serve`, `vllm bench serve`, `vllm --version`."""

import sys


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["serve"]:
        from .serve import serve

        return serve(words[1:])
    if words[:2] == ["bench", "serve"]:
        from .bench import bench

        return bench(words[2:])
    if words[:1] in (["--version"], ["-v"]):
        from . import __version__

        print(__version__)
        return 0
    print("usage: vllm [-h] [-v] {serve,bench} ...", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
