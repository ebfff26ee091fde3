# The reaper: removes the processes, mounts and directories of a test process after its
# end. Reads one notice per line until the test process has ended: its end of the pipe
# closes, however it ended.
#   group PID        a process group was started
#   gone PID         the group has ended; another process may get its number
#   directory PATH   remove the directory
#   mount PATH       unmount this before directories are removed
#   unmounted PATH   the mount is gone
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

# QUIT first: PostgreSQL's postmaster then ends its backends, which have their own
# sessions, and releases its shared memory.
for signal in QUIT KILL; do
    for group in $groups; do
        kill -s "$signal" -- "-$group" 2>/dev/null
    done
    # On a busy machine killed processes end slowly.
    case $signal in QUIT) tries=20 ;; *) tries=100 ;; esac
    while [ "$tries" -gt 0 ] && alive; do
        tries=$((tries - 1))
        sleep 0.1
    done
done

# Lazily: processes that were just killed may still have files open there.
for mount in $mounts; do
    umount -l "$mount" 2>/dev/null
done

# Tries again: a killed server may still create files while they are removed.
tries=50
while [ "$tries" -gt 0 ]; do
    [ "$#" -eq 0 ] || rm -rf -- "$@" && break
    tries=$((tries - 1))
    sleep 0.2
done
