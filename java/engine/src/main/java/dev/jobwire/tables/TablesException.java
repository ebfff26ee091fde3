package dev.jobwire.tables;

import java.sql.SQLException;

/** The database did not answer a statement, or refused it. */
public final class TablesException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    TablesException(SQLException cause) {
        super("the engine's database reports: " + cause.getMessage(), cause);
    }
}
