package dev.jobwire.endpoint;

import dev.jobwire.tables.Locks;
import java.util.Optional;

/**
 * The locks that the caller of a run holds. The row of the job is compared with them when it is
 * loaded, and again inside the transaction of the job: the lock may be lost between the two.
 *
 * @param holdsInstance whether the caller has also locked the process instance of the job, and
 *     unlocks it afterwards; otherwise the engine locks it, if the job is exclusive
 * @param owner the owner of the lock of the job's row; null if the request names none
 */
public record CallerLock(boolean holdsInstance, String owner) {
    /**
     * Returns the locks according to the parameter {@code instance} of a request: {@code held}, or
     * null if the request has none. Returns empty for any other value.
     */
    public static Optional<CallerLock> named(String parameter) {
        if (parameter == null || parameter.isEmpty()) {
            return Optional.of(new CallerLock(false, null));
        }
        return parameter.equals("held")
                ? Optional.of(new CallerLock(true, null))
                : Optional.empty();
    }

    /**
     * Returns the locks according to the parameters {@code instance} and {@code owner} of a
     * request; either is null if the request has none. Returns empty for any other value. An owner
     * is the owner of a node's lock.
     */
    public static Optional<CallerLock> named(String instance, String owner) {
        if (owner == null || owner.isEmpty()) {
            return named(instance);
        }
        return Locks.isOurs(owner)
                ? named(instance).map(lock -> new CallerLock(lock.holdsInstance(), owner))
                : Optional.empty();
    }

    /** Returns the lock of a job's row under this owner. */
    public static CallerLock of(String owner) {
        return new CallerLock(false, owner);
    }

    /** Returns whether only a row that a node has locked may run. */
    public boolean needsLock() {
        return holdsInstance || owner != null;
    }

    /**
     * Returns whether a row with this lock owner may run. A caller that sends no owner but holds
     * the instance is a node, so a node must have locked the row.
     */
    public boolean covers(String rowOwner) {
        if (owner != null) {
            return owner.equals(rowOwner);
        }
        return !holdsInstance || Locks.isOurs(rowOwner);
    }
}
