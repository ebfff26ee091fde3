package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;

/**
 * A connection that is kept between transactions, for work that must not wait for a full pool. It
 * is closed after a failure. The next transaction then opens another one.
 */
public final class KeptConnection implements AutoCloseable {
    private final EngineTables tables;
    private EngineTables.Session session;

    /** Creates the holder without a connection. */
    public KeptConnection(EngineTables tables) {
        this.tables = tables;
    }

    /** Opens the connection, unless it is open. */
    public synchronized void open() {
        if (session == null) {
            session = tables.open();
        }
    }

    synchronized <T> T transaction(EngineTables.Work<T> work) {
        open();
        try {
            return session.transaction(work);
        } catch (RuntimeException failed) {
            close();
            throw failed;
        }
    }

    /** Returns the connection to the pool. */
    @Override
    public synchronized void close() {
        EngineTables.Session open = session;
        session = null;
        if (open != null) {
            open.close();
        }
    }
}
