package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Instant;
import java.util.concurrent.TimeUnit;

/**
 * The database's clock. The class reads it every five seconds. In between, it adds the steady clock
 * of the Java virtual machine.
 */
final class DatabaseClock {
    private static final long LASTS = TimeUnit.SECONDS.toNanos(5);

    private record Asked(Instant time, long nanos) {}

    private final Database database;
    private volatile Asked last;

    DatabaseClock(Database database) {
        this.database = database;
    }

    Instant now(Connection connection) throws SQLException {
        Asked known = last;
        if (known == null || System.nanoTime() - known.nanos > LASTS) {
            long before = System.nanoTime();
            Instant time = database.now(connection);
            known = new Asked(time, before + (System.nanoTime() - before) / 2);
            last = known;
        }
        long passed = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - known.nanos);
        return Instant.ofEpochMilli(known.time.toEpochMilli() + passed);
    }
}
