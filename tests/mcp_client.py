"""The folder that agents ask about in the tests of `hlofast mcp`, and a client that asks."""

from __future__ import annotations

import os
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import A100_STEP, A100_TRACE, CHECKOUT, FIXTURES
from test_cli import COMMAND

STEP, DUMP, DECODER, GPU, LARGE = (
    *("step.txt", "dump", "decoder.txt.gz", A100_STEP.name, "too_large.txt"),
)
"""The five programs: a TPU step, a CPU dump folder, a decoder on 256 chips, a GPU step with a
profile, a step that does not fit."""
PROFILE, RUN, LOG = A100_TRACE.name, "run.yml", "run.log"


def filled(folder: Path) -> Path:
    """A folder with the five programs, a profile, a config and a log."""
    shutil.copy(FIXTURES / "train_step.after_optimizations.txt", folder / STEP)
    shutil.copytree(FIXTURES / "dump_folders" / "cpu", folder / DUMP)
    shutil.copytree(FIXTURES / "dump_folders" / "tpu", folder / "tpu")
    shutil.copy(FIXTURES / "sharded" / "decoder_v5e_256.txt.gz", folder / DECODER)
    shutil.copy(A100_STEP, folder / GPU)
    shutil.copy(A100_TRACE, folder / PROFILE)
    shutil.copy(FIXTURES / "messages" / "easydel166.txt", folder / LOG)
    examples = CHECKOUT / "python" / "hlofast" / "guide" / "examples.tar.xz"
    with tarfile.open(examples) as archive:
        archive.extract(LARGE, folder, filter="data")
    (folder / RUN).write_text("model_name: llama3.1-8b\nper_device_batch_size: 2\n")
    return folder


def ask(root: Path, calls: list[tuple[str, dict[str, Any]]]) -> tuple[list[Any], list[Any]]:
    """The tools, and the results of calls, by the package's own client over standard streams."""
    mcp = pytest.importorskip("mcp")
    import anyio
    from mcp.client.stdio import stdio_client

    async def run() -> tuple[list[Any], list[Any]]:
        command = [*COMMAND, "mcp", "--root", str(root)]
        server = mcp.StdioServerParameters(
            command=command[0], args=command[1:], env=dict(os.environ)
        )
        async with mcp.Client(stdio_client(server)) as client:
            listed = await client.list_tools()
            return listed.tools, [await client.call_tool(*each) for each in calls]

    # In a thread of its own: a browser that other tests drive keeps a loop running in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, run).result()
