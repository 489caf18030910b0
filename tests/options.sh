# An option of ravel may be given once: a suite's usual options, without those that a test gives itself.
usual() { # "OPTIONS" WORDS...: OPTIONS without the options that are among WORDS, and without their values
    kept="" drop="" given=$1
    shift
    for word in $given; do
        case $word in --*) case " $* " in *" $word "*) drop=1 ;; *) drop="" ;; esac ;; esac
        [ -n "$drop" ] || kept="$kept $word"
    done
    printf '%s' "$kept"
}
