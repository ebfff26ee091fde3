# The reaper: reads what there is to take away, one notice a line, until the test
# process is gone (its end of the pipe closes, whatever killed it), then takes it away.
#   group PID        a process group was started
#   gone PID         it has ended and its number may belong to a stranger
#   directory PATH   remove this
#   mount PATH       unmount this first
#   unmounted PATH   it has been
trap '' HUP INT QUIT TERM
groups=
mounts=
while read -r word value; do
    case $word in
    group) groups="$groups $value" ;;
    gone)
        kept=
        for group in $groups; do
            [ "$group" = "$value" ] || kept="$kept $group"
        done
        groups=$kept
        ;;
    mount) mounts="$mounts $value" ;;
    unmounted)
        kept=
        for mount in $mounts; do
            [ "$mount" = "$value" ] || kept="$kept $mount"
        done
        mounts=$kept
        ;;
    directory) set -- "$@" "$value" ;;
    esac
done

alive() {
    for group in $groups; do
        kill -s 0 -- "-$group" 2>/dev/null && return 0
    done
    return 1
}

# QUIT first: it makes PostgreSQL's postmaster end its backends, which live in
# sessions of their own, and give back its shared memory.
for signal in QUIT KILL; do
    for group in $groups; do
        kill -s "$signal" -- "-$group" 2>/dev/null
    done
    # On a busy machine the killed take their time.
    case $signal in QUIT) tries=20 ;; *) tries=100 ;; esac
    while [ "$tries" -gt 0 ] && alive; do
        tries=$((tries - 1))
        sleep 0.1
    done
done

# Lazily: what was just killed may still have files open there.
for mount in $mounts; do
    umount -l "$mount" 2>/dev/null
done

# A server that has just been killed may still have been writing.
tries=50
while [ "$tries" -gt 0 ]; do
    [ "$#" -eq 0 ] || rm -rf -- "$@" && break
    tries=$((tries - 1))
    sleep 0.2
done
