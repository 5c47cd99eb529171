"""Scripts that let shells complete verbs, options and their choices, made from the parsers."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

SHELLS = ("bash", "zsh", "fish")
"""Shells for which there are scripts."""


def offered(verb: str, option: str) -> tuple[str, ...]:
    """Returns the values of an option that the parser accepts as text but that form a closed set.

    Options with commas take several of these values.
    """
    from hlofast import _diff, _lint, _memory, _scan, _time, devices

    if option == "--device":
        return (*devices.built_in(), *(("auto", "none") if verb == "scan" else ()))
    if verb == "lint" and option in ("--fail-on", "--only"):
        return (*_lint.RULES, "any")
    return {
        ("diff", "--max-growth"): tuple(f"{measure}=" for measure in _diff.MEASURES),
        ("memory", "--space"): (*_memory.SPACES, "all"),
        ("scan", "--tables"): _scan.TABLES,
        ("time", "--collectives"): _time.MODELS,
        ("trace", "--collectives"): _time.MODELS,
    }.get((verb, option), ())


class Option:
    """An option of a verb: its spellings, its values and its help."""

    __slots__ = ("choices", "doc", "is_list", "names", "takes_file", "takes_value")

    def __init__(self, verb: str, action: argparse.Action) -> None:
        self.names = tuple(action.option_strings)
        self.takes_value = action.nargs != 0
        known = offered(verb, self.names[-1])
        self.choices = tuple(map(str, action.choices or known))
        """The values, if they form a closed set."""
        self.is_list = ",..." in str(action.metavar)
        """Whether the option takes several values, separated by commas."""
        self.takes_file = not action.choices and self.names[-1] == "--collectives"
        """Whether a file name may stand instead of one of `choices`."""
        text = (action.help or "") % {**vars(action), "prog": "hlofast"}
        self.doc = " ".join(text.split())


class Verb:
    """A verb: its help, its options, and the words allowed as its first argument."""

    __slots__ = ("doc", "name", "options", "words")

    def __init__(
        self, name: str, doc: str, parser: argparse.ArgumentParser, words: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.doc = doc
        self.words = tuple(words)
        actions = parser._actions
        self.options = tuple(Option(name, own) for own in actions if own.option_strings)
        if not self.words:
            given = [own.choices for own in actions if not own.option_strings and own.choices]
            self.words = tuple(map(str, given[0] or ())) if given else ()


def script(shell: str, verbs: Sequence[Verb], short: Verb) -> str:
    """The script for a shell; `short` is the verb whose options are valid without a verb."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](verbs, short)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _names(verb: Verb) -> str:
    return " ".join(name for option in verb.options for name in option.names)


def _cases(verbs: Iterable[Verb], short: Verb, line: str, listed: str, files: str) -> list[str]:
    """Branches for options with known values, and for first arguments that are words.

    `line` completes one of WORDS, `listed` the last item of a comma-separated list, `files` file
    names.
    """
    branches: dict[str, str] = {}
    for verb in verbs:
        # The verb may be left out: `hlofast FILE --device` takes the options of `short`.
        starts = (f'"{verb.name} ', '*" ') if verb is short else (f'"{verb.name} ',)
        for option in verb.options:
            words = " ".join(option.choices)
            code = (listed if option.is_list else line).replace("WORDS", words)
            code += f"; {files}" if option.takes_file else ""
            for start in starts if words else ():
                for name in option.names:
                    branches[f'{start}{name}"'] = code
        if verb.words:
            words = " ".join(verb.words)
            branches[f'"{verb.name} {verb.name}"'] = line.replace("WORDS", words)
    last = sorted(branches, key=lambda key: key.startswith("*"))
    return [f"    {key}) {branches[key]}; return ;;" for key in last]


def _by_verb(verbs: Iterable[Verb], short: Verb, values: Mapping[str, str]) -> list[str]:
    lines = [f"    {verb.name}) options={values[verb.name]} ;;" for verb in verbs]
    return [*lines, f"    *) options={values[short.name]} ;;"]


def _bash(verbs: Sequence[Verb], short: Verb) -> str:
    names = " ".join(verb.name for verb in verbs)
    options = {verb.name: f'"{_names(verb)}"' for verb in verbs}
    reply = 'COMPREPLY=($(compgen -W "WORDS" -- "$current"))'
    listed = 'COMPREPLY=($(compgen -P "$earlier" -W "WORDS" -- "${current##*,}"))'
    files = 'COMPREPLY+=($(compgen -f -- "$current"))'
    return "\n".join(
        [
            "# bash completion of hlofast: source it, or put it where bash-completion looks.",
            "_hlofast() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            '  local verb="${COMP_WORDS[1]}" options earlier=',
            '  if [[ "$current" == *,* ]]; then earlier="${current%,*},"; fi',
            "  COMPREPLY=()",
            '  if [[ "$COMP_CWORD" -eq 1 && "$current" != -* ]]; then',
            f'    COMPREPLY=($(compgen -W "{names}" -- "$current"))',
            '    COMPREPLY+=($(compgen -f -- "$current"))',
            "    return",
            "  fi",
            '  case "$verb $before" in',
            *_cases(verbs, short, reply, listed, files),
            "  esac",
            '  case "$verb" in',
            *_by_verb(verbs, short, options),
            "  esac",
            '  if [[ "$current" == -* ]]; then',
            '    COMPREPLY=($(compgen -W "$options" -- "$current"))',
            "  else",
            '    COMPREPLY=($(compgen -f -- "$current"))',
            "  fi",
            "}",
            "complete -o filenames -F _hlofast hlofast",
            "",
        ]
    )


def _zsh(verbs: Sequence[Verb], short: Verb) -> str:
    described = " ".join(_quoted(f"{verb.name}:{verb.doc.replace(':', ' -')}") for verb in verbs)
    options = {verb.name: f"({_names(verb)})" for verb in verbs}
    return "\n".join(
        [
            "#compdef hlofast",
            "# zsh completion of hlofast: a file _hlofast in a folder of $fpath, or source it.",
            "_hlofast() {",
            "  local -a verbs options",
            f"  verbs=({described})",
            '  if (( CURRENT == 2 )) && [[ "${words[2]}" != -* ]]; then',
            "    _describe verb verbs",
            "    _files",
            "    return",
            "  fi",
            '  case "${words[2]} ${words[CURRENT-1]}" in',
            *_cases(
                verbs, short, "compadd -- WORDS", "compset -P '*,'; compadd -- WORDS", "_files"
            ),
            "  esac",
            '  case "${words[2]}" in',
            *_by_verb(verbs, short, options),
            "  esac",
            '  if [[ "${words[CURRENT]}" == -* ]]; then',
            "    compadd -- $options",
            "  else",
            "    _files",
            "  fi",
            "}",
            'if [ "${funcstack[1]}" = "_hlofast" ]; then',
            '  _hlofast "$@"',
            "else",
            "  compdef _hlofast hlofast",
            "fi",
            "",
        ]
    )


def _fish(verbs: Sequence[Verb], short: Verb) -> str:
    lines = ["# fish completion of hlofast: ~/.config/fish/completions/hlofast.fish"]
    for verb in verbs:
        first = f"complete -c hlofast -n __fish_use_subcommand -a {verb.name}"
        lines.append(f"{first} -d {_quoted(verb.doc)}")
        seen = _quoted(f"__fish_seen_subcommand_from {verb.name}")
        if verb.words:
            lines.append(f"complete -c hlofast -n {seen} -a {_quoted(' '.join(verb.words))}")
        conditions = [seen, "__fish_use_subcommand"] if verb is short else [seen]
        for option in verb.options:
            spelled = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            value = " -r" if option.takes_value else ""
            if option.choices:
                kind = "-r" if option.takes_file else "-x"
                value = f" {kind} -a {_quoted(' '.join(option.choices))}"
            lines += [
                f"complete -c hlofast -n {when} {spelled}{value} -d {_quoted(option.doc)}"
                for when in conditions
            ]
    return "\n".join([*lines, ""])
