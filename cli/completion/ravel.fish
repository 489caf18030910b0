# ravel: completion for fish
complete -c ravel -n __fish_use_subcommand -f
@summaries@complete -c ravel -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'
complete -c ravel -n '__fish_seen_subcommand_from help' -f -a '@commands@'
complete -c ravel -n '__fish_seen_subcommand_from train; and not __fish_seen_subcommand_from @kinds@' -f -a '@kinds@'
@options@
