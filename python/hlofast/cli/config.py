"""Evaluates trainer configs on one or all instances, or compares two configs."""

from __future__ import annotations

import sys

from hlofast import _text
from hlofast.cli import DONE, FINDINGS, UNREADABLE, USAGE, configs, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast.config import Config

EXAMPLES = """\
examples:
  hlofast config fuji-70B.txt                             all mesh rules, with their meshes
  hlofast config fuji-70B.txt --instance tpu-v6e-256-4    what its mesh rule changes, and why
  hlofast config fuji-70B.txt --instance neuron-trn2.48xlarge-64 --device-count 4096
  hlofast config fuji-70B.txt --instance tpu-v5p-1024 --text > effective.txt
  hlofast config monday.txt --diff tuesday.txt            exit code 1 if there are differences
  hlofast config --json fuji-70B.txt | jq '.results[].tables.selections'
  hlofast config run.yml per_device_batch_size=4 ici_fsdp_parallelism=16 --instance v5p-128
  hlofast config model_name=llama3.1-8b remat_policy=minimal --instance v5e-256

FILE is a config as AXLearn's debug_string prints it (a golden config), or a YAML config of MaxText.

AXLearn: the first mesh rule whose regular expression matches the whole instance name applies. In
tables, "-" is an absent value. AXLearn's own modifiers are modelled; other modifiers are listed by
name. --diff treats equivalent values as equal and ignores the order of keys.

MaxText: KEY=VALUE arguments and environment variables M_KEY override FILE or, without FILE, the
defaults, as in MaxText. If FILE does not name a base.yml (base_config), --base is used, then the
base.yml next to FILE, then the built-in defaults; models and the file of custom_mesh_and_rule are
those beside it. The instance is a compile_topology, such as v5p-128.
"""
IS_MIXED = True
"""Whether files and overrides may stand between options."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    configs.add_files(parser)
    inputs.add_instance(parser, several=True)
    parser.add_argument(
        "--diff",
        metavar="FILE",
        help="compare with this config; --base applies to both, KEY=VALUE only to the first",
    )
    parser.add_argument(
        "--text", action="store_true", help="print the config text, with --instance applied"
    )
    results.add_json(parser)
    _text.add_top(parser)


def run(arguments: argparse.Namespace) -> int:
    """Describes every config."""
    configs.split(arguments)
    problem = _misuse(arguments)
    if problem:
        inputs.complain(problem)
        return USAGE
    if arguments.diff is not None:
        return _compare(arguments)
    from hlofast.config._results import Described

    failures = inputs.Failures()
    shower = results.Shower(Described, arguments)
    for path in arguments.files:
        config = configs.read(path, arguments, failures)
        if config is None:
            continue
        if arguments.text:
            _write(_effective(config, arguments).to_text())
        else:
            _show(config, shower, arguments)
    if not arguments.text:
        shower.end(failures.errors)
    return UNREADABLE if failures.errors else DONE


def _show(config: Config, shower: results.Shower, arguments: argparse.Namespace) -> None:
    """Shows a config and its form on instances; JSON has every instance."""
    from hlofast.config._results import Described, Selected

    if arguments.instance:
        configs = [config.select(name, arguments.device_count) for name in arguments.instance]
    else:
        configs = config.select_all(arguments.device_count)
    chosen = [Selected(effective) for effective in configs]
    if arguments.json or not arguments.instance:
        shower.show(Described(config, chosen))
    else:
        shower.show(Described(config), ())
    if arguments.json or arguments.instance:
        for selected in chosen:
            shower.show(selected, selected.every_section() if arguments.json else None)


def _compare(arguments: argparse.Namespace) -> int:
    """Shows the differences between two configs."""
    from hlofast.config._results import Compared

    failures = inputs.Failures()
    shower = results.Shower(Compared, arguments)
    before = configs.read(arguments.files[0], arguments, failures)
    after = configs.read_other(arguments.diff, arguments, failures)
    code = UNREADABLE
    if before is not None and after is not None:
        compared = Compared(before, after)
        shower.show(compared)
        code = DONE if compared.is_empty else FINDINGS
    shower.end(failures.errors)
    return code


def _misuse(arguments: argparse.Namespace) -> str | None:
    if arguments.diff is not None and (len(arguments.files) > 1 or arguments.instance):
        return "--diff compares two files as written: give one FILE and no --instance"
    if arguments.text and (arguments.json or len(arguments.instance) > 1):
        return "--text prints the text of one config: give at most one --instance and no --json"
    if [*arguments.files, arguments.diff].count("-") > 1:
        return "standard input can be read only once"
    return None


def _effective(config: Config, arguments: argparse.Namespace) -> Config:
    """Returns the config that `--text` prints."""
    for name in arguments.instance:
        return config.select(name, arguments.device_count).config
    return config


def _write(text: str) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass"))
    sys.stdout.buffer.flush()
