"""Reads one request from standard input, does it, writes events; the last one is `result` or `problem`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from spark_pipeline.weights.node.download import download
from spark_pipeline.weights.node.inventory import inventory, remove
from spark_pipeline.weights.node.layout import Model
from spark_pipeline.weights.node.messages import Inventory, Problem, Report, Request, disk_problem, emit
from spark_pipeline.weights.node.serve import say_done, serve
from spark_pipeline.weights.node.siblings import link_absent, with_linkable
from spark_pipeline.weights.node.verify import give_back_all, lock, seal, verify


def main() -> int:
    return run(sys.stdin.buffer.read())


def run(request: bytes) -> int:
    """Do what the request says; the exit status."""
    try:
        try:
            report = perform(Request.from_json(request))
        except OSError as error:
            raise disk_problem("the model's directory", error) from error
    except Problem as problem:
        emit("problem", kind=problem.kind, what=problem.what, observed=problem.observed)
        return 1
    emit("result", **dataclasses.asdict(report))
    return 0


def perform(request: Request) -> Report | Inventory:
    """inspect: look, change nothing. verify, download, seal: one program at a time. serve: hand files to peers.
    done: tell `serve` that one of them needs nothing more.
    inventory, remove: about all revisions."""
    if request.operation == "inventory":
        return inventory(Path(request.weights_dir))
    if request.operation == "remove":
        return remove(request)
    model = Model(request)
    report = model.survey(rehash=request.rehash)
    if request.operation == "inspect":
        return with_linkable(model, report, rehash=request.rehash)
    if report.obstacle:
        raise Problem("files", "something stands where the model should lie", report.obstacle)
    if request.operation == "serve" and request.source:
        return serve(model, request.listen_on, request.source.token, request.receivers)
    if request.operation == "done" and request.source:
        say_done(request.source)
        return report
    model.state.mkdir(parents=True, exist_ok=True)
    with lock(model.state):
        model = Model(request)  # what another run has proven while this one waited
        if request.operation == "verify":
            return link_absent(model, verify(model, request.rehash), rehash=request.rehash)
        if request.operation == "seal":
            sealed = seal(model, request)
            give_back_all(model)
            return sealed
        if request.operation == "download" and request.source:
            return download(model, request.source)
    raise Problem("request", f"no operation {request.operation!r}")
