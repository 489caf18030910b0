#compdef ravel
# ravel: completion for zsh
_ravel_options() {
    case "$1" in
@options@    esac
}
_ravel() {
    local -a specs
    local path=${words[2]}
    if (( CURRENT == 2 )); then
        compadd @commands@
        return
    fi
    if (( CURRENT == 3 )); then
        case $path in
        completion) compadd bash zsh fish; return ;;
        help) compadd @commands@; return ;;
        esac
    fi
    if [[ $path == train ]]; then
        if (( CURRENT == 3 )); then compadd @kinds@; return; fi
        path="train ${words[3]}"
        shift words; (( CURRENT-- ))
    fi
    shift words; (( CURRENT-- ))
    _ravel_options "$path"
    local word=${words[CURRENT]//_/-} pair
    local -a ours
    if [[ $word == --?* && -z ${(M)specs:#$word*} ]]; then
        for pair in @words@; do
            [[ $pair == $word* && -n ${(M)specs:#${pair#*=}\[*} ]] && ours+=(${pair#*=})
        done
        (( $#ours )) && { compadd -U -- ${(u)ours}; return; }
    fi
    _arguments -s "${specs[@]}"
}
compdef _ravel ravel 2>/dev/null
