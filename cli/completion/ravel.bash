# ravel: completion for bash
_ravel_options() {
    case "$1" in
@options@    esac
}
_ravel_values() {
    case "$1" in
@values@    esac
}
_ravel() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path=${COMP_WORDS[1]}
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then COMPREPLY=($(compgen -W '@commands@ help' -- "$word")); return; fi
    if [ "$COMP_CWORD $path" = '2 completion' ]; then COMPREPLY=($(compgen -W 'bash zsh fish' -- "$word")); return; fi
    if [ "$COMP_CWORD $path" = '2 help' ]; then COMPREPLY=($(compgen -W '@commands@' -- "$word")); return; fi
    if [ "$path" = train ]; then
        if [ "$COMP_CWORD" = 2 ]; then COMPREPLY=($(compgen -W '@kinds@' -- "$word")); return; fi
        path="train ${COMP_WORDS[2]}"
    fi
    local values=$(_ravel_values "$path $before")
    if [ -n "$values" ]; then COMPREPLY=($(compgen -W "$values" -- "$word")); return; fi
    case "$word" in -*) ;; *) return ;; esac
    local own=$(_ravel_options "$path") pair ours=
    COMPREPLY=($(compgen -W "$own" -- "$word"))
    case "${#COMPREPLY[@]} $word" in '0 --'?*) ;; *) return ;; esac
    word=${word//_/-}
    for pair in @words@; do
        case "$pair" in "$word"*) case " $own" in *" ${pair#*=} "*) ours="$ours ${pair#*=}" ;; esac ;; esac
    done
    COMPREPLY=($(printf '%s\n' $ours | sort -u))
}
complete -o default -F _ravel ravel
