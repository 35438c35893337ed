"""`pdctl completion`: what a shell needs to complete pdctl's words."""

from typing import Annotated, Final, Literal

import typer

from pdctl.cli.output import result

_BASH: Final = r"""
_pdctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} line
    [[ $cur == = ]] && cur=
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :file ]]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$cur")
        else
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <("${COMP_WORDS[0]}" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _pdctl pdctl
"""

_ZSH: Final = r"""
#compdef pdctl
_pdctl() {
    local line
    local -a found
    for line in "${(@f)$(${words[1]} --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        if [[ $line == :file ]]; then
            _files
        elif [[ -n $line ]]; then
            found+=("${line%%$'\t'*}:${${line#*$'\t'}#${line%%$'\t'*}}")
        fi
    done
    (( $#found )) && _describe -t words pdctl found
}
compdef _pdctl pdctl
"""

_FISH: Final = r"""
function __pdctl_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] --complete $words[2..] "$current" 2>/dev/null)
        if test "$line" = ":file"
            __fish_complete_path "$current"
        else
            printf '%s\n' $line
        end
    end
end
complete -c pdctl -f -a '(__pdctl_complete)'
"""

SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def command(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that completes.")]) -> None:
    """Print what a shell needs to complete commands, options, fleets, units and codes.

    bash: add `source <(pdctl completion bash)` to ~/.bashrc. zsh: `source <(pdctl completion zsh)`, in ~/.zshrc after
    compinit. fish: `pdctl completion fish > ~/.config/fish/completions/pdctl.fish`.
    """
    result(SCRIPTS[shell].strip("\n"))
